package consistency

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
)

// The explorer visits every state that 2 slots, 2 shards and 2 clocks can reach while a process dies or a connection
// breaks at any moment: before or after any part of an update is staged on either shard, before or after any tick.
// Messages of a process may still arrive long after it was replaced, or be lost from any message on.
const (
	exploreSlots  = 2
	exploreShards = 2
)

// explored is one case: the events that may happen in it, and the mechanisms that are disabled.
type explored struct {
	mode      perdure.ClockMode
	clocks    perdure.Clock
	parts     int  // parts per update
	deaths    int  // maximum number of deaths in one course
	breaks    int  // maximum number of broken connections in one course
	cut       bool // a cut by slot is made once
	mutations mutation.Set
}

// world is one complete state. Its fields are values or are cloned.
type world struct {
	shards  [exploreShards]*Sequencer
	applied [exploreShards][exploreSlots]string // the incarnations that made each applied clock: "i1i1"
	slots   [exploreSlots]holder
	links   []link
	deaths  int // deaths that may still happen
	breaks  int
	cut     slotCut
}

// slotCut is a cut by slot.
type slotCut struct {
	phase cutPhase
	upTo  [exploreSlots]perdure.Clock
	held  [exploreShards]bool                 // the shard is in the hold
	done  [exploreShards]bool                 // it has taken the entry that ends the hold
	saved [exploreShards][exploreSlots]string // world.applied at the cut; of a missed cut: empty
	made  [exploreShards]bool
}

type cutPhase int

const (
	cutNone cutPhase = iota
	cutHeld
	cutNamed
	cutGivenUp
)

// holder is a slot: its process, and what the coordinator knows.
type holder struct {
	incarnation perdure.Incarnation
	alive       bool
	first       perdure.Clock // the first clock that this process made itself
	clock       perdure.Clock // the clock that it works on
	staging     bool          // two-step: it has sent this clock's update and not ticked it
	ticked      perdure.Clock // atomic: clocks below this are ticked
	fenced      [exploreShards]bool
	decided     bool
	start       perdure.Clock
	carried     [exploreShards]bool
}

// link is a connection of a process to a shard: first in, first out.
type link struct {
	slot, shard int
	broken      bool // closed for sending; messages in transit may arrive or not
	way         []message
}

func (w *world) clone() *world {
	n := *w
	for i, in := range w.shards {
		n.shards[i] = in.clone()
	}
	n.links = slices.Clone(w.links)
	for i := range n.links {
		n.links[i].way = slices.Clone(n.links[i].way)
	}
	return &n
}

func (in *Sequencer) clone() *Sequencer {
	n := *in
	n.hold.in = &n
	n.applied, n.again, n.slots = slices.Clone(in.applied), slices.Clone(in.again), slices.Clone(in.slots)
	for i := range n.slots {
		n.slots[i].pending = nil
		for _, u := range in.slots[i].pending {
			v := *u
			v.Parts = slices.Clone(u.Parts)
			n.slots[i].pending = append(n.slots[i].pending, &v)
		}
	}
	return &n
}

// key encodes the complete state. It is written by hand because most of the explorer's time is spent here.
func (w *world) key() string {
	b := make([]byte, 0, 512)
	num := func(ns ...int64) {
		for _, n := range ns {
			b = strconv.AppendInt(append(b, ' '), n, 10)
		}
	}
	flags := func(fs ...bool) {
		for _, f := range fs {
			b = strconv.AppendBool(b, f)
		}
	}
	for i, in := range w.shards {
		for j := range in.slots {
			b = append(append(b, '#'), w.applied[i][j]...)
			s := &in.slots[j]
			num(int64(in.applied[j]), int64(s.incarnation), int64(s.decided))
			for _, u := range s.pending {
				num(int64(u.Clock))
				flags(u.tick, u.ticked, u.Lost)
				for _, p := range u.Parts {
					b = append(append(b, ','), p...)
				}
			}
		}
	}
	for i := range w.slots {
		h := &w.slots[i]
		num(int64(h.incarnation), int64(h.first), int64(h.clock), int64(h.start), int64(h.ticked))
		flags(h.alive, h.staging, h.decided)
		flags(h.fenced[:]...)
		flags(h.carried[:]...)
	}
	num(int64(w.deaths), int64(w.breaks), int64(w.cut.phase), int64(w.cut.upTo[0]), int64(w.cut.upTo[1]))
	flags(w.cut.held[:]...)
	flags(w.cut.done[:]...)
	for i, in := range w.shards {
		num(int64(in.hold.number))
		b = append(append(append(b, '#'), w.cut.saved[i][0]...), w.cut.saved[i][1]...)
	}
	for _, l := range w.links {
		if len(l.way) == 0 {
			continue
		}
		num(int64(l.slot), int64(l.shard))
		flags(l.broken)
		for _, m := range l.way {
			num(int64(m.part.Clock), int64(m.part.Incarnation), int64(m.part.Index))
			flags(m.tick, m.part.Ticked)
		}
	}
	return string(b)
}

// step is a possible next event.
type step struct {
	format string
	args   []any
	do     func(e *explored, w *world) error
}

// steps returns all possible next events in a state.
func (e *explored) steps(w *world) (next []step) {
	add := func(do func(e *explored, w *world) error, format string, args ...any) {
		next = append(next, step{format, args, do})
	}
	for i, l := range w.links {
		if len(l.way) > 0 {
			m := &l.way[0]
			add(func(e *explored, w *world) error { return e.deliver(w, i) },
				"shard %d gets from slot %d: clock %d part %d of incarnation %d, tick %v", l.shard, l.slot,
				m.part.Clock, m.part.Index, m.part.Incarnation, m.tick)
			if l.broken {
				add(func(_ *explored, w *world) error { w.links[i].way = nil; return nil },
					"shard %d gets no more of a broken connection of slot %d", l.shard, l.slot)
			}
		}
		if !l.broken && w.breaks > 0 && w.slots[l.slot].alive {
			add(func(e *explored, w *world) error { w.breaks--; e.reconnect(w, i); return nil },
				"slot %d and shard %d lose their connection", l.slot, l.shard)
		}
	}
	if e.cut {
		e.cutSteps(w, add)
	}
	for i := range w.slots {
		h := &w.slots[i]
		switch {
		case h.alive && !h.staging && h.clock < e.clocks:
			add(func(e *explored, w *world) error { e.stage(w, i); return nil }, "slot %d sends clock %d", i, h.clock)
		case h.alive && h.staging && w.staged(i):
			add(func(_ *explored, w *world) error { w.tick(i); return nil }, "slot %d ticks clock %d", i, h.clock)
		}
		if below := w.stagedBelow(i); h.alive && e.mode == perdure.ClockAtomic && below > h.ticked {
			add(func(_ *explored, w *world) error { w.tickBelow(i, below); return nil },
				"slot %d ticks its clocks below %d", i, below)
		}
		if h.alive && w.deaths > 0 {
			add(func(_ *explored, w *world) error { w.deaths--; w.die(i); return nil }, "slot %d's process dies", i)
		}
		for s := range w.shards {
			switch {
			case !h.alive && !h.fenced[s]:
				add(func(e *explored, w *world) error {
					w.slots[i].fenced[s] = true
					w.shards[s].Fence(perdure.Slot(i), w.slots[i].incarnation)
					return e.pump(w, s)
				}, "shard %d fences slot %d", s, i)
			case h.decided && !h.carried[s]:
				add(func(e *explored, w *world) error {
					w.slots[i].carried[s] = true
					w.shards[s].Decide(perdure.Slot(i), w.slots[i].incarnation, w.slots[i].start)
					return e.pump(w, s)
				}, "shard %d carries out slot %d's decision %d", s, i, h.start)
			}
		}
		switch {
		case !h.alive && !h.decided && h.fenced == [exploreShards]bool{true, true}:
			add(func(e *explored, w *world) error { return e.decide(w, i) }, "slot %d is decided", i)
		case !h.alive && h.decided && h.carried == [exploreShards]bool{true, true}:
			add(func(e *explored, w *world) error { w.begin(i); return nil }, "slot %d's next process starts", i)
		}
	}
	return next
}

// cutSteps adds the steps towards a cut by slot. A hold may be given up at any time, and a shard may end it by itself.
func (e *explored) cutSteps(w *world, add func(do func(e *explored, w *world) error, format string, args ...any)) {
	c := &w.cut
	settled := !slices.ContainsFunc(w.slots[:], func(h holder) bool { return !h.alive })
	if c.phase == cutNone && settled {
		add(func(_ *explored, w *world) error { w.cut.phase = cutHeld; return nil }, "a hold starts")
	}
	if c.phase == cutHeld {
		add(func(_ *explored, w *world) error { w.cut.phase = cutGivenUp; return nil }, "the hold is given up")
		if c.held == [exploreShards]bool{true, true} {
			add(func(_ *explored, w *world) error { w.nameCut(); return nil }, "the cut is named")
		}
	}
	for s, in := range w.shards {
		if c.phase == cutHeld && !c.held[s] {
			add(func(_ *explored, w *world) error {
				w.cut.held[s] = true
				w.shards[s].Hold().Set(1)
				return nil
			}, "shard %d holds", s)
		}
		if in.Hold().Number() > 0 {
			add(func(e *explored, w *world) error {
				w.shards[s].Hold().Set(0)
				return e.pump(w, s)
			}, "shard %d ends the hold by itself", s)
		}
		if c.phase > cutHeld && !c.done[s] {
			add(func(e *explored, w *world) error { return e.makeCut(w, s) }, "shard %d makes the cut", s)
		}
	}
}

// nameCut names the cut: for each slot the highest ticked count of any shard.
func (w *world) nameCut() {
	w.cut.phase = cutNamed
	for slot := range w.cut.upTo {
		for _, in := range w.shards {
			w.cut.upTo[slot] = max(w.cut.upTo[slot], in.Counts(perdure.Slot(slot)).Ticked)
		}
	}
}

// makeCut makes a shard take the entry that names the cut, or that gives the hold up.
func (e *explored) makeCut(w *world, shard int) error {
	c, in := &w.cut, w.shards[shard]
	c.done[shard] = true
	if c.phase == cutNamed && in.Hold().CutAt(c.upTo[:]) {
		if err := e.pump(w, shard); err != nil {
			return err
		}
		c.saved[shard], c.made[shard] = w.applied[shard], true
	}
	if c.made == [exploreShards]bool{true, true} && c.saved[0] != c.saved[1] {
		return fmt.Errorf("the shards have made different cuts at %v: %v and %v", c.upTo, c.saved[0], c.saved[1])
	}
	in.Hold().Set(0)
	return e.pump(w, shard)
}

// staged reports whether a slot's current clock is staged on all shards.
func (w *world) staged(slot int) bool {
	return !slices.ContainsFunc(w.shards[:], func(in *Sequencer) bool {
		return in.Counts(perdure.Slot(slot)).Staged <= w.slots[slot].clock
	})
}

// stagedBelow returns how many of a slot's clocks are staged on all shards, of those that its process has made.
func (w *world) stagedBelow(slot int) perdure.Clock {
	below := w.slots[slot].clock
	for _, in := range w.shards {
		below = min(below, in.Counts(perdure.Slot(slot)).Staged)
	}
	return below
}

// eachLink visits a slot's working connections.
func (w *world) eachLink(slot int, f func(l *link)) {
	for i := range w.links {
		if l := &w.links[i]; l.slot == slot && !l.broken {
			f(l)
		}
	}
}

// stage sends the current clock's update to all shards. A process that dies in the middle is covered by one that dies
// afterwards with the remaining messages lost in transit.
func (e *explored) stage(w *world, slot int) {
	h := &w.slots[slot]
	w.eachLink(slot, func(l *link) { e.send(h, l, h.clock, false) })
	h.staging = e.mode == perdure.ClockTwoStep
	if !h.staging {
		h.clock++
	}
}

func (e *explored) send(h *holder, l *link, clock perdure.Clock, ticked bool) {
	for i := range e.parts {
		l.way = append(l.way, message{part: UpdatePart{
			Slot: perdure.Slot(l.slot), Clock: clock, Incarnation: h.incarnation, Index: i, Of: e.parts, Ticked: ticked,
			Payload: fmt.Appendf(nil, "i%d", h.incarnation),
		}})
	}
}

func (w *world) tick(slot int) {
	h := &w.slots[slot]
	w.tickBelow(slot, h.clock+1)
	h.staging = false
	h.clock++
}

func (w *world) tickBelow(slot int, below perdure.Clock) {
	h := &w.slots[slot]
	w.eachLink(slot, func(l *link) {
		l.way = append(l.way, message{
			tick: true,
			part: UpdatePart{Slot: perdure.Slot(slot), Clock: below - 1, Incarnation: h.incarnation},
		})
	})
	h.ticked = below
}

// reconnect gives a slot a new connection to a shard, and sends what the shard reports as missing. Messages on the old
// connection may still arrive.
func (e *explored) reconnect(w *world, broken int) {
	w.links[broken].broken = true
	slot, shard := w.links[broken].slot, w.links[broken].shard
	h, l := &w.slots[slot], link{slot: slot, shard: shard}
	n := w.shards[shard].Counts(perdure.Slot(slot))
	sent := h.clock
	if h.staging {
		sent++
	}
	for c := max(h.first, n.Applied); c < sent; c++ {
		ticked := e.mode.Ticks() && c < h.ticked
		switch {
		case c >= n.Staged:
			e.send(h, &l, c, ticked)
		case ticked && c >= n.Ticked:
			l.way = append(l.way, message{
				tick: true,
				part: UpdatePart{Slot: perdure.Slot(slot), Clock: c, Incarnation: h.incarnation},
			})
		}
	}
	w.links = append(w.links, l)
}

// die ends a slot's process and records the next incarnation.
func (w *world) die(slot int) {
	w.eachLink(slot, func(l *link) { l.broken = true })
	w.slots[slot] = holder{incarnation: w.slots[slot].incarnation + 1}
}

// decide makes the coordinator's decision from the counts of all shards, which must all be fenced.
func (e *explored) decide(w *world, slot int) error {
	h := &w.slots[slot]
	n := w.shards[0].Counts(perdure.Slot(slot))
	start, staged := n.Applied, n.Staged
	for _, in := range w.shards {
		n := in.Counts(perdure.Slot(slot))
		staged = min(staged, n.Staged)
		if e.mode.Ticks() {
			start = max(start, n.Ticked)
		} else {
			start = min(start, n.Applied)
		}
	}
	if e.mode.Ticks() && staged < start {
		return fmt.Errorf("slot %d ticked clock %d, which is not staged on all shards", slot, start-1)
	}
	h.decided, h.start = true, start
	return nil
}

func (w *world) begin(slot int) {
	h := &w.slots[slot]
	*h = holder{incarnation: h.incarnation, alive: true, first: h.start, clock: h.start, ticked: h.start}
	for s := range w.shards {
		w.links = append(w.links, link{slot: slot, shard: s})
	}
}

// deliver delivers the first message of a connection to its shard.
func (e *explored) deliver(w *world, at int) error {
	l := &w.links[at]
	m := l.way[0]
	l.way = slices.Delete(l.way, 0, 1)
	in := w.shards[l.shard]
	decision := Fenced
	if m.tick {
		decision = in.Tick(m.part.Slot, m.part.Incarnation, m.part.Clock)
	} else {
		decision = in.Offer(m.part)
	}
	if decision == Gap && !l.broken {
		return errors.New("gap on a connection that lost nothing")
	}
	return e.pump(w, l.shard)
}

// pump applies what may be applied, and compares it with the expected result.
func (e *explored) pump(w *world, shard int) error {
	in := w.shards[shard]
	for u := in.Next(); u != nil; u = in.Next() {
		mine := &w.applied[shard][u.Slot]
		together := 1
		if e.mode == perdure.ClockTwoStep && e.mutations == (mutation.Set{}) { // those of the round that are left
			together = exploreSlots - int(u.Slot)
		}
		if n := len(slices.Collect(in.Round(u))); n != together && e.mutations == (mutation.Set{}) {
			return fmt.Errorf("shard %d returns slot %d's clock %d in a round of %d", shard, u.Slot, u.Clock, n)
		}
		switch at := applications(w.applied[shard][:]); {
		case u.Lost:
			return fmt.Errorf("shard %d counts clock %d of slot %d as lost", shard, u.Clock, u.Slot)
		case slices.ContainsFunc(u.Parts, func(p []byte) bool { return string(p) != string(u.Parts[0]) }):
			return fmt.Errorf("shard %d combines parts of two incarnations: %s", shard, u.Parts)
		case int(u.Clock) != applications([]string{*mine}):
			return fmt.Errorf("shard %d applies clock %d of slot %d after %s", shard, u.Clock, u.Slot, *mine)
		case e.mode == perdure.ClockTwoStep && (int(u.Slot) != at%exploreSlots || int(u.Clock) != at/exploreSlots):
			return fmt.Errorf("shard %d applies slot %d clock %d out of turn: %v", shard, u.Slot, u.Clock,
				w.applied[shard])
		}
		*mine += string(u.Parts[0])
	}
	for slot, one := range w.applied[0] {
		two := w.applied[1][slot]
		if e.mode.Ticks() && !strings.HasPrefix(one, two) && !strings.HasPrefix(two, one) {
			return fmt.Errorf("the shards apply different updates of slot %d: %s and %s", slot, one, two)
		}
	}
	return nil
}

// applications returns how many applied clocks a string such as "i1i1" stands for.
func applications(made []string) (n int) {
	for _, m := range made {
		n += strings.Count(m, "i")
	}
	return n
}

// finished checks a state in which nothing more can happen.
func (e *explored) finished(w *world) error {
	for s, in := range w.shards {
		if in.MinClock() != e.clocks {
			return fmt.Errorf("stuck: shard %d has applied %v", s, w.applied[s])
		}
	}
	if e.mode.Ticks() && w.applied[0] != w.applied[1] {
		return fmt.Errorf("the shards applied different updates: %v and %v", w.applied[0], w.applied[1])
	}
	return nil
}

// explore visits every state, and returns their number, or the steps that lead to the first wrong state.
func (e explored) explore() (states int, err error) {
	w := &world{deaths: e.deaths, breaks: e.breaks}
	for s := range w.shards {
		w.shards[s] = NewSequencer(e.mode, make([]perdure.Clock, exploreSlots), e.mutations)
	}
	for i := range w.slots {
		w.slots[i].incarnation = 1
		w.begin(i)
	}
	visited := map[string]bool{w.key(): true}
	var course []step
	var visit func(w *world) error
	visit = func(w *world) error {
		next := e.steps(w)
		if len(next) == 0 {
			return e.finished(w)
		}
		for _, s := range next {
			n := w.clone()
			course = append(course, s)
			if err := s.do(&e, n); err != nil {
				return err
			}
			if key := n.key(); !visited[key] {
				visited[key] = true
				if err := visit(n); err != nil {
					return err
				}
			}
			course = course[:len(course)-1]
		}
		return nil
	}
	if err := visit(w); err != nil {
		var sent strings.Builder
		for _, s := range course {
			fmt.Fprintf(&sent, "\n  "+s.format, s.args...)
		}
		return len(visited), fmt.Errorf("%w, after:%s", err, sent.String())
	}
	return len(visited), nil
}

// No clock is ever applied on one shard and lost on the other, none is applied twice, all are applied in order, and
// every course can finish.
func TestExploreAll(t *testing.T) {
	cases := []explored{
		{mode: perdure.ClockTwoStep, clocks: 2, parts: 1, deaths: 1},
		{mode: perdure.ClockTwoStep, clocks: 2, parts: 1, breaks: 1},
		{mode: perdure.ClockTwoStep, clocks: 1, parts: 2, deaths: 1},
		{mode: perdure.ClockOneStep, clocks: 2, parts: 1, deaths: 1},
		{mode: perdure.ClockOneStep, clocks: 2, parts: 1, breaks: 1},
		{mode: perdure.ClockAtomic, clocks: 2, parts: 1, deaths: 1},
		{mode: perdure.ClockAtomic, clocks: 2, parts: 1, breaks: 1},
		{mode: perdure.ClockAtomic, clocks: 1, parts: 2, deaths: 1},
		{mode: perdure.ClockAtomic, clocks: 2, parts: 1, cut: true},
		{mode: perdure.ClockAtomic, clocks: 1, parts: 1, deaths: 1, cut: true},
	}
	for _, e := range cases {
		t.Run(fmt.Sprintf("mode %v, %d clocks, %d parts, %d deaths, %d breaks, cut %v", e.mode, e.clocks, e.parts,
			e.deaths, e.breaks, e.cut), func(t *testing.T) {
			t.Parallel()
			states, err := e.explore()
			if err != nil {
				t.Error(err)
			}
			if states < 1000 {
				t.Errorf("only %d states: the explorer visits too little", states)
			}
			t.Logf("%d states", states)
		})
	}
}

// The explorer detects each disabled safety mechanism.
func TestExplorerNoticesWeakening(t *testing.T) {
	for _, e := range []explored{
		{mode: perdure.ClockTwoStep, clocks: 2, parts: 1, deaths: 1, mutations: mutation.Set{Staging: true}},
		{mode: perdure.ClockTwoStep, clocks: 2, parts: 1, breaks: 1, mutations: mutation.Set{ExactlyOnce: true}},
		{mode: perdure.ClockOneStep, clocks: 2, parts: 1, deaths: 1, mutations: mutation.Set{ExactlyOnce: true}},
		{mode: perdure.ClockTwoStep, clocks: 2, parts: 1, deaths: 1, mutations: mutation.Set{Fencing: true}},
		{mode: perdure.ClockAtomic, clocks: 2, parts: 1, deaths: 1, mutations: mutation.Set{Staging: true}},
		{mode: perdure.ClockAtomic, clocks: 2, parts: 1, breaks: 1, mutations: mutation.Set{ExactlyOnce: true}},
		{mode: perdure.ClockAtomic, clocks: 2, parts: 1, deaths: 1, mutations: mutation.Set{Fencing: true}},
		{mode: perdure.ClockAtomic, clocks: 1, parts: 1, cut: true, mutations: mutation.Set{Cuts: true}},
	} {
		_, err := e.explore()
		if err == nil {
			t.Errorf("%+v: no error was found", e)
		}
		t.Logf("%+v: %v", e, err)
	}
}
