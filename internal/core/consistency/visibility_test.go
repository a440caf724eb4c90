package consistency

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
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

// naiveViewer is a slot as it should be: the content of what it may read from its
// cache, and what it and the shard have to say to each other and have not yet.
type naiveViewer struct {
	inactive bool
	cached   []updates // of each row in its cache; none: it reads by Gets only
	told     updates   // what the shard knows that all cached rows contain; nil: that none is cached
	rounds   []round   // taken over, and not said yet
}

// round is the end of a push: all cached rows are of this state.
type round struct {
	seq     uint64
	content updates
}

// visibilityPair plays a shard's life on a Visibility and on explicit sets.
type visibilityPair struct {
	v       *Visibility
	content updates // of the shard's rows, now
	applied []perdure.Clock
	seq     uint64
	slots   []naiveViewer
	before  []perdure.Clock // what Seen said last
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
	// Of the shard's former life every slot may have cached anything, even nothing of
	// what is applied: that is what is known of it before it has opened this one.
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

// answer sends a slot a row as it is now, which it caches.
func (p *visibilityPair) answer(t *rapid.T) {
	slot := p.slot(t)
	p.v.Answered(perdure.Slot(slot), p.seq)
	u := &p.slots[slot]
	u.cached = append(u.cached, p.content.clone())
	if u.told == nil {
		u.told = p.content.clone()
	}
}

// push ends a round: all the slot's rows are as they are now, and it will say so.
func (p *visibilityPair) push(t *rapid.T) {
	u := &p.slots[p.slot(t)]
	if u.told == nil {
		t.Skip("nothing is pushed to it")
	}
	for i := range u.cached {
		u.cached[i] = p.content.clone()
	}
	u.rounds = append(u.rounds, round{p.seq, p.content.clone()})
}

// say brings the shard a slot's oldest word that is on its way.
func (p *visibilityPair) say(t *rapid.T) {
	slot := p.slot(t)
	u := &p.slots[slot]
	if len(u.rounds) == 0 {
		t.Skip("it has nothing to say")
	}
	p.v.Saw(perdure.Slot(slot), u.rounds[0].seq)
	u.told, u.rounds = u.rounds[0].content, u.rounds[1:]
}

// activate begins or ends that somebody speaks for a slot. Its next process knows
// nothing of what was cached.
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

// count returns how many of a slot's clocks, from the first on without gap, all
// other active slots see in what of returns for them.
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

// told is what the shard knows of a slot's cache; truth is its cache itself.
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
			t.Fatalf("%d clocks of slot %d are seen, want %d of %d: it was %d", got, slot, want, p.applied[slot],
				p.before[slot])
		}
		if got > most {
			t.Fatalf("%d clocks of slot %d are said to be seen, and all slots can see %d", got, slot, most)
		}
		p.before[slot] = got
	}
}

// Seen is what the shard can know of what all slots see; it is never more than they
// do, and never falls; and once all have said what they saw, it is all.
func TestVisibilityLikeSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newVisibilityPair(t)
		t.Repeat(map[string]func(*rapid.T){
			"apply": p.apply, "apply again": p.apply, "open": p.open, "answer": p.answer, "answer again": p.answer,
			"push": p.push, "push again": p.push, "say": p.say, "say again": p.say, "activate": p.activate, "": p.check,
		})
		for i := range p.slots {
			p.v.Saw(perdure.Slot(i), p.seq)
		}
		for slot, applied := range p.applied {
			if got := p.v.Seen(perdure.Slot(slot)); got != applied {
				t.Fatalf("all is taken over, and %d clocks of slot %d are seen, want %d", got, slot, applied)
			}
			if s := &p.v.slots[slot]; len(s.unseen) > 0 {
				t.Fatalf("slot %d keeps %v", slot, s.unseen)
			}
		}
	})
}

// What a slot says late, or twice, takes nothing back; a slot's own word does not
// matter for its own updates.
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
	expect("nobody has said anything", 0, 0, 0)
	v.Saw(1, 2)
	v.Saw(2, 1)
	expect("slot 2 has not seen slot 1's", 1, 0, 0)
	v.Saw(2, 1)
	v.Saw(0, 2)
	expect("slot 2 still", 1, 0, 0)
	v.SetActive(2, false)
	expect("nobody speaks for slot 2", 1, 1, 0)
	v.SetActive(2, true)
	v.Saw(2, 0)
	expect("slot 2 is back, and far behind", 1, 1, 0)
	v.Applied(0, 1, 3)
	v.Saw(1, 3)
	v.Saw(1, 2)
	expect("slot 2 has to see it", 1, 1, 0)
	v.Opened(2)
	expect("slot 2 reads nothing from its cache", 2, 1, 0)
}

// The sum of what is in transit is at most V/√(clock+1), or is one update alone.
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
		{8, 6, true, true}, // or it could never go
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
			t.Errorf("%s bounds what is in transit", other)
		}
	}
}

// Missing counts what is known to exist, of clocks ≤ c + s; the bound is P(2s+1).
func TestMissing(t *testing.T) {
	for _, tc := range []struct {
		applied, known []perdure.Clock
		s, c           perdure.Clock
		want, bound    int64
		spans          []words.Span // nil: throughout
	}{
		{[]perdure.Clock{3, 3}, []perdure.Clock{3, 3}, 0, 3, 0, 2, nil},
		{[]perdure.Clock{3, 3}, []perdure.Clock{4, 4}, 0, 3, 2, 2, nil},
		{[]perdure.Clock{3, 3}, []perdure.Clock{5, 3}, 0, 3, 1, 2, nil}, // the paper's sum ends at c + s
		{[]perdure.Clock{1, 1, 1}, []perdure.Clock{6, 6, 3}, 2, 3, 12, 15, nil},
		{[]perdure.Clock{1, 1, 1}, []perdure.Clock{6, 6, 6}, 2, 3, 15, 15, nil}, // as much as may be missing
		{[]perdure.Clock{0, 1, 1}, []perdure.Clock{6, 6, 6}, 2, 3, 16, 15, nil}, // a row that is too old
		{[]perdure.Clock{7, 1}, []perdure.Clock{6, 1}, 2, 3, 0, 10, nil},        // what was not known to exist is there
		// A row from before slot 1 joined lacks what it has done since, of its clocks only.
		{[]perdure.Clock{8}, []perdure.Clock{9, 12}, 2, 10, 3, 10, []words.Span{{}, {From: 10}}},
		{[]perdure.Clock{8, 2}, []perdure.Clock{9, 12}, 2, 10, 3, 10, []words.Span{{}, {From: 10}}},
		// It is not in this clock.
		{[]perdure.Clock{8}, []perdure.Clock{9, 12}, 2, 9, 1, 10, []words.Span{{}, {From: 10}}},
		// It was not any more.
		{[]perdure.Clock{8, 4}, []perdure.Clock{9, 6}, 2, 7, 1, 10, []words.Span{{}, {Until: 5}}},
		// Of slot 2 nothing is known.
		{[]perdure.Clock{8, 8, 1}, []perdure.Clock{9, 8}, 2, 8, 1, 15, []words.Span{{}, {}, {}}},
		// The reader has not heard of slot 1.
		{[]perdure.Clock{1, 1}, []perdure.Clock{4, 4}, 2, 3, 3, 5, []words.Span{{}}},
	} {
		name := fmt.Sprintf("applied %v known %v s %d c %d", tc.applied, tc.known, tc.s, tc.c)
		spans := tc.spans
		if spans == nil {
			spans = make([]words.Span, len(tc.applied))
		}
		if got := Missing(tc.applied, tc.known, spans, tc.s, tc.c); got != tc.want {
			t.Errorf("%s: %d are missing, want %d", name, got, tc.want)
		}
		if got := MissingBound(len(spans), tc.s); got != tc.bound {
			t.Errorf("%s: at most %d, want %d", name, got, tc.bound)
		}
	}
}

// A slot that the shard learns of late, since it began anew from before the slot joined,
// may still read what it had cached of the shard's former life.
func TestVisibilityOfLateSlots(t *testing.T) {
	t.Parallel()
	v := NewVisibility([]perdure.Clock{0}, 5)
	v.Opened(0)
	v.Grow([]perdure.Clock{0, 0}, 5)
	v.Applied(0, 0, 6)
	if got := v.Seen(0); got != 1 {
		t.Errorf("nobody speaks for slot 1: %d clocks of slot 0 are seen, want 1", got)
	}
	v.SetActive(1, true)
	v.Applied(0, 1, 7)
	if got := v.Seen(0); got != 1 {
		t.Errorf("slot 1 has not opened the shard: %d clocks of slot 0 are seen, want 1", got)
	}
	v.Opened(1)
	if got := v.Seen(0); got != 2 {
		t.Errorf("slot 1 has opened the shard, and reads nothing from its cache: %d clocks of slot 0 are seen, want 2",
			got)
	}
}
