package replica

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// This file tests small decisions with tables. The scripts and storms show what the decisions are for; these tests show
// directly which one is wrong.

// A restored shard is complete once it has everything that the slots reported as ended, capped at the job's end. Slots
// without a process report nothing, and the shard does not wait for them.
func TestMendingComplete(t *testing.T) {
	here := protocol.SlotView{Incarnation: 1, Settled: true}
	for _, c := range []struct {
		name  string
		slot  protocol.SlotView
		told  perdure.Clock // < 0: no report
		end   perdure.Clock
		whole bool // the shard has 5 clocks
	}{
		{"no report", here, -1, 0, false},
		{"has less", here, 4, 0, true},
		{"has all", here, 5, 0, true},
		{"lacks one", here, 6, 0, false},
		{"lacks clocks beyond the job's end", here, 6, 5, true},
		{"never came", protocol.SlotView{Settled: true}, -1, 0, true},
		{"is not settled", protocol.SlotView{Incarnation: 1}, -1, 0, true},
		{"has left", protocol.SlotView{Incarnation: 1, Settled: true, Left: true}, -1, 0, true},
	} {
		m := resendProgress{restored: true}
		if c.told >= 0 {
			m.reported.record(&Reader{Slot: 0, Incarnation: 1}, c.told)
		}
		in := consistency.NewSequencer(perdure.ClockOneStep, []perdure.Clock{5}, mutation.Set{})
		if got := m.complete(&protocol.View{Slots: []protocol.SlotView{c.slot}, End: c.end}, in); got != c.whole {
			t.Errorf("%s: complete: %v, want %v", c.name, got, c.whole)
		}
	}
}

// The report of a slot's newest process counts, in whatever order reports arrive. A process that starts below what its
// predecessor had made never makes those updates again.
func TestNewestProcessSpeaks(t *testing.T) {
	type word struct {
		incarnation perdure.Incarnation
		ended       perdure.Clock
	}
	for _, c := range []struct {
		name  string
		words []word
		want  perdure.Clock
	}{
		{"one process continues", []word{{1, 3}, {1, 9}}, 9},
		{"an old report arrives late", []word{{1, 9}, {1, 3}}, 9},
		{"the next process starts below", []word{{1, 9}, {2, 0}}, 0},
		{"and continues", []word{{1, 9}, {2, 0}, {2, 4}}, 4},
		{"a predecessor's report arrives late", []word{{2, 4}, {1, 9}}, 4},
	} {
		var p endedReports
		for _, w := range c.words {
			p.record(&Reader{Slot: 0, Incarnation: w.incarnation}, w.ended)
		}
		if got, sent := p.of(0, &protocol.View{Slots: []protocol.SlotView{{Incarnation: 2}}}); got != c.want || !sent {
			t.Errorf("%s: %d clocks, reported: %v; want %d", c.name, got, sent, c.want)
		}
	}
	var p endedReports
	if p.record(&Reader{Slot: perdure.NoSlot, Incarnation: 1}, 7); len(p) > 0 {
		t.Error("an observer's report was recorded")
	}
}

// The head writes the cut at which the shard is paused, once. It also writes the cut at the job's end if the shard has
// left it and it is not being written.
func TestCutIsDue(t *testing.T) {
	for _, c := range []struct {
		name         string
		head, writes bool
		cut          perdure.Clock // the next cut; the shard has 5 clocks
		unsaved, end perdure.Clock
		want         bool
	}{
		{"stands", true, false, 5, 0, 0, true},
		{"goes on", true, false, 8, 0, 0, false},
		{"not the head", false, false, 5, 0, 0, false},
		{"already being written", true, true, 5, 0, 0, false},
		{"stands, the previous cut is not saved", true, false, 5, 4, 0, true},
		{"continues, the previous cut is not saved", true, false, 8, 4, 0, false},
		{"the end is not saved", true, false, 8, 5, 5, true},
		{"the end is being written", true, true, 8, 5, 5, false},
	} {
		in := consistency.NewSequencer(perdure.ClockOneStep, []perdure.Clock{5}, mutation.Set{})
		in.SetCut(c.cut)
		cs := cuts{head: c.head, writes: c.writes, unsaved: c.unsaved, schedule: recovery.Schedule{End: c.end}}
		if got := cs.due(in); got != c.want {
			t.Errorf("%s: due is %v, want %v", c.name, got, c.want)
		}
	}
}

// A cut that a former head saves a second time is not counted again. Segments in a checkpoint are forgotten, later ones
// are kept.
func TestSegmentsAreKeptOnce(t *testing.T) {
	in := consistency.NewSequencer(perdure.ClockOneStep, []perdure.Clock{8}, mutation.Set{})
	cs := cuts{background: true, saves: true, left: 8, unsaved: 8, schedule: recovery.Schedule{Every: 4}}
	cs.segments = []protocol.Segment{{Cut: 4}}
	for range 2 {
		cs.recordSaved(protocol.Segment{Cut: 8}, in)
	}
	if len(cs.segments) != 2 || cs.unsaved != 0 {
		t.Errorf("%+v", cs.segments)
	}
	for _, c := range []struct {
		durable perdure.Clock
		left    int
	}{{3, 2}, {4, 1}, {7, 1}, {8, 0}} {
		if cs.durable(c.durable); len(cs.segments) != c.left {
			t.Errorf("%d segments remain after a checkpoint of clock %d, want %d", len(cs.segments), c.durable,
				c.left)
		}
	}
}

// The head of a lost shard serves once all members have the base. It proposes the base once, as soon as it is known.
func TestMayServe(t *testing.T) {
	base := []perdure.Clock{1}
	for _, c := range []struct {
		name          string
		head          bool
		mine          protocol.ShardView
		p             proposals
		serves, facts bool
	}{
		{"nothing was lost", true, protocol.ShardView{}, proposals{}, true, false},
		{"not the head", false, protocol.ShardView{Lost: true, Base: base}, proposals{}, true, false},
		{"not known yet", true, protocol.ShardView{Lost: true}, proposals{}, false, false},
		{"known", true, protocol.ShardView{Lost: true, Base: base}, proposals{}, false, true},
		{"proposed", true, protocol.ShardView{Lost: true, Base: base}, proposals{base: true}, false, false},
		{
			"all members have it", true,
			protocol.ShardView{Lost: true, Base: base},
			proposals{base: true, based: true},
			true,
			false,
		},
	} {
		var fx Effects
		if got := c.p.mayServe(&c.mine, c.head, &fx); got != c.serves || len(fx.ControlEntries) > 0 != c.facts {
			t.Errorf("%s: serves %v, %d facts; want %v, facts %v", c.name, got, len(fx.ControlEntries), c.serves,
				c.facts)
		}
	}
}
