package replica

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// The explorer of combined updates visits every state that one replica can reach. Slots stage and tick clocks, resend
// updates, die and are replaced, lose clocks, join and leave; the replica may be replaced by a copy of its snapshot at
// any moment. After each step, plain loops over the updates that count compute the expected rows and rule state.
const (
	courseRows  = 4
	courseSlots = 3
)

// combineCase is one case: the events that may happen in it, and the safety mechanisms that are disabled.
type combineCase struct {
	how       perdure.Combine
	spans     []protocol.Interval
	deaths    int // process deaths
	losses    int // clocks that count as lost because they were not staged when their slot was decided
	again     int // updates that are sent twice
	copies    int // replacements of the replica by a copy of its snapshot
	jumps     int // rises of a slot's count above what the rows have, as in a lost shard
	mutations mutation.Set
}

// course is one complete state.
type course struct {
	combineCase
	t     testing.TB
	r     *Replica
	slots [courseSlots]courseSlot
	lost  [courseSlots][mostClocks]bool
}

// courseSlot is a slot's process.
type courseSlot struct {
	incarnation perdure.Incarnation
	clock       perdure.Clock // the clock that it works on
	staged      bool          // it has sent the update of this clock
}

const courseClocks = 2

// touches returns the value that a slot adds to a row in a clock; 0 if it does not touch the row. No slot touches the
// last row.
func touches(slot, row int, clock perdure.Clock) float32 {
	if row == courseRows-1 || row > 0 && (slot+row+int(clock))%2 == 0 {
		return 0
	}
	return 0.37*float32(slot+1) + 0.11*float32(clock) + 0.05*float32(row)
}

func weighs(slot int, clock perdure.Clock) float64 { return 3 + 2*float64(slot) + float64(clock) }

// courseRule is a rule for which k runs differ from a single run.
var courseRule = perdure.Rule{Kind: perdure.RuleNesterov, Rate: 0.5, Momentum: 0.75}

func newCourse(t *testing.T, c combineCase) *course {
	t.Helper()
	b := newBench(t, "bsp", "none", len(c.spans))
	job := *b.job
	s := &course{combineCase: c, t: t, r: New(Settings{Job: job, Mutations: c.mutations})}
	s.r.SetView(&b.view, Role{Head: true}, false)
	n := len(c.spans)
	s.r.SetContent(Content{States: make([][]byte, n), Applied: make([]perdure.Clock, n)}, &b.view)
	spec := perdure.TableSpec{
		Name: "w", Dim: 1, Rows: courseRows, Rule: courseRule, Combine: c.how,
		Consistency: perdure.Consistency{Kind: perdure.BSP},
	}
	s.step(wire.Frame{Header: wire.Header{Kind: wire.KindAddTable, Slot: perdure.NoSlot}, Payload: wire.JSON(spec)})
	s.step(wire.Frame{
		Header:  wire.Header{Kind: wire.KindMembership, Slot: perdure.NoSlot, Clock: 1},
		Payload: wire.JSON(c.spans),
	})
	for i, interval := range c.spans {
		s.slots[i] = courseSlot{incarnation: 1, clock: interval.From}
	}
	return s
}

func (s *course) step(f wire.Frame) {
	s.r.Step(&Entry{Frame: f}, f.Body)
	s.r.Settle()
}

func (s *course) clone() *course {
	n := *s
	n.r = cloneOf(s.r)
	return &n
}

// update returns a slot's update of a clock as its process sends it.
func (s *course) update(slot int, clock perdure.Clock, flags uint16) wire.Frame {
	var body []byte
	for row := range courseRows {
		if g := touches(slot, row, clock); g != 0 {
			body = wire.AppendBlock(body, &wire.Block{
				Rows: wire.Rows{First: perdure.RowID(row), Count: 1}, Values: []float32{g},
			})
		}
	}
	if s.how == perdure.CombineWeighted {
		body = wire.AppendWeightBlock(body, 0, weighs(slot, clock))
	}
	return wire.Frame{Header: wire.Header{
		Kind: wire.KindUpdate, Slot: perdure.Slot(slot), Clock: clock, Parts: 1, Flags: flags,
		Incarnation: s.slots[slot].incarnation,
	}, Body: body}
}

// courseMove is a possible next event.
type courseMove struct {
	says string
	do   func(s *course)
}

func (s *course) moves() (next []courseMove) {
	add := func(may bool, do func(s *course), says string, args ...any) {
		if may {
			next = append(next, courseMove{fmt.Sprintf(says, args...), do})
		}
	}
	for i := range s.spans {
		p := s.slots[i]
		works := p.clock < courseClocks && s.spans[i].Has(p.clock)
		add(works && !p.staged, func(s *course) {
			s.step(s.update(i, p.clock, 0))
			s.slots[i].staged = true
		}, "slot %d stages clock %d", i, p.clock)
		add(works && p.staged, func(s *course) {
			s.step(wire.Frame{Header: wire.Header{
				Kind: wire.KindTick, Slot: perdure.Slot(i), Clock: p.clock, Incarnation: p.incarnation,
			}})
			s.slots[i].clock, s.slots[i].staged = p.clock+1, false
		}, "slot %d ticks clock %d", i, p.clock)
		add(s.again > 0 && p.clock > s.spans[i].From, func(s *course) {
			s.again--
			s.step(s.update(i, p.clock-1, wire.FlagTicked))
		}, "slot %d sends clock %d again", i, p.clock-1)
		for lost := range perdure.Clock(min(s.losses, 1) + 1) {
			add(works && s.deaths > 0, func(s *course) { s.die(i, lost) },
				"slot %d's process dies, and %d clocks more count", i, lost)
		}
	}
	for i, n := range s.r.State.Applied() {
		add(s.jumps > 0 && s.slots[i].clock > n, func(s *course) { s.jump(i) },
			"clock %d of slot %d is lost", n, i)
	}
	add(s.copies > 0, func(s *course) {
		s.copies--
		s.r = copied(s.t, s.r)
	}, "the replica is made of its snapshot")
	return next
}

// die replaces a slot's process. The clocks that it had ticked count, and so do more later ones: staged if possible,
// lost otherwise.
func (s *course) die(slot int, more perdure.Clock) {
	s.deaths--
	p := &s.slots[slot]
	p.incarnation++
	s.step(wire.Frame{Header: wire.Header{
		Kind: wire.KindFence, Slot: perdure.Slot(slot), Incarnation: p.incarnation,
	}})
	has := s.r.State.Counts(perdure.Slot(slot))
	start := has.Ticked + more
	for c := has.Staged; c < start; c++ {
		s.lost[slot][c] = true
		s.losses--
	}
	s.step(wire.Frame{Header: wire.Header{
		Kind: wire.KindDecide, Slot: perdure.Slot(slot), Incarnation: p.incarnation, Clock: start,
	}})
	p.clock, p.staged = start, false
}

// jump raises a slot's count by a clock that it has ticked, although the rows will never contain it.
func (s *course) jump(slot int) {
	base := slices.Clone(s.r.State.Applied())
	s.lost[slot][base[slot]] = true
	s.jumps--
	base[slot]++
	s.step(wire.Frame{
		Header:  wire.Header{Kind: wire.KindBase, Slot: perdure.NoSlot},
		Payload: wire.AppendState(nil, &wire.State{Applied: base}),
	})
}

// copied returns a replica made from another one's snapshot.
func copied(t testing.TB, r *Replica) *Replica {
	b := &bench{Replica: r, t: t, view: *r.view}
	n := b.copyOf().Replica
	n.mutations, n.State.mutations = r.mutations, r.State.mutations
	return n
}

// check compares the rows and the rule's state with the result of the updates that count.
func (s *course) check() error {
	var w, v [courseRows]float32
	for clock := range s.r.State.MinClock() {
		n, weights := 0, 0.0
		for i, interval := range s.spans {
			if interval.Has(clock) && !s.lost[i][clock] {
				n++
				weights += weighs(i, clock)
			}
		}
		for row := range w {
			sum, touched := float32(0), false
			for i, interval := range s.spans {
				g := touches(i, row, clock)
				if g == 0 || !interval.Has(clock) || s.lost[i][clock] {
					continue
				}
				switch s.how {
				case perdure.CombineMean:
					g *= float32(1 / float64(n))
				case perdure.CombineWeighted:
					g *= float32(weighs(i, clock) / weights)
				}
				sum, touched = sum+g, true
			}
			if touched {
				v[row] = float32(0.75*v[row]) + sum
				w[row] -= float32(0.5 * (sum + float32(0.75*v[row])))
			}
		}
	}
	img := s.r.State.Parts()[0].Image()
	for row := range w {
		for plane, want := range []float32{w[row], v[row]} {
			if got := img.Planes[plane][0][row]; math.Float32bits(got) != math.Float32bits(want) {
				return fmt.Errorf("at clock %d row %d has %v in plane %d, want %v", s.r.State.MinClock(), row,
					got, plane, want)
			}
		}
	}
	if s.r.State.sums.open && !s.mutations.ExactlyOnce {
		return fmt.Errorf("a clock is half applied while the state is visible")
	}
	return nil
}

// key encodes the complete state.
func (s *course) key() string {
	b, err := json.Marshal(s.r.State.intake.State())
	if err != nil {
		s.t.Fatal(err)
	}
	return fmt.Sprintf("%s %v %+v %v %v %d %d %d %d %d", b, s.r.State.Parts()[0].Image().Planes,
		*s.r.State.sums.tables[0].sum, s.slots, s.lost, s.deaths, s.losses, s.again, s.copies, s.jumps)
}

// explore visits every state, and returns their number, or the moves that lead to the first wrong state.
func (c combineCase) explore(t *testing.T) (states int, err error) {
	visited := map[string]bool{}
	var way []string
	var visit func(s *course) error
	visit = func(s *course) error {
		key := s.key()
		if visited[key] {
			return nil
		}
		visited[key] = true
		next := s.moves()
		if s.r.State.MinClock() < courseClocks && len(next) == 0 {
			return fmt.Errorf("stuck at clock %d", s.r.State.MinClock())
		}
		for _, m := range next {
			way = append(way, m.says)
			n := s.clone()
			m.do(n)
			if fx := n.r.Effects(); fx.Fail != nil {
				return fx.Fail
			}
			n.r.Effects().Clear()
			if err := n.check(); err != nil {
				return err
			}
			if err := visit(n); err != nil {
				return err
			}
			way = way[:len(way)-1]
		}
		return nil
	}
	if err := visit(newCourse(t, c)); err != nil {
		return len(visited), fmt.Errorf("%w, after:\n  %s", err, strings.Join(way, "\n  "))
	}
	return len(visited), nil
}

var (
	all      = []protocol.Interval{{}, {}}
	changing = []protocol.Interval{{}, {Until: 1}, {From: 1}}
)

// In every course the rule runs once for each clock and each row that a slot touches, with the sum of the updates that
// count, divided by the number of their slots. Readers see only whole clocks.
func TestExploreCombined(t *testing.T) {
	for _, how := range []perdure.Combine{perdure.CombineSum, perdure.CombineMean, perdure.CombineWeighted} {
		for _, c := range []combineCase{
			{spans: all, again: 1, copies: 1},
			{spans: all, deaths: 1, copies: 1},
			{spans: all, deaths: 2, losses: 2},
			{spans: changing, deaths: 1, losses: 1},
			{spans: changing, again: 1},
			{spans: all, jumps: 2},
			{spans: changing, jumps: 1, copies: 1},
		} {
			c.how = how
			t.Run(fmt.Sprintf("%s, %d slots, %d deaths, %d losses, %d again, %d copies, %d jumps", how, len(c.spans),
				c.deaths, c.losses, c.again, c.copies, c.jumps), func(t *testing.T) {
				states, err := c.explore(t)
				if err != nil {
					t.Error(err)
				}
				if states < 50 {
					t.Errorf("only %d states: the explorer visits too little", states)
				}
				t.Logf("%d states", states)
			})
		}
	}
}

// The explorer detects each disabled mechanism: adding an update once, dividing by the slots that count, running the
// rule once.
func TestExploreCombinedMissesWhatIsOff(t *testing.T) {
	divisor := mutation.Set{Combine: mutation.Combine{Divisor: true}}
	once := mutation.Set{Combine: mutation.Combine{Once: true}}
	for _, c := range []combineCase{
		{how: perdure.CombineSum, spans: all, again: 1, mutations: mutation.Set{ExactlyOnce: true}},
		{how: perdure.CombineMean, spans: all, again: 1, mutations: mutation.Set{ExactlyOnce: true}},
		{how: perdure.CombineMean, spans: all, deaths: 1, losses: 1, mutations: divisor},
		{how: perdure.CombineWeighted, spans: all, deaths: 1, losses: 1, mutations: divisor},
		{how: perdure.CombineSum, spans: all, mutations: once},
		{how: perdure.CombineMean, spans: changing, mutations: once},
	} {
		_, err := c.explore(t)
		if err == nil {
			t.Errorf("%s, %+v: no course failed", c.how, c.mutations)
			continue
		}
		what, _, _ := strings.Cut(err.Error(), "\n")
		t.Logf("%s, exactly once off %v, %+v: %s", c.how, c.mutations.ExactlyOnce, c.mutations.Combine, what)
	}
}
