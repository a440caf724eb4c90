package recovery_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
)

func parse(t *testing.T, s string) perdure.Recovery {
	t.Helper()
	r, err := perdure.ParseRecovery(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestPromises checks what each strategy promises: until when workers keep updates, how shards are saved, and what
// happens when a server, a worker, or both die.
func TestPromises(t *testing.T) {
	const (
		resume, anew, restored, replay = recovery.Continue, recovery.Reinitialize, recovery.Restore, recovery.Replay
		back, fail                     = recovery.RollBack, recovery.Fail
		acked, logged, saved           = recovery.Acknowledged, recovery.Logged, recovery.Saved
		count                          = recovery.RestorePartial
		nothing, standing, behind      = recovery.SaveNothing, recovery.SavePaused, recovery.SaveInBackground
		whole, initial, head           = recovery.Everything, recovery.InitialRows, recovery.HeadRows
	)
	repeated := map[bool]recovery.ActionKind{false: resume, true: count} // a replacement process redoes the same work
	for _, c := range []struct {
		name     string
		copies   int
		safe     recovery.SafePoint
		form     recovery.SaveMode
		begins   recovery.RestartContent
		period   perdure.Clock
		orphaned recovery.ActionKind // for lost shards
		unkept   recovery.ActionKind // for lost shards after the death of a worker that had kept updates they lack
		halved   recovery.ActionKind
		outlived recovery.ActionKind // for a worker that dies before it has resent everything to a restored shard
		on       bool                // workers may continue while a shard is unavailable
	}{
		{"none", 1, acked, nothing, initial, 0, anew, anew, resume, resume, false},
		{"checkpoint:20", 1, acked, standing, whole, 0, back, back, back, resume, false},
		{"checkpoint:20,async", 1, acked, behind, whole, 0, back, back, back, resume, false},
		{"checkpoint:auto", 1, acked, standing, whole, 0, back, back, back, resume, false},
		{"resend:20", 1, saved, behind, whole, 0, restored, back, back, back, true},
		{"resend", 1, saved, behind, whole, 0, restored, back, back, back, true},
		{"resend:20,partial", 1, saved, behind, whole, 0, restored, count, count, count, true},
		{"resend:auto,partial", 1, saved, behind, whole, 0, restored, count, count, count, true},
		{"chain:2", 2, acked, nothing, whole, 0, fail, fail, fail, resume, true},
		{"chain:3,async", 3, acked, nothing, head, 0, fail, fail, resume, resume, true},
		{"chain:3,every:5", 3, acked, nothing, head, 5, fail, fail, resume, resume, true},
		{"chain:2,checkpoint:20", 2, acked, standing, whole, 0, back, back, back, resume, true},
		{"chain:2,checkpoint:auto,async", 2, acked, behind, whole, 0, back, back, back, resume, true},
		{"stateless", 1, logged, nothing, whole, 0, replay, replay, fail, resume, true},
	} {
		s := recovery.Of(parse(t, c.name))
		want := recovery.Traits{
			Copies: c.copies, Safe: c.safe, SaveMode: c.form, RestartsWith: c.begins, Period: c.period,
			EarlyAck: c.begins == head, ServesIndependently: c.name == "none",
			Timed:   strings.Contains(c.name, "auto") || c.name == "resend",
			Partial: strings.Contains(c.name, "partial"),
		}
		if got := s.Traits(); got != want {
			t.Errorf("%s: %+v, want %+v", c.name, got, want)
		}
		for what, f := range map[string]struct {
			got  recovery.Action
			want recovery.ActionKind
		}{
			"orphaned": {s.OnLostShards(recovery.Loss{Shards: 3, UnretainedSlot: -1}), c.orphaned},
			"unkept":   {s.OnLostShards(recovery.Loss{Shards: 3, UnretainedSlot: 1}), c.unkept},
			"unkept 0": {s.OnLostShards(recovery.Loss{Shards: 3, UnretainedSlot: 0}), c.unkept}, // slot 0 also counts
			"halved":   {s.OnTornClock(), c.halved},
			"outlived": {s.OnWorkerDeath(recovery.Death{Slot: 1, Needed: true}), c.outlived},
			"repeated": {s.OnWorkerDeath(recovery.Death{Slot: 1, Needed: true, Repeats: true}), repeated[want.Partial]},
			"unneeded": {s.OnWorkerDeath(recovery.Death{Slot: 1}), resume},
		} {
			if f.got.Kind != f.want || f.want == fail && f.got.Why == "" || strings.Contains(f.got.Why, "%!") {
				t.Errorf("%s, %s: %+v, want kind %d", c.name, what, f.got, f.want)
			}
		}
		if err := s.CheckContinue(); (err == nil) != c.on || err != nil && !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%s: may workers continue while a shard is unavailable: %v", c.name, err)
		}
	}
}

// TestPublishing checks that the answer waits while a checkpoint is being published, because it is unknown to which
// checkpoint a shard returns.
func TestPublishing(t *testing.T) {
	for _, name := range []string{"resend", "resend:5,partial"} {
		f := recovery.Of(parse(t, name)).OnLostShards(recovery.Loss{Shards: 1, UnretainedSlot: 1, Publishing: true})
		if f.Kind != recovery.Wait {
			t.Errorf("%s, while a checkpoint is being published: %+v", name, f)
		}
	}
}

// TestMayLose checks which strategies may lose updates permanently.
func TestMayLose(t *testing.T) {
	for name, may := range map[string]bool{
		"none": true, "checkpoint:20": false, "resend": false, "resend:20,partial": true, "chain:2": false,
		"chain:2,async": true, "chain:2,every:5": true, "stateless": false,
	} {
		if recovery.Of(parse(t, name)).Traits().MayLoseUpdates() != may {
			t.Errorf("%s may lose updates: %t", name, !may)
		}
	}
}

func TestAfter(t *testing.T) {
	for _, c := range []struct {
		every, clock, want perdure.Clock
	}{{20, 0, 20}, {20, 1, 20}, {20, 19, 20}, {20, 20, 40}, {20, 21, 40}, {1, 0, 1}, {1, 7, 8}} {
		if got := (recovery.Schedule{Every: c.every}).After(c.clock); got != c.want {
			t.Errorf("every %d: the first cut after clock %d is %d, want %d", c.every, c.clock, got, c.want)
		}
	}
	for s, want := range map[string]perdure.Clock{
		"none": -1, "chain:2": -1, "chain:2,async": -1, "chain:2,every:3": -1, "chain:2,checkpoint:3": 6, "resend:4": 8,
		"checkpoint:auto": -1, "resend:auto": -1, "chain:2,checkpoint:auto,async": -1, "stateless": -1,
	} {
		if got := recovery.ScheduleOf(&perdure.JobSpec{Recovery: parse(t, s)}).After(5); got != want {
			t.Errorf("%s: the first cut after clock 5 is %d, want %d", s, got, want)
		}
	}
}

// TestScheduleByLooking compares a schedule's answers with a search clock by clock.
func TestScheduleByLooking(t *testing.T) {
	const most = 12
	for n := range 4 * most * most {
		s := recovery.Schedule{
			Every: perdure.Clock(n % 4), Named: perdure.Clock(n / 4 % most),
			End: perdure.Clock(n / 4 / most),
		}
		regular := func(c perdure.Clock) bool { return s.Every > 0 && c%s.Every == 0 }
		first := func(from perdure.Clock, is func(c perdure.Clock) bool) perdure.Clock {
			for c := from; c < 3*most; c++ {
				if is(c) {
					return c
				}
			}
			return -1
		}
		for c := range perdure.Clock(most) {
			if got, want := s.Has(c), c > 0 && (regular(c) || c == s.Named); got != want {
				t.Fatalf("%+v has a cut of clock %d: %t", s, c, got)
			}
			if got, want := s.From(c), first(max(1, c), s.Has); got != want {
				t.Fatalf("%+v: the first cut from clock %d on is %d, want %d", s, c, got, want)
			}
			for left := range c + 1 {
				want := first(c, func(at perdure.Clock) bool {
					return at > c && regular(at) || at > left && (at == s.Named || at == s.End)
				})
				if got := s.Next(recovery.Progress{MinClock: c, Left: left}); got != want {
					t.Fatalf("%+v at clock %d, past cut %d: the next cut is %d, want %d", s, c, left, got, want)
				}
			}
		}
	}
}

// TestCheck checks that Check rejects what the strategy does not allow, and returns the errors of the job itself.
func TestCheck(t *testing.T) {
	job := perdure.JobSpec{
		ID: "test", Slots: 1, Servers: 1, Shards: 1, Consistency: perdure.Consistency{Kind: perdure.ASP},
		Recovery: parse(t, "checkpoint:5"),
	}
	if err := recovery.Check(&job); err != nil {
		t.Error(err)
	}
	job.OnOutage = perdure.OnOutage{Continue: true, Clocks: 1}
	if err := recovery.Check(&job); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "roll back") {
		t.Error(err)
	}
	if job.Slots = 0; !errors.Is(recovery.Check(&job), perdure.ErrUsage) {
		t.Error("a job without workers")
	}
}

// TestMayResume checks that a run can be resumed under strategies that store something durably, and that the errors of
// the others name such strategies.
func TestMayResume(t *testing.T) {
	for name, may := range map[string]bool{
		"none": false, "checkpoint:20": true, "checkpoint:auto": true, "resend": true, "chain:2": false,
		"chain:3,every:5": false, "chain:2,checkpoint:20": true, "stateless": true, "scar:20,1/8,round": true,
	} {
		s := recovery.Of(parse(t, name))
		err := s.CheckResume()
		if (err == nil) != may || may != (s.Traits().SavesAny() || s.Traits().UsesLog()) || err != nil &&
			(!strings.HasPrefix(err.Error(), "a run with recovery "+name+" keeps no checkpoints") ||
				!strings.Contains(err.Error(), "resend:C")) {
			t.Errorf("%s: may a later run resume it: %v", name, err)
		}
	}
}
