package lda

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// TestLostRows checks that training continues after any loss. With Rebuild, counts that were reset to their initial
// values must be restored.
func TestLostRows(t *testing.T) {
	for _, rebuild := range []bool{false, true} {
		change := func(p *api.Params) { p.Lossy, p.Topics.Rebuild = true, rebuild }
		slots := []*program{open(t, 2, change), open(t, 2, change)}
		m := newMemory(slots[0].Tables())
		clock := perdure.Clock(0)
		clocks := func(n int) {
			for range n {
				for rank, w := range slots {
					got := step(t, w, m, api.Share{Rank: rank, Of: 2}, clock)
					if !(got.TrainLoss > 0 && got.TrainLoss < 20) {
						t.Fatalf("a loss of %v", got.TrainLoss)
					}
				}
				before := slices.Clone(m.rows[WordTopic])
				m.tick()
				for i, v := range m.rows[WordTopic] {
					if v < 0 && before[i] < 0 {
						t.Fatalf("clock %d: a count of %v before it, and of %v after it", clock, before[i], v)
					}
				}
				clock++
			}
		}
		clocks(10)
		consistent(t, slots[0], m)
		clear(m.rows[WordTopic][:len(m.rows[WordTopic])/2])
		for i := range m.rows[Totals] {
			m.rows[Totals][i] -= 1000
		}
		clocks(1)
		if rebuild {
			copy(m.rows[Totals], sums(m.rows[WordTopic], slots[0].Topics))
			consistent(t, slots[0], m)
		}
		clear(m.rows[Assignments][:len(m.rows[Assignments])/2])
		slots[0] = open(t, 2, change)
		clocks(4)
		e, err := slots[0].Evaluate(t.Context(), m)
		if err != nil || !(e.Loss > 0 && e.Loss < 20) {
			t.Errorf("judged as %v, %v", e.Loss, err)
		}
		m.rows[WordTopic][3]-- // the last clock may leave a negative count
		w := slots[0]
		w.Repair(m.rows)
		for name, rows := range m.rows {
			if least := slices.Min(rows); !(least >= 0) {
				t.Errorf("table %s has a count of %v in the model's file", name, least)
			}
		}
		if !slices.Equal(m.rows[Totals], sums(m.rows[WordTopic], w.Topics)) {
			t.Error("the totals in the model's file are not those of the words")
		}
		m.rows[WordTopic][7], m.rows[Totals][2] = -3, -9
		clocks(60)
		if least := min(slices.Min(m.rows[WordTopic]), slices.Min(m.rows[Totals])); !(least >= 0) {
			t.Errorf("a count of %v long after the loss", least)
		}
	}
}

func sums(rows []float32, topics int) []float32 {
	total := make([]float32, topics)
	sumRows(total, rows)
	return total
}

// lossy is a bsp job in memory whose rows may be lost.
type lossy struct {
	*memory
	slots []*program
	clock perdure.Clock
	saved map[string][]float32
}

func newLossy(t *testing.T, slots int, rebuild bool) *lossy {
	j := &lossy{}
	for range slots {
		j.slots = append(j.slots, j.open(t, slots, rebuild))
	}
	j.memory = newMemory(j.slots[0].Tables())
	return j
}

func (j *lossy) open(t *testing.T, slots int, rebuild bool) *program {
	return open(t, slots, func(p *api.Params) {
		p.Data, p.Lossy, p.Steps, p.Topics.Rebuild = "synthetic:60", true, true, rebuild
	})
}

// run runs one clock. It calls within, if not nil, after the first slot's step.
func (j *lossy) run(t *testing.T, within func()) {
	for rank, w := range j.slots {
		step(t, w, j.memory, api.Share{Rank: rank, Of: len(j.slots)}, j.clock)
		if rank == 0 && within != nil {
			within()
		}
	}
	j.tick()
	j.clock++
}

func (j *lossy) save() {
	j.saved = map[string][]float32{}
	for name, rows := range j.rows {
		j.saved[name] = slices.Clone(rows)
	}
}

// lose resets some rows of tables to their saved values, or to 0.
func (j *lossy) lose(random *rand.Rand, saved bool, tables ...string) {
	for _, name := range tables {
		dim := j.specs[name].Dim
		for at := 0; at < len(j.rows[name]); at += dim {
			switch row := j.rows[name][at : at+dim]; {
			case random.IntN(3) > 0 && name != Totals:
			case saved:
				copy(row, j.saved[name][at:])
			default:
				clear(row)
			}
		}
	}
}

// loss is a failure of a job in memory.
type loss struct {
	slots, restarts int
	saved, within   bool
	tables          []string
}

func losses() (list []loss) {
	for _, tables := range [][]string{
		{WordTopic}, {Assignments}, {Totals}, {WordTopic, Assignments}, {WordTopic, Totals, Assignments},
	} {
		for i := range 24 {
			l := loss{slots: 1 + i/12, restarts: i % 3, saved: i/3%2 == 0, within: i/6%2 == 0, tables: tables}
			if l.restarts <= l.slots {
				list = append(list, l)
			}
		}
	}
	return list
}

// TestRecount checks Rebuild under bsp: the counts match the assignments one clock after a loss. It does not matter
// which tables were lost, whether rows return to initial or saved values, or which processes died. If the loss occurred
// between the slots' reads of a clock, it takes two clocks. Assignments that surviving processes know must be restored.
func TestRecount(t *testing.T) {
	for i, l := range losses() {
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			j := newLossy(t, l.slots, true)
			for range 5 {
				j.run(t, nil)
			}
			j.save()
			j.run(t, nil)
			consistent(t, j.slots[0], j.memory)
			strike := func() { j.lose(random, l.saved, l.tables...) }
			before := slices.Clone(j.rows[Assignments])
			if l.within {
				j.run(t, strike)
			} else {
				strike()
			}
			for rank := range l.restarts {
				j.slots[rank] = j.open(t, l.slots, true)
			}
			j.run(t, nil)
			consistent(t, j.slots[0], j.memory)
			if !l.within && l.restarts == 0 {
				j.keeps(t, before)
			}
			for range 3 {
				j.run(t, nil)
				consistent(t, j.slots[0], j.memory)
			}
		})
	}
}

// keeps checks that tokens which the last clock did not resample have kept their topics.
func (j *lossy) keeps(t *testing.T, before []float32) {
	t.Helper()
	w := j.slots[0]
	_, drawn := w.passOf(j.clock - 1)
	for part, docs := range w.parts {
		for _, doc := range docs {
			from, to := w.rows[doc]*rowTokens, w.rows[doc+1]*rowTokens
			if part != drawn && !slices.Equal(j.rows[Assignments][from:to], before[from:to]) {
				t.Fatalf("document %d lost the topics that its slot knew", doc)
			}
		}
	}
}

// TestOnTable checks that, without losses, a job whose processes remember nothing computes the same model as a job
// whose processes remember topics. After a loss, its counts must match the rows that came back.
func TestOnTable(t *testing.T) {
	for _, fraction := range []float64{1, 0.25} {
		table := func(p *api.Params) {
			p.Data, p.Lossy, p.Steps, p.Topics.Rebuild, p.Topics.OnTable = "synthetic:60", true, true, true, true
			p.Topics.ClockFraction = fraction
		}
		j, with := &lossy{}, &lossy{}
		for range 2 {
			j.slots = append(j.slots, open(t, 2, table))
			with.slots = append(with.slots, open(t, 2, func(p *api.Params) {
				table(p)
				p.Topics.OnTable = false
			}))
		}
		j.memory, with.memory = newMemory(j.slots[0].Tables()), newMemory(with.slots[0].Tables())
		for at := range 8 {
			j.run(t, nil)
			with.run(t, nil)
			if at == 5 {
				j.save()
			}
		}
		if !maps.EqualFunc(j.rows, with.rows, slices.Equal[[]float32]) {
			t.Fatal("another model, and nothing was lost")
		}
		for _, saved := range []bool{true, false} {
			j.lose(rand.New(rand.NewPCG(1, 1)), saved, WordTopic, Assignments)
			lost := slices.Clone(j.rows[Assignments])
			j.run(t, nil)
			consistent(t, j.slots[0], j.memory)
			if fraction < 1 {
				j.keeps(t, lost)
			}
		}
	}
}

// TestRecountOnlyLosses checks that without losses a job with recounting ends with the same model as one without, even
// if slots have no documents in a clock.
func TestRecountOnlyLosses(t *testing.T) {
	for _, slots := range []int{1, 3, 40} {
		with, without := newLossy(t, slots, true), newLossy(t, slots, false)
		for range 3 {
			with.run(t, nil)
			without.run(t, nil)
		}
		if !maps.EqualFunc(with.rows, without.rows, slices.Equal[[]float32]) {
			t.Errorf("%d slots: another model", slots)
		}
		if slots < 40 {
			continue
		}
		with.lose(rand.New(rand.NewPCG(1, 1)), false, WordTopic, Assignments)
		with.run(t, nil)
		consistent(t, with.slots[0], with.memory)
	}
}

// TestRecountShares checks the same while slots join and leave.
func TestRecountShares(t *testing.T) {
	j := newLossy(t, 2, true)
	random := rand.New(rand.NewPCG(1, 1))
	for i, slots := range []int{2, 2, 3, 3, 1, 2} {
		for len(j.slots) < slots {
			j.slots = append(j.slots, j.open(t, 2, true))
		}
		j.slots = j.slots[:slots]
		j.run(t, nil)
		consistent(t, j.slots[0], j.memory)
		if i == 0 {
			j.save()
		}
		j.lose(random, i%2 == 0, WordTopic, Totals, Assignments)
	}
}

// TestNoRecount checks that without Rebuild the same losses leave counts that do not match the assignments.
func TestNoRecount(t *testing.T) {
	for _, saved := range []bool{false, true} {
		j := newLossy(t, 2, false)
		for range 3 {
			j.run(t, nil)
		}
		j.save()
		j.run(t, nil)
		j.lose(rand.New(rand.NewPCG(1, 1)), saved, WordTopic)
		for range 4 {
			j.run(t, nil)
		}
		w := j.slots[0]
		copy(j.rows[Totals], sums(j.rows[WordTopic], w.Topics))
		if unfit(w, j.memory) != WordTopic {
			t.Error("nothing is missing")
		}
	}
}
