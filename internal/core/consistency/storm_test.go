package consistency

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
)

// storm is a random course of events for one shard. It is plain data: rapid generates and shrinks it, and a negative
// control selects it by number.
type storm struct {
	Mode    perdure.ClockMode
	Slots   int
	Parts   int           // parts per update
	Streams bool          // parts are sent before their number is known
	Every   perdure.Clock // clocks between two cuts; 0: no cuts
	Merges  bool          // an update may cover several clocks
	Liars   bool          // a process that resends may divide the clocks differently
	Deeds   []deed
}

// deed is one event; A and B choose among the possible ones.
type deed struct {
	Kind deedKind
	A, B int
}

type deedKind int

const (
	send    deedKind = iota // a slot's process sends its next update
	tick                    // it ticks an update that is staged here
	deliver                 // any message arrives
	double                  // a message arrives and stays in transit
	resend                  // a process resends everything that it keeps
	lie                     // a process sends what no correct worker sends
	die                     // a slot's process dies, and its incarnation is fenced
	decide                  // the slot is decided, and its successor starts
	advance                 // the shard was copied at its cut
	end                     // the job's end becomes known
	deedKinds
)

func storms(parts int) *rapid.Generator[storm] {
	deeds := rapid.Custom(func(t *rapid.T) deed {
		kinds := []deedKind{
			send, send, send, tick, tick, deliver, deliver, deliver, deliver, deliver, double, double,
			resend, lie, die, decide, decide, advance, advance, end,
		}
		return deed{
			rapid.SampledFrom(kinds).Draw(t, "kind"), rapid.IntRange(0, 99).Draw(t, "a"),
			rapid.IntRange(0, 99).Draw(t, "b"),
		}
	})
	return rapid.Custom(func(t *rapid.T) storm {
		return storm{
			Mode:    rapid.SampledFrom(modes).Draw(t, "mode"),
			Slots:   rapid.IntRange(1, 3).Draw(t, "slots"),
			Parts:   rapid.IntRange(1, parts).Draw(t, "parts"),
			Streams: rapid.Bool().Draw(t, "streams"),
			Every:   perdure.Clock(rapid.IntRange(0, 3).Draw(t, "every")),
			Merges:  rapid.Bool().Draw(t, "merges"),
			Liars:   rapid.Bool().Draw(t, "liars"),
			Deeds:   rapid.SliceOfN(deeds, 40, 200).Draw(t, "deeds"),
		}
	})
}

var modes = []perdure.ClockMode{perdure.ClockOneStep, perdure.ClockAtomic, perdure.ClockTwoStep}

// message is in transit to the shard.
type message struct {
	tick bool
	part UpdatePart // for a tick: Slot, Clock, Incarnation
}

// process speaks for a slot, and follows the same rules as a worker.
type process struct {
	incarnation perdure.Incarnation
	silent      bool          // dead, and its successor has not started
	clock       perdure.Clock // the next clock to send
	ticked      perdure.Clock // clocks < ticked are decided
	merges      perdure.Clock // earlier processes of the slot may have sent clocks below this
	sent        []piece       // everything that it has sent
}

// piece is the range of an update: clocks from ≤ clock < until.
type piece struct{ from, until perdure.Clock }

// course is a storm in progress: an intake and the naive one.
type course struct {
	storm
	in    *Sequencer
	naive naive
	procs []process
	way   []message
	seen  []effect // updates that the intake applied
}

// run plays a storm, then lets it calm down, and returns the first error.
func (s storm) run(mutations mutation.Set) error {
	c := &course{storm: s, in: NewSequencer(s.Mode, make([]perdure.Clock, s.Slots), mutations)}
	c.naive = naive{mode: s.Mode, parts: s.Parts, cut: s.Every, counts: make([]perdure.Clock, s.Slots)}
	c.in.SetCut(s.Every)
	c.procs = make([]process, s.Slots)
	for i := range c.procs {
		c.die(i)
		c.decide(i, 0)
	}
	for i, d := range s.Deeds {
		if err := c.do(d); err != nil {
			return fmt.Errorf("deed %d %v: %w", i, d, err)
		}
	}
	return c.calm()
}

// do plays one deed on both and compares them.
func (c *course) do(d deed) error {
	slot := d.A % c.Slots
	p := &c.procs[slot]
	switch d.Kind {
	case send:
		if !p.silent && (c.Mode != perdure.ClockTwoStep || p.clock == p.ticked) {
			until := c.choose(slot, d.B)
			c.sendParts(slot, piece{p.clock, until})
			p.sent = append(p.sent, piece{p.clock, until})
			p.clock = until
		}
	case tick:
		if !c.Mode.Ticks() || p.silent {
			return nil
		}
		before, staged := p.ticked, c.in.Counts(perdure.Slot(slot)).Staged
		for _, of := range p.sent { // one update or more
			if of.from == p.ticked && of.until <= staged && (p.ticked == before || d.B%2 == 1) {
				p.ticked = of.until
			}
		}
		if p.ticked > before {
			c.way = append(c.way, message{
				tick: true,
				part: UpdatePart{Slot: perdure.Slot(slot), Clock: p.ticked - 1, Incarnation: p.incarnation},
			})
		}
	case deliver, double:
		if len(c.way) == 0 {
			return nil
		}
		at := d.B % len(c.way)
		m := c.way[at]
		if d.Kind == deliver {
			c.way = slices.Delete(c.way, at, at+1)
		}
		return c.arrive(m)
	case resend:
		c.resend(slot)
	case lie:
		c.lie(slot, d.B)
	case die:
		c.die(slot)
	case decide:
		c.decide(slot, d.B)
	case advance:
		if c.in.AtCut() {
			c.naive.cut += c.Every
			c.in.SetCut(c.naive.cut)
		}
	case end:
		if c.naive.end == 0 && d.B < 10 {
			c.naive.end = max(slices.Max(c.naive.counts), 1) + perdure.Clock(d.B)
			for i := range c.procs {
				if c.Merges { // a cut must be between two updates of every slot
					c.naive.end = max(c.naive.end, c.procs[i].clock)
				}
				if c.Liars { // and beyond each piece in transit
					c.naive.end = max(c.naive.end, c.procs[i].clock+mostLies)
				}
			}
			c.in.SetEnd(c.naive.end)
		}
	}
	return c.compare()
}

// choose returns the clock after the last of a slot's next update. An update of several clocks must not contain clocks
// that an earlier process of the slot may have sent, nor clocks on both sides of a cut or of the end.
func (c *course) choose(slot, choice int) perdure.Clock {
	p := &c.procs[slot]
	until := p.clock + 1
	for ; c.Merges && c.Mode != perdure.ClockTwoStep && p.clock >= p.merges && choice%4 > 0; choice-- {
		if c.Every > 0 && until%c.Every == 0 || until == c.naive.end {
			break
		}
		until++
	}
	return until
}

// sendParts sends an update's parts. Their content differs between incarnations.
func (c *course) sendParts(slot int, of piece) {
	p, clock := &c.procs[slot], of.from
	for i := range c.Parts {
		n := c.Parts
		if c.Streams && clock == p.clock && i < c.Parts-1 {
			n = 0
		}
		payload := fmt.Sprintf("s%dc%di%dp%d", slot, clock, p.incarnation, i)
		c.way = append(c.way, message{part: UpdatePart{
			Slot: perdure.Slot(slot), Clock: clock, Clocks: int(of.until - clock), Incarnation: p.incarnation, Index: i,
			Of:     n,
			Ticked: c.Mode.Ticks() && clock < p.ticked, Payload: []byte(payload),
		}})
	}
}

func (c *course) resend(slot int) {
	p := &c.procs[slot]
	for _, of := range p.sent {
		if of.until <= c.in.Applied()[slot] || p.silent {
			continue
		}
		c.sendParts(slot, of)
		if of.from < p.ticked {
			c.way = append(c.way, message{
				tick: true,
				part: UpdatePart{Slot: perdure.Slot(slot), Clock: of.until - 1, Incarnation: p.incarnation},
			})
		}
	}
}

// lie sends clocks in pieces that no worker sends. A piece never has clocks on both sides of a cut or of the end,
// because no shard can recover from that.
func (c *course) lie(slot, choice int) {
	p := &c.procs[slot]
	from := p.clock - perdure.Clock(choice%5)
	if !c.Liars || p.silent || from < 0 {
		return
	}
	until := from + 1
	for range choice % mostLies {
		if c.Every > 0 && until%c.Every == 0 || until == c.naive.end {
			break
		}
		until++
	}
	c.sendParts(slot, piece{from, until})
}

// mostLies is the maximum number of clocks in a lie.
const mostLies = 3

// arrive passes a message to both.
func (c *course) arrive(m message) error {
	var got, want Outcome
	if m.tick {
		got = c.in.Tick(m.part.Slot, m.part.Incarnation, m.part.Clock)
		want = c.naive.judgeTick(m.part.Slot, m.part.Incarnation, m.part.Clock)
	} else {
		got, want = c.in.Offer(m.part), c.naive.judge(m.part)
	}
	if got != want {
		return fmt.Errorf("%+v: %v, want %v", m, got, want)
	}
	return c.compare()
}

// die replaces a slot's process: older incarnations are fenced.
func (c *course) die(slot int) {
	p := &c.procs[slot]
	*p = process{incarnation: p.incarnation + 1, silent: true}
	c.in.Fence(perdure.Slot(slot), p.incarnation)
	c.naive.log = append(c.naive.log, entry{
		kind: fenceEntry,
		part: UpdatePart{Slot: perdure.Slot(slot), Incarnation: p.incarnation},
	})
}

// decide settles a fenced slot as the counts of other shards might require. With ticks, another shard may
// have seen one more tick, or may have lost its rows, so that this one is ahead. Otherwise another shard may have
// applied less.
func (c *course) decide(slot, choice int) {
	p, s := &c.procs[slot], perdure.Slot(slot)
	if !p.silent {
		return
	}
	n := c.in.Counts(s)
	start := n.Applied
	switch {
	case c.Mode.Ticks():
		if start = n.Ticked; choice%2 == 1 {
			start++
			for _, u := range c.in.Pending(s) {
				if u.Clock == n.Ticked && u.complete() {
					start = u.until()
				}
			}
		}
		if c.naive.end > 0 {
			start = min(start, max(c.naive.end, n.Ticked))
		}
	case choice%2 == 1:
		start = max(0, start-1)
	}
	c.in.Decide(s, p.incarnation, start)
	c.naive.log = append(c.naive.log, entry{
		kind: decideEntry, part: UpdatePart{Slot: s, Incarnation: p.incarnation},
		start: start,
	})
	p.silent, p.clock, p.ticked, p.merges = false, start, start, n.Staged
}

// compare drains the intake and compares its complete state with the naive one's.
func (c *course) compare() error {
	for u := c.in.Next(); u != nil; u = c.in.Next() {
		c.seen = append(c.seen, effect{slot: u.Slot, clock: u.Clock, clocks: u.Clocks, content: content(u)})
	}
	c.naive.apply()
	if !slices.Equal(c.seen, c.naive.applied) {
		return fmt.Errorf("applied %v, want %v", c.seen, c.naive.applied)
	}
	if !slices.Equal(c.in.Applied(), c.naive.counts) {
		return fmt.Errorf("applied vector %v, want %v", c.in.Applied(), c.naive.counts)
	}
	for i := range c.procs {
		slot := perdure.Slot(i)
		if got, want := c.in.Counts(slot), c.naive.howFar(slot); got != want {
			return fmt.Errorf("slot %d: counts %+v, want %+v", i, got, want)
		}
	}
	least := slices.Min(c.naive.counts)
	if at := c.naive.cut > 0 && least == c.naive.cut; c.in.MinClock() != least || c.in.AtCut() != at {
		return fmt.Errorf("MinClock %d, at cut %v; want %d, %v", c.in.MinClock(), c.in.AtCut(), least, at)
	}
	if most := slices.Max(c.naive.counts); c.naive.cut > 0 && most > c.naive.cut || c.naive.end > 0 &&
		most > c.naive.end {
		return fmt.Errorf("counts %v beyond cut %d or end %d", c.naive.counts, c.naive.cut, c.naive.end)
	}
	return nil
}

// calm lets every process finish. Everything must be applied, each clock of each slot once and in order.
func (c *course) calm() error {
	goal := slices.Max(c.naive.counts) + 2
	if c.naive.end > 0 {
		goal = min(goal, c.naive.end)
	}
	for slot := range c.procs {
		if c.Liars { // the pieces that it has sent may no longer fit together
			c.die(slot)
		}
	}
	for round := 0; slices.Min(c.in.Applied()) < goal; round++ {
		if round > 100 {
			return fmt.Errorf("stuck at %v, goal %d: %s", c.in.Applied(), goal, describe(c.in))
		}
		for slot := range c.procs {
			for _, kind := range []deedKind{decide, send, resend, tick, advance} {
				if err := c.do(deed{Kind: kind, A: slot}); err != nil {
					return fmt.Errorf("calm, round %d: %w", round, err)
				}
			}
			for len(c.way) > 0 {
				if err := c.do(deed{Kind: deliver}); err != nil {
					return fmt.Errorf("calm, round %d: %w", round, err)
				}
			}
		}
	}
	next := make([]perdure.Clock, c.Slots)
	for _, e := range c.seen {
		if e.clock != next[e.slot] {
			return fmt.Errorf("slot %d: clock %d applied, want %d", e.slot, e.clock, next[e.slot])
		}
		next[e.slot] += e.clocks
	}
	return nil
}

// An intake applies the same as the naive one, whatever is lost, duplicated, reordered or resent.
func TestIntakeLikeNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if err := storms(3).Draw(t, "storm").run(mutation.Set{}); err != nil {
			t.Fatal(err)
		}
	})
}

// The storms detect each disabled safety mechanism.
func TestStormsNoticeWeakening(t *testing.T) {
	for _, mutations := range []mutation.Set{{ExactlyOnce: true}, {Staging: true}} {
		noticed := 0
		for seed := range 50 {
			if storms(1).Example(seed).run(mutations) != nil {
				noticed++
			}
		}
		t.Logf("%+v: %d of 50 storms fail", mutations, noticed)
		if noticed == 0 {
			t.Errorf("%+v: no storm fails", mutations)
		}
	}
}
