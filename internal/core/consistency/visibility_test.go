package consistency

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// updates is a set of updates.
type updates map[updateID]bool

type updateID struct {
	slot  int
	clock perdure.Clock
}

func (u updates) clone() updates {
	n := make(updates, len(u))
	for id := range u {
		n[id] = true
	}
	return n
}

// naiveViewer is the expected state of a slot: the content of the rows that it may read from its cache, and the
// messages between it and the shard that are still in transit.
type naiveViewer struct {
	inactive bool
	cached   []updates // of each row in its cache; none: it reads by Gets only
	told     updates   // the updates that the shard knows to be in all cached rows; nil: no row is cached
	rounds   []round   // received, and not confirmed yet
}

// round is the end of a push: all cached rows are of this state.
type round struct {
	seq     uint64
	content updates
}

// visibilityPair plays a shard's life on a Visibility and on explicit sets.
type visibilityPair struct {
	v       *Visibility
	content updates // contents of the shard's current rows
	applied []perdure.Clock
	seq     uint64
	slots   []naiveViewer
	before  []perdure.Clock // the last result of Seen
}

func newVisibilityPair(t *rapid.T) *visibilityPair {
	n := rapid.IntRange(2, 4).Draw(t, "slots")
	p := &visibilityPair{
		content: updates{}, applied: make([]perdure.Clock, n), slots: make([]naiveViewer, n),
		before: make([]perdure.Clock, n),
	}
	p.seq = uint64(rapid.IntRange(0, 3).Draw(t, "seq"))
	for i := range p.applied {
		for clock := range perdure.Clock(rapid.IntRange(0, 2).Draw(t, "applied")) {
			p.content[updateID{i, clock}] = true
			p.applied[i]++
			p.seq++
		}
	}
	// Every slot may have cached any rows of the shard's former life, even without any applied update. Until a slot
	// opens this life, nothing else is known of it.
	for i := range p.slots {
		p.slots[i] = naiveViewer{cached: []updates{{}}, told: updates{}}
	}
	p.v = NewVisibility(p.applied, p.seq)
	return p
}

func (p *visibilityPair) slot(t *rapid.T) int {
	return rapid.IntRange(0, len(p.slots)-1).Draw(t, "slot")
}

func (p *visibilityPair) apply(t *rapid.T) {
	slot := p.slot(t)
	p.seq++
	p.v.Applied(perdure.Slot(slot), p.applied[slot], p.seq)
	p.content[updateID{slot, p.applied[slot]}] = true
	p.applied[slot]++
}

func (p *visibilityPair) open(t *rapid.T) {
	slot := p.slot(t)
	p.v.Opened(perdure.Slot(slot))
	u := &p.slots[slot]
	*u = naiveViewer{inactive: u.inactive}
}

// answer sends a slot the current row, which the slot caches.
func (p *visibilityPair) answer(t *rapid.T) {
	slot := p.slot(t)
	p.v.Answered(perdure.Slot(slot), p.seq)
	u := &p.slots[slot]
	u.cached = append(u.cached, p.content.clone())
	if u.told == nil {
		u.told = p.content.clone()
	}
}

// push ends a round: all rows of the slot are current, and the slot will confirm it.
func (p *visibilityPair) push(t *rapid.T) {
	u := &p.slots[p.slot(t)]
	if u.told == nil {
		t.Skip("nothing is pushed to the slot")
	}
	for i := range u.cached {
		u.cached[i] = p.content.clone()
	}
	u.rounds = append(u.rounds, round{p.seq, p.content.clone()})
}

// say delivers a slot's oldest confirmation to the shard.
func (p *visibilityPair) say(t *rapid.T) {
	slot := p.slot(t)
	u := &p.slots[slot]
	if len(u.rounds) == 0 {
		t.Skip("the slot has nothing to confirm")
	}
	p.v.RecordConfirmed(perdure.Slot(slot), u.rounds[0].seq)
	u.told, u.rounds = u.rounds[0].content, u.rounds[1:]
}

// activate starts or ends the process of a slot. The next process does not have the cached rows.
func (p *visibilityPair) activate(t *rapid.T) {
	slot := p.slot(t)
	u := &p.slots[slot]
	u.inactive = !u.inactive
	p.v.SetActive(perdure.Slot(slot), !u.inactive)
	if !u.inactive {
		p.v.Opened(perdure.Slot(slot))
		*u = naiveViewer{}
	}
}

// count returns how many consecutive clocks of a slot, from the first on, are in of for all other active slots.
func (p *visibilityPair) count(slot int, of func(u *naiveViewer) []updates) (n perdure.Clock) {
	for ; n < p.applied[slot]; n++ {
		for i := range p.slots {
			if u := &p.slots[i]; i != slot && !u.inactive {
				for _, content := range of(u) {
					if !content[updateID{slot, n}] {
						return n
					}
				}
			}
		}
	}
	return n
}

// told returns what the shard knows of a slot's cache. truth returns the contents of the cache.
func told(u *naiveViewer) []updates {
	if u.told == nil {
		return nil
	}
	return []updates{u.told}
}

func truth(u *naiveViewer) []updates { return u.cached }

func (p *visibilityPair) check(t *rapid.T) {
	for slot := range p.slots {
		known, most := p.count(slot, told), p.count(slot, truth)
		want := max(p.before[slot], known)
		got := p.v.Seen(perdure.Slot(slot))
		if got != want {
			t.Fatalf("%d clocks of slot %d are seen, want %d of %d; before: %d", got, slot, want, p.applied[slot],
				p.before[slot])
		}
		if got > most {
			t.Fatalf("Seen returns %d for slot %d, but all slots can see only %d", got, slot, most)
		}
		p.before[slot] = got
	}
}

// Seen returns what the shard can know of the clocks that all slots see. It is never more than they see, and never
// decreases. Once all slots have confirmed everything, it is complete.
func TestVisibilityLikeSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newVisibilityPair(t)
		t.Repeat(map[string]func(*rapid.T){
			"apply": p.apply, "apply again": p.apply, "open": p.open, "answer": p.answer, "answer again": p.answer,
			"push": p.push, "push again": p.push, "say": p.say, "say again": p.say, "activate": p.activate, "": p.check,
		})
		for i := range p.slots {
			p.v.RecordConfirmed(perdure.Slot(i), p.seq)
		}
		for slot, applied := range p.applied {
			if got := p.v.Seen(perdure.Slot(slot)); got != applied {
				t.Fatalf("everything is confirmed, but %d clocks of slot %d are seen, want %d", got, slot, applied)
			}
			if s := &p.v.slots[slot]; len(s.unseen) > 0 {
				t.Fatalf("slot %d keeps %v", slot, s.unseen)
			}
		}
	})
}

// A late or repeated confirmation does not lower Seen. A slot's own confirmation does not matter for its own updates.
func TestSeenByOthers(t *testing.T) {
	v := NewVisibility([]perdure.Clock{0, 0, 0}, 0)
	expect := func(what string, want ...perdure.Clock) {
		t.Helper()
		for slot, n := range want {
			if got := v.Seen(perdure.Slot(slot)); got != n {
				t.Errorf("%s: %d clocks of slot %d are seen, want %d", what, got, slot, n)
			}
		}
	}
	for slot := range perdure.Slot(3) {
		v.Answered(slot, 0)
	}
	v.Applied(0, 0, 1)
	v.Applied(1, 0, 2)
	expect("no confirmation yet", 0, 0, 0)
	v.RecordConfirmed(1, 2)
	v.RecordConfirmed(2, 1)
	expect("slot 2 has not seen slot 1's", 1, 0, 0)
	v.RecordConfirmed(2, 1)
	v.RecordConfirmed(0, 2)
	expect("slot 2 still has not", 1, 0, 0)
	v.SetActive(2, false)
	expect("slot 2 has no process", 1, 1, 0)
	v.SetActive(2, true)
	v.RecordConfirmed(2, 0)
	expect("slot 2 is back, and lags far behind", 1, 1, 0)
	v.Applied(0, 1, 3)
	v.RecordConfirmed(1, 3)
	v.RecordConfirmed(1, 2)
	expect("slot 2 must see it", 1, 1, 0)
	v.Opened(2)
	expect("slot 2 reads nothing from its cache", 2, 1, 0)
}

// The sum of the updates in transit is at most V/√(clock+1), or there is only one update.
func TestMaySend(t *testing.T) {
	vap := model(t, "vap:6")
	for _, tc := range []struct {
		clock perdure.Clock
		norm  float64
		alone bool
		want  bool
	}{
		{0, 6, false, true},
		{0, math.Nextafter(6, 7), false, false},
		{3, 3, false, true},
		{3, 3.01, false, false},
		{8, 2, false, true},
		{8, 6, false, false},
		{8, 6, true, true}, // otherwise it could never be sent
		{8, math.Inf(1), true, true},
		{8, math.Inf(1), false, false},
		{8, math.NaN(), false, false},
		{8, 0, false, true},
	} {
		if got := MaySend(vap, tc.clock, tc.norm, tc.alone); got != tc.want {
			t.Errorf("clock %d, norm %v, alone %v: %v", tc.clock, tc.norm, tc.alone, got)
		}
	}
	for _, other := range []string{"bsp", "ssp:3", "essp:3", "asp"} {
		if !MaySend(model(t, other), 99, math.Inf(1), false) {
			t.Errorf("%s limits updates in transit", other)
		}
	}
}

// Missing updates are updates that are known to exist, of clocks ≤ c + s; the bound is P(2s+1).
func TestMissing(t *testing.T) {
	for _, tc := range []struct {
		applied, known []perdure.Clock
		s, c           perdure.Clock
		want, bound    int64
		spans          []protocol.Interval // nil: always
	}{
		{[]perdure.Clock{3, 3}, []perdure.Clock{3, 3}, 0, 3, 0, 2, nil},
		{[]perdure.Clock{3, 3}, []perdure.Clock{4, 4}, 0, 3, 2, 2, nil},
		{[]perdure.Clock{3, 3}, []perdure.Clock{5, 3}, 0, 3, 1, 2, nil}, // the paper's sum ends at c + s
		{[]perdure.Clock{1, 1, 1}, []perdure.Clock{6, 6, 3}, 2, 3, 12, 15, nil},
		{[]perdure.Clock{1, 1, 1}, []perdure.Clock{6, 6, 6}, 2, 3, 15, 15, nil}, // the maximum
		{[]perdure.Clock{0, 1, 1}, []perdure.Clock{6, 6, 6}, 2, 3, 16, 15, nil}, // a row that is too old
		{[]perdure.Clock{7, 1}, []perdure.Clock{6, 1}, 2, 3, 0, 10, nil},        // has updates not known to exist
		// A row from before slot 1 joined lacks the slot's updates since then, counted within its interval only.
		{[]perdure.Clock{8}, []perdure.Clock{9, 12}, 2, 10, 3, 10, []protocol.Interval{{}, {From: 10}}},
		{[]perdure.Clock{8, 2}, []perdure.Clock{9, 12}, 2, 10, 3, 10, []protocol.Interval{{}, {From: 10}}},
		// Slot 1 does not participate in this clock.
		{[]perdure.Clock{8}, []perdure.Clock{9, 12}, 2, 9, 1, 10, []protocol.Interval{{}, {From: 10}}},
		// Slot 1 no longer participates.
		{[]perdure.Clock{8, 4}, []perdure.Clock{9, 6}, 2, 7, 1, 10, []protocol.Interval{{}, {Until: 5}}},
		// Nothing is known of slot 2.
		{[]perdure.Clock{8, 8, 1}, []perdure.Clock{9, 8}, 2, 8, 1, 15, []protocol.Interval{{}, {}, {}}},
		// The reader does not know slot 1.
		{[]perdure.Clock{1, 1}, []perdure.Clock{4, 4}, 2, 3, 3, 5, []protocol.Interval{{}}},
	} {
		name := fmt.Sprintf("applied %v known %v s %d c %d", tc.applied, tc.known, tc.s, tc.c)
		intervals := tc.spans
		if intervals == nil {
			intervals = make([]protocol.Interval, len(tc.applied))
		}
		if got := MissingUpdates(tc.applied, tc.known, intervals, tc.s, tc.c); got != tc.want {
			t.Errorf("%s: %d missing, want %d", name, got, tc.want)
		}
		if got := MissingBound(len(intervals), tc.s); got != tc.bound {
			t.Errorf("%s: at most %d, want %d", name, got, tc.bound)
		}
	}
}

// If the shard restarted from before a slot joined, it learns of the slot late. The slot may still read rows that it
// had cached of the shard's former life.
func TestVisibilityOfLateSlots(t *testing.T) {
	t.Parallel()
	v := NewVisibility([]perdure.Clock{0}, 5)
	v.Opened(0)
	v.Grow([]perdure.Clock{0, 0}, 5)
	v.Applied(0, 0, 6)
	if got := v.Seen(0); got != 1 {
		t.Errorf("slot 1 has no process: %d clocks of slot 0 are seen, want 1", got)
	}
	v.SetActive(1, true)
	v.Applied(0, 1, 7)
	if got := v.Seen(0); got != 1 {
		t.Errorf("slot 1 has not opened the shard: %d clocks of slot 0 are seen, want 1", got)
	}
	v.Opened(1)
	if got := v.Seen(0); got != 2 {
		t.Errorf("slot 1 has opened the shard with an empty cache: %d clocks of slot 0 are seen, want 2",
			got)
	}
}
