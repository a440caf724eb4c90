package replica

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
)

// pushStorm is a random plan and a random course through it. It is plain data: rapid generates it, and a negative
// control selects it by number.
type pushStorm struct {
	plan plan
	seed uint64
	slow int // a slot whose messages are delivered less often than those of others
}

// pushStorms generates courses of a model in which readers drop and lose rows, and connections break.
func pushStorms(m perdure.Consistency) *rapid.Generator[pushStorm] {
	return rapid.Custom(func(t *rapid.T) pushStorm {
		number := func(name string, from, to int) int { return rapid.IntRange(from, to).Draw(t, name) }
		p := plan{
			model: m, slots: number("slots", 2, mostSlots), shards: number("shards", 1, mostShards),
			rows:   number("rows", 1, mostRows),
			sparse: rapid.Bool().Draw(t, "sparse"), piece: number("piece", 1, mostRows), spare: number("spare", 0, 1),
			chances: chances{number("drops", 0, 8), number("breaks", 0, 3), number("aheads", 0, 6), 0},
		}
		if !p.sparse {
			p.shards = min(p.shards, p.rows) // every shard has a row
		}
		end := perdure.Clock(number("clocks", 2, 7))
		all := 1<<p.rows - 1
		for slot := range p.slots {
			p.ends[slot] = end
			for clock := range end {
				p.reads[slot][clock] = rowMask(number("reads", 1, all)) // lemma 4: every slot reads in every clock
				p.writes[slot][clock] = rowMask(number("writes", 0, all))
			}
		}
		if m.Kind == perdure.VAP || m.Kind == perdure.ASP {
			p.deaths = number("deaths", 0, 1)
		}
		return pushStorm{p, rapid.Uint64().Draw(t, "seed"), number("slow", 0, mostSlots)}
	})
}

// play follows the plan to its end, or to the first error.
func (c pushStorm) play() error {
	random := rand.New(rand.NewPCG(c.seed, 0))
	s := newSystem(&c.plan)
	for n := 0; ; n++ {
		next := s.moves()
		if len(next) == 0 {
			return s.finished()
		}
		if n > 10_000 {
			return fmt.Errorf("no end after %d moves", n)
		}
		m := next[random.IntN(len(next))]
		if m.slot == c.slow && (m.kind == down || m.kind == pushOn) && random.IntN(4) > 0 {
			continue
		}
		// Spread the faults over the course. A connection that breaks should lose a message if it can.
		takes := m.kind == breakUp && len(s.ups[m.slot][m.shard]) > 0
		if m.kind >= drop && !takes && random.IntN(8) > 0 {
			continue
		}
		if (m.kind == upLate || m.kind == loseLate) && random.IntN(8) > 0 { // it is slow
			continue
		}
		if err := s.do(m); err != nil {
			return fmt.Errorf("move %d, %v: %w", n, m, err)
		}
	}
}

var stormModels = []string{"bsp", "ssp:0", "ssp:2", "essp:0", "essp:1", "essp:3", "asp", "vap:1", "vap:3"}

// Under every model the definitions hold in random courses of up to 4 slots.
func TestStormModels(t *testing.T) {
	for _, name := range stormModels {
		t.Run(name, func(t *testing.T) {
			storms := pushStorms(model(t, name))
			rapid.Check(t, func(t *rapid.T) {
				s := storms.Draw(t, "storm")
				for range 3 { // different courses through one plan
					if err := s.play(); err != nil {
						t.Fatalf("seed %d: %v", s.seed, err)
					}
					s.seed++
				}
			})
		})
	}
}

// rare is the course from which a test starts to look for a failing one, where few fail.
var rare = map[string]int{"the number of a connection": 4500}

// Each disabled mechanism is detected: in some course a read violates its model, differs from its label, or never
// completes.
func TestStormsMissWhatIsOff(t *testing.T) {
	for _, c := range []struct {
		name   string
		off    off
		models []string
	}{
		{"the order of a round", off{order: true}, []string{"essp:1"}},
		{"the pushes", off{Set: mutation.Set{Pushes: true}}, []string{"essp:1", "vap:1"}},
		{"the note of a drop", off{note: true}, []string{"essp:1", "vap:1"}},
		{"the note of a row read again", off{again: true}, []string{"essp:1", "vap:1"}},
		{"the note of earlier requests", off{subs: true}, []string{"essp:1", "vap:1"}},
		{"the number of a connection", off{connection: true}, []string{"vap:1"}},
		{"changes that become due during a round", off{rest: true}, []string{"essp:1", "vap:1"}},
		{"changes before a late round", off{advance: true}, []string{"essp:1"}},
		{"the end of a round", off{saw: true}, []string{"vap:1"}},
		{"the first of a slot's cached rows", off{answered: true}, []string{"vap:1"}},
		{"the bound", off{Set: mutation.Set{Bound: true}}, []string{"vap:1", "vap:3"}},
		{"the staging", off{Set: mutation.Set{Staging: true}}, []string{"bsp"}},
		{"the exactly-once filter", off{Set: mutation.Set{ExactlyOnce: true}}, []string{"ssp:2", "essp:1", "asp"}},
	} {
		for _, name := range c.models {
			t.Run(c.name+", "+name, func(t *testing.T) {
				t.Parallel()
				storms := pushStorms(model(t, name))
				const most = 1000
				first := rare[c.name]
				for n := first; n < first+most; n++ {
					s := storms.Example(n)
					s.plan.off = c.off
					if err := s.play(); err != nil {
						t.Logf("course %d: %v", n, err)
						return
					}
				}
				t.Errorf("none of %d courses failed", most)
			})
		}
	}
}
