package outbox

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// This file tests decisions that the naive twin cannot distinguish from slightly wrong ones: limits that affect only
// memory and time, and cases that are rare in its courses.

// asked returns the box of a job with one shard, at clock 5, and the shard.
func asked(t *testing.T, model, how string, limits Limits) (*Outbox, *Shard) {
	t.Helper()
	job := perdure.JobSpec{Slots: 1, Shards: 1}
	var err error
	if job.Consistency, err = perdure.ParseConsistency(model); err != nil {
		t.Fatal(err)
	}
	if job.Recovery, err = perdure.ParseRecovery(how); err != nil {
		t.Fatal(err)
	}
	b := New(limits)
	b.Join(&job, 0)
	b.SetView(protocol.View{
		Revision: 1, Generation: 1, Shards: make([]protocol.ShardView, 1),
		Slots:  []protocol.SlotView{{Incarnation: 1, Decided: true, Settled: true}},
		Tables: []perdure.TableSpec{addingTable(job.Consistency)},
	}, false)
	b.SetClock(5)
	return b, b.Shard(0)
}

func addingTable(model perdure.Consistency) perdure.TableSpec {
	return perdure.TableSpec{
		Name: "t", Rows: 4, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: model,
	}
}

func ofClock(clock perdure.Clock, phase Phase) *Update {
	return &Update{clock: clock, clocks: 1, weight: 1, bytes: 100, phase: phase}
}

// Updates that a shard may have from an earlier process, or that were acknowledged, are never part of a sum. So nothing
// is merged before it is known what an earlier process had done.
func TestMayMerge(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(s *Shard)
		want   bool
	}{
		{"everything is this process's", func(*Shard) {}, true},
		{"it is available", func(s *Shard) { s.unavailable = false }, false},
		{"never opened", func(s *Shard) { s.inheritedKnown = false }, false},
		{"inherited up to it", func(s *Shard) { s.inherited = 5 }, true},
		{"inherited beyond it", func(s *Shard) { s.inherited = 6 }, false},
		{"its head has it", func(s *Shard) { s.headApplied = 6 }, false},
		{"it was acknowledged", func(s *Shard) { s.counts.Applied = 6 }, false},
		{"a sum is not equivalent", func(s *Shard) { s.outbox.jobView.adds = false }, false},
	} {
		_, s := asked(t, "asp", "stateless", Limits{})
		s.unavailable, s.inheritedKnown = true, true
		c.change(s)
		if got := s.mayMerge(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// A sum is equivalent to two updates if rules add at a constant rate and no reader needs the clocks separately.
func TestMerges(t *testing.T) {
	for _, c := range []struct {
		name, model string
		change      func(spec *perdure.TableSpec)
		want        bool
	}{
		{"adds", "asp", func(*perdure.TableSpec) {}, true},
		{"two steps", "bsp", func(*perdure.TableSpec) {}, false},
		{"bounded by value", "vap:1", func(*perdure.TableSpec) {}, false},
		{"keeps state", "asp", func(s *perdure.TableSpec) { s.Rule.Kind = perdure.RuleAdam }, false},
		{"a decreasing rate", "asp", func(s *perdure.TableSpec) { s.Rule.Schedule = "sqrt" }, false},
		{"rows are evicted by their clock", "asp", func(s *perdure.TableSpec) { s.Evict = 9 }, false},
	} {
		b, _ := asked(t, c.model, "stateless", Limits{})
		c.change(&b.jobView.view.Tables[0])
		if got := b.jobView.merges(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Updates of an earlier process of the slot are not condensed with those of this one, because a restored shard may have
// some of them.
func TestCondensesOnlyItsOwn(t *testing.T) {
	for inherited := range perdure.Clock(3) {
		_, s := asked(t, "asp", "resend:9", Limits{})
		s.inherited = inherited
		if got, want := s.mergeIntoPrevious(ofClock(1, Sent), ofClock(2, Sent)), inherited <= 1; got != want {
			t.Errorf("clocks 1 and 2, inherited below %d: %v, want %v", inherited, got, want)
		}
	}
}

// An update that a server has applied after reading it in the log is kept until the log acknowledges it. Before that,
// it may still be queued for the log.
func TestKeepsUntilLogged(t *testing.T) {
	for _, logged := range []bool{false, true} {
		_, s := asked(t, "asp", "stateless", Limits{})
		u := ofClock(0, Sent)
		s.kept, u.logged = sequence{u}, logged
		s.Ack(protocol.Counts{Staged: 1, Ticked: 1, Applied: 1, Seen: 1})
		if (len(s.kept) == 0) != logged {
			t.Errorf("logged: %v, but %d updates are kept", logged, len(s.kept))
		}
	}
}

// Under vap, the updates of an earlier process of the slot are in transit, and possibly large, until all slots can see
// them. They are not added up with this process's updates.
func TestTransitOfAnEarlierProcess(t *testing.T) {
	for _, c := range []struct {
		name            string
		met             bool
		seen, inherited perdure.Clock
		may             bool
		inTransit       int // of clocks 3, 4 and 5
	}{
		{"not known yet", false, 0, 0, false, 3},
		{"some are still in transit", true, 3, 4, false, 2},
		{"all are seen", true, 4, 4, true, 2},
		{"and more", true, 5, 4, true, 1},
	} {
		b, s := asked(t, "vap:9", "checkpoint:9", Limits{})
		b.Table(0, b.jobView.view.Tables[0])
		s.kept = sequence{ofClock(3, Sent), ofClock(4, Sent), ofClock(5, Built)}
		s.inheritedKnown, s.counts.Seen, s.inherited = c.met, c.seen, c.inherited
		if may, n := b.MaySend(), len(s.inTransit()); may != c.may || n != c.inTransit {
			t.Errorf("%s: %v with %d in transit, want %v with %d", c.name, may, n, c.may, c.inTransit)
		}
	}
}

// A clock can end while fewer bytes than the window are in transit. Updates for an unavailable shard have their own
// limit, and so have updates that the log has and servers lack.
func TestWithin(t *testing.T) {
	for _, c := range []struct {
		name          string
		window        int64
		out           bool
		unacked       int64
		shown, outage int64
		want          bool
	}{
		{"nothing", 100, false, 0, 0, 1000, true},
		{"nothing, with a window of 0", 0, false, 0, 0, 1000, true},
		{"less than the window", 100, false, 99, 0, 1000, true},
		{"the window", 100, false, 100, 0, 1000, false},
		{"out: not in the window", 100, true, 100, 0, 1000, true},
		{"out: less than its own limit", 100, true, 999, 0, 1000, true},
		{"out: its own limit", 100, true, 1000, 0, 1000, false},
		{"out: the job's limit", 100, true, 1000, 0, 0, true},
		{"logged: less than its limit", 100, false, 0, maxLoggedBytes - 1, 1000, true},
		{"logged: its limit", 100, false, 0, maxLoggedBytes, 1000, false},
		{"logged, out: counts as queued", 100, true, 0, 1000, 1000, false},
	} {
		b, s := asked(t, "asp", "stateless", Limits{Window: c.window, Outage: c.outage})
		s.unavailable, s.unacked, b.unacked, s.loggedBytes = c.out, c.unacked, c.unacked, c.shown
		if got := b.WithinLimits(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// One more clock may be retained if the limit is not reached, if nothing is retained, or if other slots wait for this
// one at a cut.
func TestHasRoom(t *testing.T) {
	for _, c := range []struct {
		retained, limit int64
		named           perdure.Clock
		want            bool
	}{
		{99, 100, 0, true},
		{100, 100, 0, false},
		{0, 0, 0, true},
		{100, 100, 5, false}, // the slot is at clock 5: it has reached the cut
		{100, 100, 6, true},
	} {
		b, _ := asked(t, "asp", "resend:9", Limits{Retain: c.limit})
		b.retained, b.jobView.view.Named = c.retained, c.named
		if got := b.CanRetain(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// A shard that was behind is fed as much as the window allows beyond what it has applied, and at least one update.
func TestFeedKeepsTheWindow(t *testing.T) {
	for _, c := range []struct{ window, want int64 }{{50, 1}, {199, 1}, {200, 2}, {399, 3}, {400, 4}} {
		_, s := asked(t, "asp", "checkpoint:9", Limits{Window: c.window})
		for clock := range perdure.Clock(4) {
			u := ofClock(clock, Sent)
			u.parts = []partPayload{{}}
			s.kept = append(s.kept, u)
		}
		frames := s.NextFrames(wire.Header{}, nil)
		if int64(len(frames)) != c.want || s.HasUnsent() != (c.want < 4) {
			t.Errorf("a window of %d: %d updates fed, want %d (%d kept)", c.window, len(frames), c.want,
				len(s.kept))
		}
	}
}

// A shard should answer an update unless something holds it back: a cut after MinClock, the log, or that it has not
// been sent.
func TestOwes(t *testing.T) {
	for _, c := range []struct {
		name, how string
		clock     perdure.Clock
		phase     Phase
		applied   perdure.Clock
		want      bool
	}{
		{"sent", "checkpoint:4", 3, Sent, 3, true},
		{"applied", "checkpoint:4", 3, Sent, 4, false},
		{"not sent", "checkpoint:4", 3, Built, 3, false},
		{"from the next cut on", "checkpoint:4", 4, Sent, 4, false},
		{"not in the log", "stateless", 3, Sent, 3, false},
	} {
		_, s := asked(t, "asp", c.how, Limits{})
		s.kept, s.counts.Applied = sequence{ofClock(c.clock, c.phase)}, c.applied
		if got := s.OwesAnswer(3); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// A row that contains the current clock, made by an earlier process of the slot, does not get it again. Nor does it get
// the clocks that it contains from a merged update.
func TestAddToWhatContainsIt(t *testing.T) {
	for from, want := range map[perdure.Clock]float32{2: 1 + 10 + 100, 3: 1 + 10 + 100, 4: 1 + 10, 5: 1 + 10, 6: 1} {
		b, s := asked(t, "asp", "resend:9", Limits{})
		x := b.Table(0, b.jobView.view.Tables[0])
		x.Deltas(0).AddRun(0, 1, []float32{10})
		merged := ofClock(3, Sent) // clocks 3 and 4
		merged.clocks = 2
		merged.blocks = []block{{Block: wire.Block{Rows: wire.Rows{Count: 1}, Values: []float32{100}}}}
		s.kept = sequence{merged}
		row := []float32{1}
		b.ApplyTo(row, 0, 0, 0, 1, from)
		if row[0] != want {
			t.Errorf("a row with all clocks below %d becomes %v, want %v", from, row[0], want)
		}
	}
}

// An update that has not been sent is kept, even if an earlier process had made its clock. So is one that waits for
// vap.
func TestKeepsWhatHasNotLeft(t *testing.T) {
	for phase, want := range map[Phase]int{Open: 1, Built: 1, Sent: 0} {
		_, s := asked(t, "vap:1", "checkpoint:9", Limits{})
		s.kept = sequence{ofClock(5, phase)}
		s.Ack(protocol.Counts{Staged: 9, Ticked: 9, Applied: 9, Seen: 9})
		if len(s.kept) != want {
			t.Errorf("an update that is %v, with all clocks seen: %d kept, want %d", phase, len(s.kept), want)
		}
	}
}

// A head that has more clocks than this process has made, from an earlier one, is still sent this process's updates,
// and acknowledges them.
func TestResendToAheadOfIt(t *testing.T) {
	_, s := asked(t, "asp", "checkpoint:9", Limits{Window: 1 << 20})
	if _, err := s.Resend(protocol.Counts{Staged: 9, Ticked: 9, Applied: 9}, wire.Header{}, nil); err != nil {
		t.Fatal(err)
	}
	u := ofClock(5, Sent)
	u.parts = []partPayload{{}}
	s.kept = sequence{u}
	if frames := s.NextFrames(wire.Header{}, nil); len(frames) != 1 {
		t.Errorf("%d frames of clock 5 sent, want 1", len(frames))
	}
}

// A head that has an update is sent its tick alone; a head that lacks it is sent the tick with the update.
func TestResendsTicks(t *testing.T) {
	for staged, want := range map[perdure.Clock][]wire.Kind{5: {wire.KindUpdate}, 6: {wire.KindTick}} {
		b, s := asked(t, "bsp", "checkpoint:9", Limits{Window: 1 << 20})
		b.SetClock(6)
		u := ofClock(5, Ticked)
		u.parts = []partPayload{{}}
		s.kept = sequence{u}
		frames, err := s.Resend(protocol.Counts{Staged: staged, Ticked: 5, Applied: 5}, wire.Header{}, nil)
		if err != nil || len(frames) != len(want) || frames[0].Kind != want[0] {
			t.Errorf("%d clocks staged: %d frames, %v; want %v", staged, len(frames), err, want)
		}
	}
}

// An update is not added to an acknowledged one, which a shard may have.
func TestMergesNothingAcknowledged(t *testing.T) {
	for acked, want := range []int{1, 2, 2} {
		_, s := asked(t, "asp", "resend:9", Limits{})
		s.unavailable, s.inheritedKnown, s.acked = true, true, acked
		s.kept = sequence{ofClock(4, Sent), ofClock(5, Sent)}
		if s.merge(); len(s.kept) != want {
			t.Errorf("%d of 2 updates acknowledged: %d left, want %d", acked, len(s.kept), want)
		}
	}
}

// An older update is not condensed with one of fewer clocks, so each clock is added only a few times. Updates that the
// program waits for, or that cover too many clocks, are not held back from the log.
func TestCondensesAndHoldsWithinBounds(t *testing.T) {
	for older, want := range map[perdure.Clock]bool{1: true, 2: true, 3: false} {
		_, s := asked(t, "asp", "resend:9", Limits{})
		into, u := ofClock(2, Sent), ofClock(2+older, Sent)
		into.clocks, u.clocks = older, 2
		if got := s.mergeIntoPrevious(into, u); got != want {
			t.Errorf("%d clocks condensed with 2: %v", older, got)
		}
	}
	for name, c := range map[string]struct {
		change func(u *Update)
		want   bool
	}{
		"waits":              {func(*Update) {}, true},
		"the program awaits": {func(u *Update) { u.prompt = true }, false},
		"repeats a row":      {func(u *Update) { u.repeats = true }, false},
		"covers many clocks": {func(u *Update) { u.clocks = maxHeldClocks }, false},
		"was sent in part":   {func(u *Update) { u.sent = 1 }, false},
		"may be queued":      {func(u *Update) { u.again = true }, false},
	} {
		_, s := asked(t, "asp", "stateless", Limits{})
		s.unavailable, s.inheritedKnown = true, true
		u := ofClock(5, Sent)
		if c.change(u); s.holds(u) != c.want {
			t.Errorf("an update that %s: held back is %v", name, !c.want)
		}
	}
}

// If rows were Inc'd twice in a clock, no part of the next one is sent before it ends.
func TestStreamsAfterAClockWithoutRepeats(t *testing.T) {
	b, _ := asked(t, "asp", "checkpoint:9", Limits{})
	d := b.Table(0, b.jobView.view.Tables[0]).Deltas(0)
	for i, rows := range [][]int{{0, 1}, {0, 0}, {2, 3}, {1}} {
		if want := i != 2; d.streams != want {
			t.Errorf("clock %d: streams is %v, want %v", i, d.streams, want)
		}
		for _, row := range rows {
			d.AddRun(row, 1, []float32{1})
		}
		d.reset()
	}
}

// Memory that was needed since the last trim is kept, no matter which piece was taken.
func TestTrimKeepsWhatWasWanted(t *testing.T) {
	b, _ := asked(t, "asp", "checkpoint:9", Limits{Spare: 1 << 20})
	x := b.Table(0, b.jobView.view.Tables[0])
	for _, n := range []int{1, 2} {
		r := &Buffer{of: x, Values: make([]float32, n), users: 1}
		r.leave()
	}
	x.trim() // both are unused from here on
	wanted, _ := x.Buffer(1)
	if x.trim(); len(x.freeBuffers) != 1 {
		t.Errorf("%d rooms available, want the one after the room that was needed", len(x.freeBuffers))
	}
	wanted.users = 1
	wanted.leave()
	if x.trim(); len(x.freeBuffers) != 1 || x.freeBuffers[0] != wanted {
		t.Errorf("%d rooms available, want the one that was returned", len(x.freeBuffers))
	}
}

// The program's state is sent with one update: the next one.
func TestStateTravelsOnce(t *testing.T) {
	b, s := asked(t, "asp", "checkpoint:9", Limits{Window: 1 << 20})
	b.SaveState([]byte("state"))
	for clock, want := range []string{"state", ""} {
		if err := s.Fill(consistency.Origin{Basis: -1}); err != nil {
			t.Fatal(err)
		}
		b.Seal()
		b.Next()
		if got := string(s.kept[clock].state); got != want {
			t.Errorf("update of clock %d has state %q, want %q", 5+clock, got, want)
		}
	}
}

// A restored shard lacks what an earlier process had done. It accepts this process's updates, and vap waits for nothing
// else. Under other strategies, a replica that is opened again may merely lag.
func TestInheritedIsLost(t *testing.T) {
	for how, want := range map[string]perdure.Clock{"resend:9,partial": 2, "resend:9": 4} {
		_, s := asked(t, "vap:1", how, Limits{})
		s.Opened(protocol.Counts{Staged: 4, Ticked: 4, Applied: 4}, false)
		s.Opened(protocol.Counts{Staged: 2, Ticked: 2, Applied: 1}, true)
		if s.inherited != want {
			t.Errorf("%s: %d clocks inherited, want %d", how, s.inherited, want)
		}
	}
}

// Whatever allows a waiting clock to be sent also changes the number of transit changes: a waiting Clock checks the
// bound only then. A shard's restart may allow it although no count has risen.
func TestTransitChanges(t *testing.T) {
	counts := func(applied, seen perdure.Clock) protocol.Counts {
		return protocol.Counts{Staged: applied, Ticked: applied, Applied: applied, Seen: seen}
	}
	for _, c := range []struct {
		name    string
		change  func(s *Shard)
		changes bool
		may     bool
	}{
		{"nothing new", func(s *Shard) { s.Ack(counts(6, 4)) }, false, false},
		{"some are seen", func(s *Shard) { s.Ack(counts(6, 5)) }, true, false},
		{"all are seen", func(s *Shard) { s.Ack(counts(6, 6)) }, true, true},
		{"all are lost", func(s *Shard) { s.Opened(counts(4, 4), true) }, true, true},
		{"all are lost, and those that were seen", func(s *Shard) { s.Opened(counts(2, 2), true) }, true, true},
	} {
		b, s := asked(t, "vap:9", "resend:9,partial", Limits{})
		b.Table(0, b.jobView.view.Tables[0])
		s.kept = sequence{ofClock(4, Sent), ofClock(5, Built)}
		s.Opened(counts(6, 4), false)
		before := b.TransitChanges()
		if b.MaySend() {
			t.Fatal("inherited updates that not every slot can see are ignored")
		}
		c.change(s)
		if may, changes := b.MaySend(), b.TransitChanges() > before; may != c.may || changes != c.changes {
			t.Errorf("%s: may send: %v, want %v; changes reported: %v, want %v", c.name, may, c.may, changes, c.changes)
		}
	}
}
