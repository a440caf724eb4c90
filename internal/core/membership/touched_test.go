package membership

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// checkTouched holds the core, which looked only at what was touched, against one that
// knows the same and looks at everything: that one finds nothing else to do.
func (c *cluster) checkTouched() {
	k := c.core
	if k.facts.View.Pause {
		k.reconcile() // where nobody speaks, it ends with the first event after the view that it is in
	}
	whole := New(k.facts.Clone(), k.watch.Patience())
	whole.SuspendAfter(k.grace)
	whole.servers, whole.slots = slices.Clone(k.servers), slices.Clone(k.slots)
	whole.clocks = tally{count: map[perdure.Clock]int{}}
	for i := range whole.slots {
		whole.clocks.move(-1, whole.counted(i))
		whole.slots[i].fenced, whole.slots[i].highest = 0, 0
	}
	whole.watch = k.watch
	whole.tick, whole.pausedAt, whole.durableAt = k.tick, k.pausedAt, k.durableAt
	whole.publishing, whole.complete, whole.dropped = k.publishing, k.complete, k.dropped
	whole.lost, whole.dirty = maps.Clone(k.lost), k.dirty
	for kind, s := range k.healing {
		for _, i := range s.list {
			whole.healing[kind].add(i)
		}
	}
	for i := range whole.servers {
		whole.unjudged.add(i)
	}
	whole.reconcile()
	if len(whole.out.Events)+len(whole.out.Kills) > 0 || whole.out.Publish != nil {
		c.fail("looking at everything brings %+v besides", whole.out)
	}
	if !reflect.DeepEqual(whole.facts, k.facts) {
		c.fail("looking at everything makes\n%+v of\n%+v", whole.facts, k.facts)
	}
	if whole.complete != k.complete {
		c.fail("complete %v, looking at everything %v", k.complete, whole.complete)
	}
	if got, want := k.Serving(), whole.Serving(); got != want {
		c.fail("serving %v, looking at everything %v", got, want)
	}
}

// checkKept holds what the core keeps, so that it need not look at all places and
// shards, against what they are.
func (c *cluster) checkKept() {
	k := c.core
	k.judge()
	for i := range k.facts.View.Shards {
		if open := k.open.has(i); !open && !k.ready(i) {
			c.fail("shard %d is not ready, and nobody looks at it", i)
		}
		if !k.due.has(i) && k.unready.has(i) == k.ready(i) {
			c.fail("shard %d: ready %v, unready %v", i, k.ready(i), k.unready.has(i))
		}
	}
	for i := range k.servers {
		p := &k.facts.Servers[i]
		_, away := k.away[i]
		leaving := k.leaving.has(i)
		if k.layout[i].Open != k.eligible(i) || away != (!p.Left && !p.Draining && !k.eligible(i)) || p.Draining && !p.Left && !leaving {
			c.fail("server %d: open %v, away %v, leaving %v", i, k.layout[i].Open, away, leaving)
		}
	}
	if k.placed() && k.level() {
		layout := k.arrangement()
		if m, ok := layout.Move(); ok {
			c.fail("the servers are said to be level, and %+v would help", m)
		}
	}
	least := perdure.Clock(-1)
	for i := range k.slots {
		sl := &k.facts.View.Slots[i]
		clock := max(k.slots[i].lastClock, sl.Start, sl.From)
		if (sl.Until == 0 || clock < sl.Until) && (least < 0 || clock < least) {
			least = clock
		}
	}
	if want := max(least, k.facts.View.Cut); k.MinClock() != want {
		c.fail("MinClock %d, want %d", k.MinClock(), want)
	}
}

// A cursor finds out whether all are good, wherever it stands, and looks first at
// the one that was not.
func TestCursor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var at cursor
		var good []bool
		for range rapid.IntRange(1, 30).Draw(t, "times") {
			if len(good) > 0 && rapid.Bool().Draw(t, "turn") {
				i := rapid.IntRange(0, len(good)-1).Draw(t, "which")
				good[i] = !good[i]
			} else {
				good = rapid.SliceOfN(rapid.Bool(), 0, 5).Draw(t, "good")
			}
			want := true
			for _, g := range good {
				want = want && g
			}
			if got := at.all(len(good), func(i int) bool { return good[i] }); got != want {
				t.Fatalf("%v of %v", got, good)
			}
			looked := 0
			if got := at.all(len(good), func(i int) bool { looked++; return good[i] }); got != want || !got && looked != 1 {
				t.Fatalf("%v of %v after a look at %d", got, good, looked)
			}
		}
	})
}

// A set is what a map would be.
func TestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s set
		want := map[int]struct{}{}
		for range rapid.IntRange(1, 40).Draw(t, "times") {
			i := rapid.IntRange(0, 8).Draw(t, "number")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				s.clear()
				clear(want)
			case 1, 2, 3:
				s.remove(i)
				delete(want, i)
			default:
				s.add(i)
				want[i] = struct{}{}
			}
			if _, in := want[i]; s.has(i) != in || len(s.list) != len(want) || !slices.Equal(s.sorted(), sorted(want)) {
				t.Fatalf("%v, want %v", s.list, sorted(want))
			}
		}
	})
}
