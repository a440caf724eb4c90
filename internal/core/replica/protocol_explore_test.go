package replica

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/mutation"
)

// move is a possible next event.
type move struct {
	kind        moveKind
	slot, shard int
	row         int
}

type moveKind int

const (
	goOn moveKind = iota
	up
	upLate
	loseLate
	down
	pushOn
	drop
	breakUp
	ahead
	dies
)

func (m move) String() string {
	names := []string{
		"reads, asks or ends its clock", "is heard", "is heard late", "is not heard any more", "hears",
		"is pushed more", "gives up", "loses its connection", "asks ahead", "dies",
	}
	return fmt.Sprintf("slot %d %s (shard %d, row %d)", m.slot, names[m.kind], m.shard, m.row)
}

// moves returns all possible next events.
func (s *system) moves() (next []move) {
	add := func(may bool, kind moveKind, slot, shard, row int) {
		if may {
			next = append(next, move{kind, slot, shard, row})
		}
	}
	for i := range s.slots {
		r := &s.readers[i]
		add(s.next(i) != waits, goOn, i, 0, 0)
		add(!r.dead && s.left.deaths > 0, dies, i, 0, 0)
		working := !r.dead && r.clock < s.ends[i]
		for j := range s.plan.shards {
			add(len(s.ups[i][j]) > 0, up, i, j, 0)
			add(len(s.late[i][j]) > 0, upLate, i, j, 0)
			add(len(s.late[i][j]) > 0, loseLate, i, j, 0)
			add(len(s.downs[i][j]) > 0, down, i, j, 0)
			add(!r.dead && s.shards[j].pushes(i), pushOn, i, j, 0)
			add(working && r.links[j].open && s.left.breaks > 0, breakUp, i, j, 0)
		}
		for row := range s.rows {
			l, j := r.look(row), s.home(row)
			add(working && s.left.drops > 0 && l.Pushed && !l.Unwanted, drop, i, j, row)
			add(working && s.left.aheads > 0 && r.links[j].open && !l.Pushed, ahead, i, j, row)
		}
	}
	return next
}

// do makes a move.
func (s *system) do(m move) error {
	switch m.kind {
	case goOn:
		return s.goOn(m.slot)
	case up:
		return s.toShard(m.slot, m.shard)
	case upLate:
		f := s.late[m.slot][m.shard][0]
		s.late[m.slot][m.shard] = append([]frame(nil), s.late[m.slot][m.shard][1:]...)
		return s.arrive(m.slot, m.shard, f)
	case loseLate:
		s.late[m.slot][m.shard] = nil
	case down:
		return s.toReader(m.slot, m.shard)
	case pushOn:
		s.push(m.slot, m.shard)
	case drop:
		s.left.drops--
		s.unwant(m.slot, m.row)
	case breakUp:
		s.left.breaks--
		s.open(m.slot, m.shard)
	case ahead:
		s.left.aheads--
		s.prefetch(m.slot, m.row)
	case dies:
		s.left.deaths--
		return s.die(m.slot)
	}
	return nil
}

// die ends a slot's process. No other process replaces it.
func (s *system) die(slot int) error {
	s.readers[slot].dead = true
	for j := range s.plan.shards {
		s.ups[slot][j], s.late[slot][j], s.downs[slot][j] = nil, nil, nil
		if err := s.leaves(slot, j); err != nil {
			return err
		}
	}
	return nil
}

// explore visits every state, and returns their number, or the moves that lead to the first wrong state.
func (p *plan) explore() (states int, err error) {
	visited := map[string]bool{}
	var course []move
	var visit func(s *system) error
	visit = func(s *system) error {
		key := s.key()
		if visited[key] {
			return nil
		}
		visited[key] = true
		next := s.moves()
		if len(next) == 0 {
			return s.finished()
		}
		for _, m := range next {
			course = append(course, m)
			n, err := s.after(m)
			if err != nil {
				return err
			}
			if err := visit(n); err != nil {
				return err
			}
			course = course[:len(course)-1]
		}
		return nil
	}
	s := newSystem(p)
	if err = visit(s); err != nil {
		for _, m := range course {
			err = fmt.Errorf("%w\n  %v", err, m)
		}
	}
	return len(visited), err
}

// small returns a plan of 2 slots that end at the given clocks, and read and change all rows in every clock.
func small(t *testing.T, name string, ends [2]perdure.Clock, rows int, c chances) *plan {
	p := &plan{model: model(t, name), slots: 2, shards: 1, rows: rows, piece: 1, chances: c}
	if rows == 1 {
		p.spare = 1
	}
	for slot, end := range ends {
		p.ends[slot] = end
		for clock := range end {
			p.reads[slot][clock] = 1<<rows - 1
			p.writes[slot][clock] = 1<<rows - 1
		}
	}
	return p
}

// Under every model every course satisfies the model's definition and finishes.
func TestExploreModels(t *testing.T) {
	two, three := [2]perdure.Clock{2, 2}, [2]perdure.Clock{3, 3}
	for _, c := range []struct {
		model  string
		ends   [2]perdure.Clock
		rows   int
		oneWay bool // slot 0 only writes, slot 1 only reads
		chances
		large bool // takes 8 s or more with the race detector, which cannot find anything in one goroutine
	}{
		{"bsp", two, 2, false, chances{}, false},
		{"bsp", two, 1, false, chances{breaks: 1}, false},
		{"ssp:0", three, 1, false, chances{}, false},
		{"ssp:1", three, 1, false, chances{}, false},
		{"ssp:1", two, 1, false, chances{breaks: 1}, false},
		{"essp:0", two, 2, false, chances{}, false},
		{"essp:0", two, 1, false, chances{breaks: 1}, false},
		{"essp:0", two, 1, false, chances{drops: 1}, false},
		{"essp:1", three, 1, false, chances{}, true},
		{"essp:0", two, 1, true, chances{aheads: 1, drops: 1}, true},
		{"essp:0", two, 1, true, chances{breaks: 1, drops: 1}, false},
		{"essp:0", two, 2, true, chances{drops: 1}, false},
		{"asp", two, 1, false, chances{breaks: 1}, false},
		{"vap:1", two, 1, true, chances{deaths: 1}, false},
		{"vap:1", two, 1, true, chances{drops: 1}, false},
		{"vap:1", two, 1, true, chances{breaks: 1}, true},
		{"vap:1", [2]perdure.Clock{2, 1}, 1, false, chances{}, false},
		{"vap:1", two, 2, true, chances{}, true},
	} {
		t.Run(fmt.Sprintf("%s, %d clocks, %d rows, one way %v, %+v", c.model, c.ends, c.rows, c.oneWay, c.chances),
			func(t *testing.T) {
				if testing.Short() && c.large {
					t.Skip("large: runs without -short only")
				}
				t.Parallel()
				p := small(t, c.model, c.ends, c.rows, c.chances)
				p.oneWay = c.oneWay
				if c.oneWay {
					p.reads[0], p.writes[1] = [mostClocks]rowMask{}, [mostClocks]rowMask{}
				}
				states, err := p.explore()
				if err != nil {
					t.Error(err)
				}
				// The bound of the lemma is tight: apart from a reader's own updates, some course lacks all that it
				// allows.
				m := p.model
				if others := consistency.MissingBound(p.slots-1, m.Staleness); m.Bounded() && !c.oneWay &&
					c.ends[0] > 2*m.Staleness && p.worst != others {
					t.Errorf("at most %d updates were missing in any course, want %d", p.worst, others)
				}
				t.Logf("%d states; at most %d updates were missing", states, p.worst)
			})
	}
}

// For each disabled mechanism, some interleaving of a small case fails.
func TestExploreMissesWhatIsOff(t *testing.T) {
	two := [2]perdure.Clock{2, 2}
	for _, c := range []struct {
		off   off
		model string
		ends  [2]perdure.Clock
		rows  int
		chances
	}{
		{off{order: true}, "essp:0", two, 2, chances{}},
		{off{Set: mutation.Set{Pushes: true}}, "essp:0", two, 1, chances{}},
		{off{note: true}, "essp:0", two, 1, chances{drops: 1}},
		{off{again: true}, "essp:0", [2]perdure.Clock{3, 3}, 1, chances{drops: 1}},
		{off{subs: true}, "essp:0", [2]perdure.Clock{3, 3}, 1, chances{drops: 1, aheads: 1}},
		{off{rest: true}, "essp:1", [2]perdure.Clock{3, 3}, 2, chances{}},
		{off{Set: mutation.Set{Bound: true}}, "vap:1", two, 1, chances{}},
		{off{answered: true}, "vap:1", two, 1, chances{}},
		{off{Set: mutation.Set{Staging: true}}, "bsp", two, 1, chances{}},
		{off{Set: mutation.Set{ExactlyOnce: true}}, "ssp:1", two, 1, chances{breaks: 1}},
	} {
		p := small(t, c.model, c.ends, c.rows, c.chances)
		p.off = c.off
		if _, err := p.explore(); err == nil {
			t.Errorf("%s, %+v: no course failed", c.model, c.off)
		} else {
			what, _, _ := strings.Cut(err.Error(), "\n")
			t.Logf("%s, %+v: %s", c.model, c.off, what)
		}
	}
}
