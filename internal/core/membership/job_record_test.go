package membership_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
)

func begin(t *testing.T, recovery string) membership.JobRecord {
	t.Helper()
	r, err := perdure.ParseRecovery(recovery)
	if err != nil {
		t.Fatal(err)
	}
	job := perdure.JobSpec{
		ID: "j", Slots: 2, Servers: 2, Shards: 3, Clocks: 100, Recovery: r,
		Consistency: perdure.Consistency{Kind: perdure.BSP}, OutageRows: perdure.RowsFrozen,
	}
	return membership.NewJobRecord(job, 1, 0, nil)
}

// TestClone checks that a copy does not change with the original, and that both are encoded equally.
func TestClone(t *testing.T) {
	for _, strategy := range []string{"none", "resend:20,partial", "scar:20,1/8,round"} {
		f := begin(t, strategy)
		before, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		copied := f.Clone()
		f.Servers[1].Process, f.Slots[0].Incarnation, f.ShardLost[2] = "p", 4, 7
		f.View.Shards[0].Server, f.View.Slots[1].Start = 1, 9
		if after, err := json.Marshal(copied); err != nil || string(after) != string(before) {
			t.Errorf("%s: the copy has changed to\n%s (%v), from\n%s", strategy, after, err, before)
		}
		var read membership.JobRecord
		err = json.Unmarshal(before, &read)
		if again, _ := json.Marshal(read); err != nil || string(again) != string(before) {
			t.Errorf("%s: it is read as\n%s (%v), it was\n%s", strategy, again, err, before)
		}
	}
}

// TestQuestions checks the answers that need only the record.
func TestQuestions(t *testing.T) {
	f := begin(t, "resend:20")
	if f.Placed() || f.IsOver() || f.Departed(0) || f.Departed(5) || f.Abandoned(0) || f.NextRevision() != 2 {
		t.Errorf("a job without processes: %+v", f)
	}
	f.View.Named = 30
	if a, b := f.CutFrom(10), f.CutFrom(200); a != 31 || b != 100 {
		t.Errorf("the next cuts are of clocks %d and %d", a, b)
	}
	f.Final = &membership.FinalCheckpoint{Named: true, Cut: 40}
	if !f.AwaitsFinal() {
		t.Error("there is no last checkpoint yet")
	}
	if f.View.Durable = 40; f.AwaitsFinal() || f.Saved(1) != 40 {
		t.Error("there is")
	}
	if f.Failed = "why"; !f.IsOver() {
		t.Error("it has failed")
	}
}

// TestApply checks that joining and leaving slots are counted, and that plans must be in the order of their clocks.
func TestApply(t *testing.T) {
	f := begin(t, "none")
	if err := f.Plan(3, 50); err != nil || f.SlotClocks(100) != 250 || f.KnownRoster != f.View.Roster {
		t.Errorf("%v, %d clocks", err, f.SlotClocks(100))
	}
	if err := f.Plan(4, 40); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("a plan for an earlier clock: %v", err)
	}
	joined, err := f.Apply(membership.Change{Add: 1, Leave: []perdure.Slot{0}}, 60)
	if err != nil || !reflect.DeepEqual(joined, []int{3}) || f.View.Slots[0].Until != 60 || f.SlotClocks(100) != 250 {
		t.Errorf("%v (%v), slots %+v, %d clocks", joined, err, f.View.Slots, f.SlotClocks(100))
	}
}

// TestResume checks that a resumed job also counts the clocks of former membership intervals.
func TestResume(t *testing.T) {
	f := begin(t, "checkpoint:20")
	f.View.Cut = 20
	f.Resume([]protocol.Interval{{}, {Until: 10}, {From: 50}}, nil, 7)
	if got := f.SlotClocks(100); got != 7+100+10+50 || f.View.Roster != 1 || f.KnownRoster != 1 ||
		f.EarlierClocks != 7+20+10 {
		t.Errorf("%d clocks, %+v", got, f.View)
	}
	f = begin(t, "checkpoint:20")
	f.View.Cut = 20
	if f.Resume(nil, nil, 0); f.SlotClocks(100) != 200 || f.View.Roster != 0 || f.EarlierClocks != 40 {
		t.Errorf("without slots that left: %d clocks", f.SlotClocks(100))
	}
}
