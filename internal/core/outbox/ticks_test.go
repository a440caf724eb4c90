package outbox

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestAtomicTicks checks which clocks a worker ticks under atomic clocks: those that all shards have staged, without
// dividing an update. A shard is sent its ticks in order, and updates that it has not been sent yet carry them.
func TestAtomicTicks(t *testing.T) {
	job := perdure.JobSpec{Slots: 1, Shards: 2, AtomicClocks: true}
	job.Consistency.Kind = perdure.ASP
	b := New(Limits{Window: 1 << 20, Retain: 1 << 20})
	b.Join(&job, 0)
	b.SetView(protocol.View{
		Revision: 1, Generation: 1, Shards: make([]protocol.ShardView, 2),
		Slots:  []protocol.SlotView{{Incarnation: 2, Decided: true, Settled: true, Start: 5}},
		Tables: []perdure.TableSpec{addingTable(job.Consistency)},
	}, false)
	b.SetClock(5)
	b.Ticks().Start(5)
	at := func(staged, applied perdure.Clock) protocol.Counts {
		return protocol.Counts{Staged: staged, Ticked: applied, Applied: applied, Seen: applied}
	}
	first, second := b.Shard(0), b.Shard(1)
	check := func(what string, news bool, below perdure.Clock) {
		t.Helper()
		if got := b.Ticks().Advance(); got != news || b.ticks.below != below {
			t.Errorf("%s: news %t, ticked below %d; want %t, %d", what, got, b.ticks.below, news, below)
		}
	}
	first.Opened(at(5, 4), false)
	second.Opened(at(5, 5), false)
	if check("earlier processes' clocks", false, 5); b.Ticks().MayRead() {
		t.Error("a shard has not applied the updates of earlier processes, but may be read")
	}
	first.Ack(at(5, 5))
	if !b.Ticks().MayRead() {
		t.Error("all shards have applied the updates of earlier processes, but may not be read")
	}
	for range 4 { // clocks 5 to 8
		b.step(build)
		for _, s := range b.shards {
			s.kept = append(s.kept, ofClock(b.clock, Sent))
			s.sentBelow = b.clock + 1
		}
		b.step(send)
		b.Next()
	}
	into := second.kept[1] // clocks 6 and 7 are one update there
	into.clocks, second.kept = 2, append(second.kept[:2:2], second.kept[3])
	first.Ack(at(9, 5))
	check("one shard has staged them", false, 5)
	second.Ack(at(6, 5))
	check("both have staged clock 5", true, 6)
	first.Ack(at(9, 6))
	second.Ack(at(8, 6))
	check("both have staged the merged update", true, 8)
	for i, s := range b.shards {
		if f, needed := b.Ticks().Frame(s, wire.Header{}); !needed || f.Kind != wire.KindTick || f.Clock != 7 {
			t.Errorf("shard %d gets %+v, %t", i, f.Header, needed)
		}
	}
	first.sentBelow = 6 // another head, which has not been sent the later updates
	if f, _ := b.Ticks().Frame(first, wire.Header{}); f.Clock != 5 {
		t.Errorf("a new head gets a tick of clock %d, want 5", f.Clock)
	}
	if u := first.kept.from(7)[0]; u.phase != Ticked || u.frames(wire.Header{}, nil) != nil {
		t.Errorf("the update of clock 7 is %v", u.phase)
	}
	first.Opened(at(5, 5), false) // restored from a checkpoint
	check("a restored shard", false, 8)
	first.Ack(at(9, 5))
	second.Ack(at(9, 8))
	check("it has staged them again", true, 9)
}
