package replica

import (
	"fmt"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
)

// This file tests the decisions of a replica when it steps, settles or answers a query. Each case is a few calls and
// one comparison.

// fact steps an entry that the head derives from the view.
func (b *bench) fact(kind wire.Kind, slot perdure.Slot, in perdure.Incarnation, clock perdure.Clock, says []byte) {
	b.step(wire.Frame{
		Header:  wire.Header{Kind: kind, Slot: slot, Incarnation: in, Clock: clock},
		Payload: says,
	})
}

// renew starts another epoch of the shard, with this replica as head.
func (b *bench) renew() {
	b.SetView(&b.view, b.role, true)
	b.ApplyView()
}

// opens makes a slot open the shard again after it has ended a number of clocks.
func (b *bench) opens(slot perdure.Slot, ended perdure.Clock) {
	b.Open(Open{Reader: b.readers[slot], Pos: b.pos, EndedClocks: ended})
	b.AnswerOpens(b.pos)
}

// stand is a test of one decision: its setup, its calls and the expected result.
type stand struct {
	name, model, recovery string
	slots                 int
	run                   func(b *bench) any
	want                  any
}

func (s *stand) check(t *testing.T) {
	t.Helper()
	b := newBench(t, s.model, s.recovery, s.slots)
	if got := fmt.Sprint(s.run(b)); got != fmt.Sprint(s.want) {
		t.Errorf("%s: %s, want %v", s.name, got, s.want)
	}
}

// Steps handle entries in the order in which they arrive.
func TestSteps(t *testing.T) {
	for _, s := range stepCases {
		s.check(t)
	}
}

var stepCases = []stand{
	{"a fact is applied after all earlier updates", "ssp:9", "none", 1, func(b *bench) any {
		b.update(0, 0, 1)
		b.fact(wire.KindFence, 0, 2, 0, nil)
		return b.State.Applied()
	}, "[1]"},
	{"after a fact all updates that it permits are applied", "ssp:9", "checkpoint:1", 1, func(b *bench) any {
		b.update(0, 0, 1)
		b.update(0, 1, 1)
		b.Settle()
		b.fact(wire.KindPassCut, perdure.NoSlot, 0, 0, wire.JSON(protocol.Segment{Cut: 1}))
		return b.State.Applied()
	}, "[2]"},
	{"the next slot's update finds the previous one's applied", "ssp:9", "none", 2, func(b *bench) any {
		b.update(0, 0, 1)
		b.update(1, 0, 1)
		return b.State.Applied()
	}, "[1 0]"},
	{"an update beyond a cut finds all earlier ones applied", "ssp:9", "resend:1", 1, func(b *bench) any {
		b.update(0, 0, 1)
		b.update(0, 1, 1)
		return b.State.Applied()
	}, "[1]"},
	{"a lost update counts, and changes no rows", "bsp", "none", 1, func(b *bench) any {
		b.fact(wire.KindFence, 0, 2, 0, nil)
		b.fact(wire.KindDecide, 0, 2, 1, nil)
		return []any{b.State.Applied(), b.State.Seq()}
	}, "[[1] 0]"},
	{"a later Prompt is not forgotten", "ssp:9", "none", 1, func(b *bench) any {
		b.Prompt(b.readers[0], 3)
		for clock := range perdure.Clock(2) {
			body := wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{Count: 1}, Values: []float32{1}})
			b.step(wire.Frame{Header: wire.Header{
				Kind: wire.KindUpdate, Clock: clock, Incarnation: 1, Parts: 1, Flags: wire.FlagAckNow,
			}, Body: body})
			b.Settle()
		}
		b.Effects().Clear()
		b.update(0, 2, 1)
		b.Settle()
		return b.effects()
	}, "ack 0"},
	{"a part of an update is not acknowledged", "bsp", "none", 1, func(b *bench) any {
		body := wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{Count: 1}, Values: []float32{1}})
		part := wire.Header{Kind: wire.KindUpdate, Incarnation: 1, Parts: 2}
		var acks []string
		for ; part.Part < 2; part.Part++ {
			b.step(wire.Frame{Header: part, Body: slices.Clone(body)})
			b.Settle()
			acks = append(acks, b.effects())
		}
		return acks
	}, "[later ack 0]"},
	{"a base of all slots is taken", "asp", "none", 2, func(b *bench) any {
		base := wire.State{Applied: []perdure.Clock{3, 4}}
		b.fact(wire.KindBase, perdure.NoSlot, 0, 0, wire.AppendState(nil, &base))
		return []any{b.State.Applied(), b.Effects().Fail}
	}, "[[3 4] <nil>]"},
	{"a base of too many slots stops the server", "asp", "none", 1, func(b *bench) any {
		base := wire.State{Applied: []perdure.Clock{3, 4}}
		b.fact(wire.KindBase, perdure.NoSlot, 0, 0, wire.AppendState(nil, &base))
		return b.Effects().Fail
	}, "shard 0: wire: malformed payload: the base has 2 slots, but the job has 1"},
	{"a slot that starts later has no saved state, others keep theirs", "asp", "none", 2, func(b *bench) any {
		b.State.rows.states = [][]byte{[]byte("a"), []byte("b")}
		intervals := []protocol.Interval{{From: 0}, {From: 5}, {From: 7}}
		b.fact(wire.KindMembership, perdure.NoSlot, 0, 2, wire.JSON(intervals))
		return fmt.Sprintf("%q", b.State.rows.states)
	}, `["a" "" ""]`},
	{"an update is heavy from its size on", "ssp:9", "none", 1, func(b *bench) any {
		var heavy []bool
		for _, size := range []int{largeUpdateBytes - 1, largeUpdateBytes} {
			b := newBench(b.t, "ssp:9", "none", 1)
			b.State.intake.Offer(consistency.UpdatePart{Incarnation: 1, Of: 1, Payload: make([]byte, size)})
			heavy = append(heavy, isNextLarge(b.State.intake, 0))
		}
		return heavy
	}, "[false true]"},
}

// Settle decides what to save, push and acknowledge.
func TestSettles(t *testing.T) {
	restored := func(b *bench) {
		b.view.Shards[0].Restored = true
		b.renew()
		b.turn()
	}
	for _, s := range []stand{
		{"a replica that does not serve saves nothing", "ssp:9", "checkpoint:1", 1, func(b *bench) any {
			b.SetView(&b.view, b.role, true)
			b.update(0, 0, 1)
			b.Settle()
			return len(b.Effects().Saves)
		}, 0},
		{"a replica that is not the head leaves a cut and writes nothing", "ssp:9", "resend:1", 1, func(b *bench) any {
			b.State.cuts.head = false
			b.update(0, 0, 1)
			b.Settle()
			return []any{b.State.cuts.left, len(b.Effects().Saves), b.State.cuts.writes}
		}, "[1 0 false]"},
		{"a restored shard pushes nothing until it is complete", "essp:0", "resend:1", 1, func(b *bench) any {
			restored(b)
			b.opens(0, 2)
			b.Effects().Clear()
			var advanced []bool
			for clock := range perdure.Clock(2) {
				b.update(0, clock, 1)
				b.Settle()
				advanced = append(advanced, b.Effects().Advanced)
				b.fact(wire.KindPassCut, perdure.NoSlot, 0, 0, wire.JSON(protocol.Segment{Cut: clock + 1}))
				b.Effects().Clear()
			}
			return advanced
		}, "[false true]"},
		{"it is not complete while it stands at a cut", "ssp:9", "checkpoint:1", 1, func(b *bench) any {
			restored(b)
			b.opens(0, 1)
			b.update(0, 0, 1)
			b.Settle()
			whole := []bool{b.resend.done}
			b.fact(wire.KindPassCut, perdure.NoSlot, 0, 0, wire.JSON(protocol.Segment{Cut: 1}))
			b.Settle()
			return append(whole, b.resend.done)
		}, "[false true]"},
		{"the other replicas are synced once a period", "ssp:9", "none", 1, func(b *bench) any {
			b.traits.Period, b.role.Periodic = 2, true
			var syncs []bool
			for clock := range perdure.Clock(5) {
				b.update(0, clock, 1)
				b.Settle()
				syncs = append(syncs, b.Effects().Sync)
				b.Effects().Clear()
			}
			return syncs
		}, "[false true false true false]"},
		{"only the head syncs others", "ssp:9", "none", 1, func(b *bench) any {
			b.traits.Period, b.role = 2, Role{Periodic: true}
			b.update(0, 0, 1)
			b.update(0, 1, 1)
			b.Settle()
			return b.Effects().Sync
		}, false},
		{"a save that was given up is retried", "ssp:9", "resend:1", 1, func(b *bench) any {
			b.MarkClean()
			b.AbandonSave()
			return b.Dirty()
		}, true},
	} {
		s.check(t)
	}
}

// TestSyncsOfDistantSlots checks that under asp a slot that stands does not stop the syncs of the other replicas.
func TestSyncsOfDistantSlots(t *testing.T) {
	b := newBench(t, "asp", "chain:2,every:2", 2, ofJob)
	b.role.Periodic = true
	for clock := range perdure.Clock(8) {
		b.update(0, clock, 1)
		b.Settle()
		if want := clock%4 == 3; b.Effects().Sync != want {
			t.Errorf("after clock %d of one of two slots: syncs %v", clock, !want)
		}
		b.Effects().Clear()
	}
}

// Readers are affected by a new epoch, by a view, and when they open the shard.
func TestReaders(t *testing.T) {
	for _, s := range readerCases {
		s.check(t)
	}
}

var readerCases = []stand{
	{"a read that a restored shard withholds is answered eventually", "ssp:9", "resend:9", 1, func(b *bench) any {
		b.read(0, 1, 0, false)
		b.update(0, 0, 1)
		b.Settle() // reads were tried at clock 1, with nothing withheld
		b.Effects().Clear()
		b.view.Shards[0].Restored = true
		b.renew()
		b.turn() // rows are withheld again, while no read waits
		b.opens(0, 1)
		now := b.read(0, 1, 0, false)
		b.update(0, 0, 1) // resent; MinClock does not move
		b.Settle()
		return []any{now, b.resend.done, len(b.Effects().Answers), b.Readers.Waiting()}
	}, "[false true 1 0]"},
	{"the clocks that a slot has ended are awaited until the next epoch", "ssp:9", "none", 1, func(b *bench) any {
		b.opens(0, 5)
		missing := []bool{b.IsBehind()}
		b.SetView(&b.view, b.role, true)
		return append(missing, b.IsBehind())
	}, "[true false]"},
	{"and until another process takes the slot", "ssp:9", "none", 1, func(b *bench) any {
		b.opens(0, 5)
		b.ApplyView()
		missing := []bool{b.IsBehind()}
		b.view.Slots[0].Incarnation++
		b.ApplyView()
		return append(missing, b.IsBehind())
	}, "[true false]"},
	{"a replica that does not serve answers no Open", "ssp:9", "none", 1, func(b *bench) any {
		b.SetView(&b.view, b.role, true)
		b.opens(0, 0)
		return len(b.Effects().Opened)
	}, 0},
	{"a replica that starts to serve sends a status", "ssp:9", "none", 1, func(b *bench) any {
		b.SetView(&b.view, b.role, true)
		b.Effects().Clear()
		b.Propose()
		return b.Effects().ReportStatus
	}, true},
	{"a reader whose slot has another process is not answered", "ssp:9", "none", 1, func(b *bench) any {
		b.fact(wire.KindFence, 0, 2, 0, nil)
		b.opens(0, 0)
		return len(b.Effects().Opened)
	}, 0},
	{"nor is anything pushed to it", "essp:0", "none", 1, func(b *bench) any {
		_, flow := b.Readers.Flow(0)
		b.view.Slots[0].Incarnation++
		b.ApplyView()
		to, now := b.Readers.Flow(0)
		return []bool{to == nil, now != flow}
	}, "[true true]"},
	{"a reader of another replica is pushed nothing here", "essp:0", "none", 1, func(b *bench) any {
		b.Open(Open{Reader: b.readers[0], Pos: b.pos, Writes: true})
		b.AnswerOpens(b.pos)
		to, _ := b.Readers.Flow(0)
		return to == nil
	}, true},
	{"a round with changes during it is followed by another", "vap:1", "none", 2, func(b *bench) any {
		b.read(0, 0, 0, true)
		b.update(1, 0, 0)
		b.Settle()
		b.Readers.StartRound(0, &b.State)
		_, _, more := b.Readers.EndRound(0, false)
		b.update(1, 1, 0)
		b.Settle()
		_, _, due := b.Readers.EndRound(0, true)
		b.Readers.StartRound(0, &b.State)
		_, _, last := b.Readers.EndRound(0, true)
		return []bool{more, due, last}
	}, "[true true false]"},
	{
		"rows cached from a former life count until the slot opens the shard", "vap:1", "none", 2,
		func(b *bench) any {
			b.renew()
			b.turn()
			b.opens(0, 0)
			b.update(0, 0, 1)
			b.Settle()
			seen := []perdure.Clock{b.Counts(b.readers[0]).Seen}
			b.opens(1, 0)
			return append(seen, b.Counts(b.readers[0]).Seen)
		}, "[0 1]",
	},
	{"a reader that opened it before the first table has nothing cached", "ssp:9", "none", 2, func(b *bench) any {
		b.renewed = true
		spec := b.view.Tables[0]
		spec.Name, spec.Consistency = "v", perdure.Consistency{Kind: perdure.VAP, Bound: 1}
		b.fact(wire.KindAddTable, perdure.NoSlot, 0, 1, wire.JSON(spec))
		b.update(0, 0, 1)
		b.Settle()
		return b.Counts(b.readers[0]).Seen
	}, 1},
	{
		"a read of rows that do not exist fails even if it would have to wait", "ssp:0", "none", 1,
		func(b *bench) any {
			now, err := b.Read(&Read{Reader: b.readers[0], MinClock: 5, Rows: wire.Rows{First: 9, Count: 1}})
			return []bool{now, err != nil}
		}, "[false true]",
	},
	{
		"a scaled update is also pushed to its sender", "essp:9", "none", 1, func(b *bench) any {
			b.job.StaleScale = perdure.ScaleInverse
			b.State.updateTableSettings()
			b.read(0, 0, 1, true)
			var pushed []int
			for clock := range perdure.Clock(2) { // the second one is based on rows of MinClock 0
				body := wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{First: 1, Count: 1}, Values: []float32{1}})
				body = wire.AppendBasisBlock(body, 0, 0)
				b.step(wire.Frame{
					Header: wire.Header{Kind: wire.KindUpdate, Clock: clock, Incarnation: 1, Parts: 1}, Body: body,
				})
				b.Settle()
				b.Readers.StartRound(0, &b.State)
				rows, _, _ := b.Readers.NextRows(0, 1<<10, &b.State)
				pushed = append(pushed, rows.Count)
				b.Readers.EndRound(0, true)
			}
			return pushed
		}, "[0 1]",
	},
	{
		"the result of a rule that does not just add is also pushed to the sender", "essp:0", "none", 1,
		func(b *bench) any {
			var pushed []int
			for _, decay := range []float32{0, 0.5} {
				b := newBench(b.t, "essp:0", "none", 1)
				b.State.rows.parts[0].Spec.Rule.Decay = float64(decay)
				b.read(0, 0, 1, true)
				b.update(0, 0, 1)
				b.Settle()
				b.Readers.StartRound(0, &b.State)
				rows, _, _ := b.Readers.NextRows(0, 1<<10, &b.State)
				pushed = append(pushed, rows.Count)
			}
			return pushed
		}, "[0 1]",
	},
}

// A slot has a process that may read because the view says so, or because the process has opened the shard.
func TestSpeaks(t *testing.T) {
	for _, c := range []struct {
		name   string
		slot   protocol.SlotView
		opened perdure.Incarnation
		want   bool
	}{
		{"no process yet", protocol.SlotView{Settled: true}, 0, false},
		{"a process", protocol.SlotView{Incarnation: 2, Settled: true}, 0, true},
		{"it is not settled", protocol.SlotView{Incarnation: 2}, 1, false},
		{"not settled, but it has opened the shard", protocol.SlotView{Incarnation: 2}, 2, true},
		{"the view is late", protocol.SlotView{Incarnation: 2}, 3, true},
		{"it has left", protocol.SlotView{Incarnation: 2, Settled: true, Left: true}, 2, false},
	} {
		a := ReaderSet{view: &protocol.View{Slots: []protocol.SlotView{c.slot}}}
		a.grow(&State{intake: consistency.NewSequencer(perdure.ClockOneStep, []perdure.Clock{0}, mutation.Set{})})
		a.slots[0].opened = c.opened
		if got := a.hasProcess(0); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Slots may have cached rows of a former life of the shard if it continues, was lost, or was restored. If it was
// rebuilt from its log, this cannot be ruled out.
func TestFromBefore(t *testing.T) {
	traits := func(kind perdure.RecoveryKind) recovery.Traits {
		return recovery.Of(perdure.Recovery{Kind: kind}).Traits()
	}
	for name, c := range map[string]struct {
		renewed bool
		mine    protocol.ShardView
		kind    perdure.RecoveryKind
		want    bool
	}{
		"first life":           {kind: perdure.RecoverNone},
		"another epoch":        {renewed: true, kind: perdure.RecoverNone, want: true},
		"lost":                 {mine: protocol.ShardView{Lost: true}, kind: perdure.RecoverNone, want: true},
		"restored":             {mine: protocol.ShardView{Restored: true}, kind: perdure.RecoverResend, want: true},
		"rebuilt from its log": {kind: perdure.RecoverStateless, want: true},
		"held by a chain":      {kind: perdure.RecoverChain},
		"of a checkpoint":      {kind: perdure.RecoverCheckpoint},
		"with resend":          {kind: perdure.RecoverResend},
	} {
		v := protocol.View{Shards: []protocol.ShardView{c.mine}}
		r := Replica{renewed: c.renewed, traits: traits(c.kind), view: &v}
		if got := r.fromBefore(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Status reports slots that are not decided yet, and a lost shard that is not served yet.
func TestStatus(t *testing.T) {
	b := newBench(t, "ssp:9", "none", 2)
	b.update(0, 0, 1)
	b.Settle()
	b.fact(wire.KindFence, 0, 2, 0, nil)
	b.fact(wire.KindDecide, 0, 2, 1, nil)
	for name, c := range map[string]struct {
		slot   protocol.SlotView
		fences int
		done   bool
	}{
		"settled":         {protocol.SlotView{Incarnation: 2, Settled: true}, 0, false},
		"not decided yet": {protocol.SlotView{Incarnation: 2}, 1, false},
		"decided":         {protocol.SlotView{Incarnation: 2, Decided: true, Start: 1}, 1, true},
		"decided anew":    {protocol.SlotView{Incarnation: 3, Decided: true, Start: 1}, 1, false},
	} {
		b.view.Slots[0] = c.slot
		var st protocol.ShardStatus
		b.Status(&b.view, &st)
		if len(st.Fences) != c.fences || c.fences > 0 && st.Fences[0].Carried != c.done {
			t.Errorf("%s: fences %+v, want %d, carried out %v", name, st.Fences, c.fences, c.done)
		}
	}
	for _, c := range []struct{ head, lost, tells bool }{
		{true, true, true}, {false, true, false}, {true, false, false},
	} {
		b.view.Shards[0].Lost = c.lost
		b.SetView(&b.view, Role{Head: c.head}, true)
		var st protocol.ShardStatus
		if b.Status(&b.view, &st); st.Ready || slices.Equal(st.Applied, []perdure.Clock{1, 0}) != c.tells {
			t.Errorf("%+v: it reports %+v", c, st)
		}
	}
}
