package sim

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// MeanTable is a second table of a bsp job that combines the slots' updates by their mean. In every clock each slot
// adds 1 to each row. If some updates of a clock are lost, the mean of the rest is still 1; if all are lost, nothing is
// added. A row is therefore a whole number: the count of clocks from which its shard has any update. Dividing by slots
// whose updates are lost, or applying an update twice, makes it fractional.
type MeanTable struct {
	Spec perdure.TableSpec
	h    *History
	ids  []perdure.RowID
}

// AddMeanTable adds a MeanTable to a bsp job. It must be called before the job begins.
func (h *History) AddMeanTable() {
	if h.job.Consistency.Kind != perdure.BSP {
		return
	}
	rng := rand.New(rand.NewPCG(h.job.Seed, 27))
	m := &MeanTable{h: h, Spec: perdure.TableSpec{
		Name: "mean", Dim: 1, Sparse: rng.IntN(2) == 0, Combine: perdure.CombineMean,
		Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: h.job.Consistency,
	}}
	rows := h.job.Shards + rng.IntN(5)
	if !m.Spec.Sparse {
		m.Spec.Rows = int64(rows)
	}
	m.ids = rowIDs(m.Spec, h.job.Seed+2, rows)
	h.aux.mean = m
}

// step is the program's work in one clock: it reads all rows and adds to them.
func (m *MeanTable) step(ctx context.Context, w *worker.Client, t *worker.Table, clock perdure.Clock) error {
	values := make([]float32, len(m.ids))
	if err := t.GetRows(ctx, m.ids, values); err != nil {
		return err
	}
	for i, v := range values {
		if odd := m.describeError(v, clock); odd != "" {
			return violated("%s at clock %d read row %d of the table of means: %v clocks, %s", name(w), clock,
				m.ids[i], v, odd)
		}
	}
	return t.IncRows(m.ids, slices.Repeat([]float32{1}, len(m.ids)))
}

// describeError describes an error in a row's value after all clocks below clock were applied or lost. It returns ""
// for a valid row.
func (m *MeanTable) describeError(v float32, clock perdure.Clock) string {
	n := math.Round(float64(v))
	switch {
	case math.Abs(float64(v)-n) > 0.01:
		return "which is not a whole number"
	case n < 0 || n > float64(clock):
		return "which is out of range"
	case n < float64(clock) && !m.h.lossy:
		return "although no clock is lost"
	}
	return ""
}

// final checks the table after the job.
func (m *MeanTable) final(rows Contents, lost Lost) error {
	for _, id := range m.ids {
		v := rows[id]
		if len(v) == 0 {
			v = []float32{0} // a sparse row is not stored before its first update
		}
		if m.h.lossy && slices.Contains(lost, -1) {
			continue // a whole shard is lost, and its rows are unknown
		}
		if odd := m.describeError(v[0], m.h.job.Clocks); odd != "" {
			return violated("at the end row %d of the table of means has %v clocks, %s", id, v[0], odd)
		}
	}
	return nil
}
