package replica

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// clock makes the first slot do a clock, and returns the round that starts then, or nil.
func (b *bench) clock(c perdure.Clock) *Save {
	b.update(0, c, perdure.RowID(c)%4)
	b.settle()
	defer b.Effects().Clear()
	if len(b.Effects().Saves) == 0 {
		return nil
	}
	sv := b.Effects().Saves[0]
	return &sv
}

func file(name string) protocol.Segment { return protocol.Segment{File: name, Bytes: 100} }

// TestRoundsAreDue: the k-th round is due at the first MinClock ≥ k·R·C. Rounds that become due while one is written
// are merged into one, which follows it. Rows that could not be written go into a later round.
func TestRoundsAreDue(t *testing.T) {
	b := newBench(t, "asp", "scar:5,1/2,round", 1) // at 2.5, 5, 7.5, 10
	var at []perdure.Clock
	for c := range perdure.Clock(10) {
		if sv := b.clock(c); sv != nil {
			at = append(at, sv.Cut)
			if sv.Rows == nil || sv.Image.Applied[0] != c+1 || sv.Image.Seq != uint64(c+1) {
				t.Errorf("at clock %d: %+v", c+1, sv)
			}
			b.State.RecordRowsWritten(sv, file("a"))
		}
	}
	if want := []perdure.Clock{3, 5, 8, 10}; len(at) != 4 || at[0] != want[0] || at[1] != want[1] || at[2] != want[2] ||
		at[3] != want[3] {
		t.Errorf("rounds at clocks %v, want %v", at, want)
	}

	b = newBench(t, "asp", "scar:2,1,round", 1) // at 2, 4, 6
	if b.clock(0) != nil {
		t.Error("a round started before the first was due")
	}
	first := b.clock(1)
	for c := perdure.Clock(2); c < 6; c++ {
		if sv := b.clock(c); sv != nil {
			t.Errorf("another round at clock %d while the first is being written", sv.Cut)
		}
	}
	b.State.RecordRowsNotWritten(first)
	late := b.clock(6)
	if late == nil || late.Cut != 7 {
		t.Fatalf("the merged rounds: %+v", late)
	}
	b.State.RecordRowsWritten(late, file("b"))
	if sv := b.clock(7); sv == nil || sv.Cut != 8 {
		t.Errorf("a round before clock 8, where the next one is due: %+v", sv)
	}
}

// TestRoundsOfWhoTakesOver: a head that does not know which rows were saved saves all rows. A replica that is not the
// head saves nothing. A shard that has saved nothing reports no segments.
func TestRoundsOfWhoTakesOver(t *testing.T) {
	b := newBench(t, "asp", "scar:4,1/4,round", 1) // at 1, 2, 3
	if sv := b.clock(0); sv == nil || sv.Rows.Bytes >= 4*8 {
		t.Fatalf("the first round of a new shard: %+v", sv)
	} else if b.State.rounds.segments(0) != nil {
		t.Error("it reports a file that is not written")
	} else {
		b.State.RecordRowsWritten(sv, file("a"))
	}
	if got := b.State.rounds.segments(0); len(got) != 1 || got[0].File != "a" {
		t.Errorf("it reports %+v", got)
	}
	b.State.rounds.forget() // as InstallSnapshot does
	b.SetView(&b.view, Role{Reads: true}, false)
	if sv := b.clock(1); sv != nil {
		t.Errorf("a replica that is not the head saves %+v", sv)
	}
	b.SetView(&b.view, Role{Head: true, Reads: true}, false)
	sv := b.clock(2)
	if sv == nil {
		t.Fatal("the new head saves nothing")
	}
	rows := 0
	for _, run := range sv.Rows.Runs[0] {
		rows += run.Rows
	}
	if rows != 4 {
		t.Errorf("the new head saves %d of 4 rows", rows)
	}
}

// TestRoundOfBefore: the outcome of a round that started with an earlier content of the shard changes nothing, and no
// later round waits for it.
func TestRoundOfBefore(t *testing.T) {
	for _, written := range []bool{true, false} {
		b := newBench(t, "asp", "scar:1,1,round", 1)
		before := b.clock(0)
		b.State.rounds.forget()
		now := b.clock(1)
		if before == nil || now == nil {
			t.Fatalf("rounds %v and %v", before, now)
		}
		if written {
			b.State.RecordRowsWritten(before, file("before"))
		} else {
			b.State.RecordRowsNotWritten(before)
		}
		if !b.State.rounds.busy || b.State.rounds.segments(0) != nil {
			t.Errorf("written %t: it reports %+v", written, b.State.rounds.segments(0))
		}
		b.State.RecordRowsWritten(now, file("now"))
		if got := b.State.rounds.segments(0); len(got) != 1 || got[0].File != "now" || len(got[0].Base) > 0 {
			t.Errorf("written %t: it reports %+v", written, got)
		}
	}
}

// TestRoundOfNothing: if rounds are not scheduled by clocks, a round that has nothing to save is not tried again at
// each clock. The next round waits until it is allowed.
func TestRoundOfNothing(t *testing.T) {
	for _, timed := range []bool{true, false} {
		recovery := "scar:4,1/4,priority"
		if timed {
			recovery = "scar:auto,1/4,priority"
		}
		b := newBench(t, "asp", recovery, 1)
		b.State.rounds.forget()
		all := b.clock(0) // all rows, whatever the share: later rounds make up for it
		if all == nil {
			t.Fatal("the first round saves nothing")
		}
		b.State.RecordRowsWritten(all, file("all"))
		b.State.AllowRound()
		for c := perdure.Clock(1); c < 3; c++ {
			calm := timed && c == 1
			b.update(0, c, 1)
			b.settle()
			if fx := b.Effects(); fx.NothingToSave != calm || len(fx.Saves) > 0 {
				t.Fatalf("timed %t, clock %d: %+v", timed, c, fx)
			}
			b.Effects().Clear()
		}
		for c := perdure.Clock(3); ; c++ {
			if c > 20 {
				t.Fatalf("timed %t: later rounds never resume after the full one", timed)
			}
			b.State.AllowRound()
			if b.clock(c) != nil {
				break
			}
		}
	}
}

// TestLastRound: when the job is about to end, the shard saves all rows once more at the named clock, with no later
// updates. While an earlier round is written, the shard is paused there. Nothing is saved after the final round. If it
// could not be written, the shard reports it as missed, and saves all rows at the next named clock.
func TestLastRound(t *testing.T) {
	b := newBench(t, "asp", "scar:4,1/4,round", 1) // at 1, 2, 3
	b.State.RecordRowsWritten(b.clock(0), file("a"))
	b.step(wire.Frame{Header: wire.Header{Kind: wire.KindCut, Slot: perdure.NoSlot, Clock: 3}})
	busy := b.clock(1)
	if busy == nil || busy.Cut != 2 {
		t.Fatalf("the round before the final one: %+v", busy)
	}
	for c := perdure.Clock(2); c < 5; c++ {
		if sv := b.clock(c); sv != nil || b.State.MinClock() != 3 {
			t.Fatalf("while a round is being written: %+v at clock %d", sv, b.State.MinClock())
		}
	}
	b.State.RecordRowsWritten(busy, file("b"))
	b.settle()
	saves := b.Effects().Saves
	if len(saves) != 1 || saves[0].Cut != 3 || saves[0].Image.Applied[0] != 3 || saves[0].Image.Seq != 3 ||
		saves[0].Rows.Bytes != 4*4 {
		t.Fatalf("the final round is %+v of %+v", saves[0].Rows, saves[0].Image)
	}
	last := saves[0]
	b.Effects().Clear()
	if got := b.State.rounds.segments(3); b.State.MinClock() != 5 || got != nil {
		t.Errorf("after the final round the shard is at clock %d and reports %v", b.State.MinClock(), got)
	}
	if b.missed() {
		t.Error("the final round is reported as missed")
	}
	b.State.RecordRowsNotWritten(&last)
	if !b.missed() {
		t.Error("a final round that could not be written is not reported as missed")
	}
	b.step(wire.Frame{Header: wire.Header{Kind: wire.KindCut, Slot: perdure.NoSlot, Clock: 7}})
	if sv := b.clock(5); sv != nil { // the earlier full round makes up for this one
		b.State.RecordRowsWritten(sv, file("before"))
	}
	again := b.clock(6)
	if again == nil || again.Cut != 7 || again.Image.Applied[0] != 7 || again.Rows.Bytes != 4*4 || b.missed() {
		t.Fatalf("after a failed final round: %+v", again)
	}
	b.State.RecordRowsWritten(again, file("c"))
	for c := perdure.Clock(7); c < 12; c++ {
		if sv := b.clock(c); sv != nil {
			t.Fatalf("after the final round: %+v", sv)
		}
	}
	got := b.State.rounds.segments(7)
	if len(got) != 1 || got[0].File != "c" || len(got[0].Base) > 0 {
		t.Errorf("it reports %+v", got)
	}
	b.State.cuts.setNamed(20, b.State.intake) // another shard has missed 7
	for c := perdure.Clock(12); c < 19; c++ {
		if sv := b.clock(c); sv != nil {
			t.Fatalf("between two final rounds: %+v", sv)
		}
	}
	if sv := b.clock(19); sv == nil || sv.Cut != 20 || sv.Rows.Bytes != 4*4 || b.missed() {
		t.Errorf("at the next named clock: %+v", sv)
	}
}

// missed returns whether the replica's status reports a missed round.
func (b *bench) missed() bool {
	var st protocol.ShardStatus
	b.Status(&b.view, &st)
	return st.Cuts.Missed
}

// TestRoundOfTheLastClock: if a round of some rows was taken at a clock that is named only later, it is not reported as
// the final round, which follows.
func TestRoundOfTheLastClock(t *testing.T) {
	b := newBench(t, "asp", "scar:4,1/4,round", 1) // at 1, 2, 3
	some := b.clock(0)
	b.State.RecordRowsWritten(some, protocol.Segment{Cut: some.Cut, File: "some", Bytes: 100})
	sent := func() []protocol.Segment {
		var st protocol.ShardStatus
		b.Status(&b.view, &st)
		return st.Segments
	}
	if got := sent(); len(got) != 1 || got[0].Cut != 1 {
		t.Fatalf("before a clock is named it reports %+v", got)
	}
	b.State.cuts.setNamed(1, b.State.intake)
	if got := sent(); got != nil {
		t.Errorf("after a partial round at the named clock it reports %+v", got)
	}
	b.ApplyAll()
	saves := b.Effects().Saves
	if len(saves) != 1 || saves[0].Cut != 1 || saves[0].Rows.Bytes != 4*4 {
		t.Fatalf("at the named clock it saves %+v", saves)
	}
	b.State.RecordRowsWritten(&saves[0], protocol.Segment{Cut: 1, File: "all", Bytes: 400})
	if got := sent(); len(got) != 1 || got[0].File != "all" {
		t.Errorf("after the final round it reports %+v", got)
	}
}

// ofJob gives the job the model of its table.
func ofJob(s *Settings, spec *perdure.TableSpec) { s.Job.Consistency = spec.Consistency }

// TestRoundsOfDistantSlots: under asp, rounds are due although a slot stands: after so many clocks of each slot in the
// mean. Under a bound they wait for its clocks.
func TestRoundsOfDistantSlots(t *testing.T) {
	for model, want := range map[string]int{"asp": 3, "ssp:99": 0} {
		b, n := newBench(t, model, "scar:2,1,round", 2, ofJob), 0
		for c := range perdure.Clock(12) {
			if sv := b.clock(c); sv != nil {
				n++
				if sv.Image.Applied[0] != 4*perdure.Clock(n) {
					t.Errorf("%s: round %d after clock %d of the slot that works", model, n, c)
				}
				b.State.RecordRowsWritten(sv, file("a"))
			}
		}
		if n != want {
			t.Errorf("%s: %d rounds while one of two slots does 12 clocks, want %d", model, n, want)
		}
	}
}
