package sim

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/worker"
)

// ReferenceTable is a second table of a bsp job, dense or sparse. Its rule is drawn from those that keep state for each
// row. A slot's deltas in a clock are a function of (seed, slot, clock), and a shard applies a clock's updates in slot
// order, or their combination. A single part that receives all updates in that order is therefore a naive model of the
// whole table. Rows and state must match the model bit for bit.
type ReferenceTable struct {
	Spec     perdure.TableSpec
	seed     uint64
	spans    []protocol.Interval // by slot
	ids      []perdure.RowID     // rows that programs use
	expected [][]float32         // by clock: expected values of the ids
	final    Contents
}

// Contents maps row IDs to values. Each value holds the row, then its optimizer state, then, for rows that may be
// evicted, the clock of the newest update.
type Contents map[perdure.RowID][]float32

// Add adds the rows of an image. The rows of a dense table start at first.
func (c Contents) Add(img table.Image, first int64) {
	planes, ids := make([][]float32, len(img.Planes)), slices.Concat(img.IDs...)
	for i, pieces := range img.Planes {
		planes[i] = slices.Concat(pieces...)
	}
	touched := slices.Concat(img.Touched...)
	for row := range img.Rows {
		id := perdure.RowID(first) + perdure.RowID(row)
		if len(ids) > 0 {
			id = ids[row]
		}
		for _, p := range planes {
			dim := len(p) / img.Rows
			c[id] = append(c[id], p[row*dim:(row+1)*dim]...)
		}
		if len(touched) > 0 {
			c[id] = append(c[id], float32(touched[row]))
		}
	}
}

// rowIDs returns n row IDs: the first n of a dense table, or random ones of a sparse table.
func rowIDs(spec perdure.TableSpec, seed uint64, n int) []perdure.RowID {
	rng := rand.New(rand.NewPCG(seed, 4))
	ids := make([]perdure.RowID, n)
	for i := range ids {
		ids[i] = perdure.RowID(i)
		if spec.Sparse {
			ids[i] = perdure.RowID(rng.Uint64())
		}
	}
	return ids
}

var referenceRules = []string{
	"momentum,momentum=0.9", "nesterov,momentum=0.8,clip-value=0.5", "adagrad", "rowwise-adagrad", "adam",
	"adam,decay=0.01,clip-norm=1", "ftrl,l1=0.05",
}

var referenceCombines = []perdure.Combine{
	perdure.CombineEach, perdure.CombineSum, perdure.CombineMean, perdure.CombineWeighted,
}

// NewReferenceTable draws the table from the job's seed and computes its expected contents.
func NewReferenceTable(job perdure.JobSpec, intervals []protocol.Interval) *ReferenceTable {
	rng := rand.New(rand.NewPCG(job.Seed, 5))
	w := &ReferenceTable{seed: job.Seed, spans: intervals, Spec: perdure.TableSpec{
		Name: "twin", Dim: 1 + rng.IntN(5), Sparse: rng.IntN(2) == 0, Consistency: job.Consistency,
		Init: perdure.Init{Kind: perdure.InitUniform, Scale: 0.5},
	}}
	rule, err := perdure.ParseRule(referenceRules[rng.IntN(len(referenceRules))])
	if err != nil {
		panic(err) // the rules above are valid
	}
	rule.Rate, rule.Schedule = 0.1, perdure.ScheduleSqrt
	w.Spec.Rule = rule.WithDefaults()
	if rule.Kind == perdure.RuleFTRL {
		w.Spec.Init = perdure.Init{}
	}
	rows := job.Shards + 1 + rng.IntN(20)
	if !w.Spec.Sparse {
		w.Spec.Rows = int64(rows)
	} else if rng.IntN(2) == 0 {
		w.Spec.Evict = perdure.Clock(1 + rng.IntN(5))
	}
	w.Spec.Combine = referenceCombines[rng.IntN(len(referenceCombines))]
	if w.Spec.Combine != perdure.CombineEach && rng.IntN(4) == 0 { // otherwise only one slot may write a row
		w.Spec.Rule = perdure.Rule{Kind: perdure.RuleSet}
		transient := w.Spec
		transient.Transient = true
		if !transient.Sparse && job.Recovery.ValidateTable(transient) == nil {
			w.Spec = transient
		}
	}
	w.ids = rowIDs(w.Spec, job.Seed, rows)
	w.computeExpected(job.Clocks)
	return w
}

// referenceID is the table's ID. The twin is created second.
const referenceID = 1

// computeExpected runs the whole job on a single part.
func (w *ReferenceTable) computeExpected(clocks perdure.Clock) {
	part := table.New(w.Spec, referenceID, w.seed, 0, int(w.Spec.Rows))
	for clock := range clocks + 1 {
		part.Evict(clock, nil)
		values := make([]float32, len(w.ids)*w.Spec.Dim)
		err := part.ReadRows(values, 0, w.ids, len(w.ids))
		w.expected = append(w.expected, values)
		for _, d := range w.inputs(clock) {
			if err == nil && clock < clocks {
				err = part.ApplyRows(0, d.ids, len(d.ids), d.values, clock)
			}
		}
		if err != nil {
			panic(err) // the rows are the table's own
		}
	}
	w.final = Contents{}
	w.final.Add(part.Image(), 0)
}

// inputs returns the inputs of the rule in a clock, in order: each slot's update, or the combination of all.
func (w *ReferenceTable) inputs(clock perdure.Clock) (all []slotDeltas) {
	n, weights := 0, 0.0
	for slot, interval := range w.spans {
		if interval.Has(clock) {
			n++
			weights += updateWeight(slot, clock)
		}
	}
	var combined slotDeltas
	for slot, interval := range w.spans {
		if !interval.Has(clock) {
			continue
		}
		ids, values := w.deltas(slot, clock).sums(w.Spec.Dim, w.Spec.Rule.Kind == perdure.RuleSet)
		all = append(all, slotDeltas{ids: ids, values: values})
		share := float32(1)
		switch w.Spec.Combine {
		case perdure.CombineMean:
			share = float32(1 / float64(n))
		case perdure.CombineWeighted:
			share = float32(updateWeight(slot, clock) / weights)
		}
		for _, v := range values {
			combined.values = append(combined.values, float32(v*share))
		}
		combined.ids = append(combined.ids, ids...)
	}
	if w.Spec.Combine == perdure.CombineEach {
		return all
	}
	combined.ids, combined.values = combined.sums(w.Spec.Dim, false)
	return []slotDeltas{combined}
}

// updateWeight returns the weight of a slot's update in a clock.
func updateWeight(slot int, clock perdure.Clock) float64 {
	return 0.7 + 1.3*float64(slot) + float64(clock%3)
}

// slotDeltas holds a slot's deltas in a clock, in order. Some rows occur more than once.
type slotDeltas struct {
	ids    []perdure.RowID
	values []float32
	flush  [2]int // numbers of deltas after which the program calls Flush
	reads  bool   // the program reads the table first
}

// sums adds up the deltas of each row, in order. With replace, the last delta of a row replaces the earlier ones.
func (d slotDeltas) sums(dim int, replace bool) (ids []perdure.RowID, values []float32) {
	for i, id := range d.ids {
		delta := d.values[i*dim : (i+1)*dim]
		at := slices.Index(ids, id)
		if at < 0 {
			ids, values = append(ids, id), append(values, delta...)
			continue
		}
		for j, v := range delta {
			if replace {
				values[at*dim+j] = 0
			}
			values[at*dim+j] += v
		}
	}
	return ids, values
}

func (w *ReferenceTable) deltas(slot int, clock perdure.Clock) (d slotDeltas) {
	rng := rand.New(rand.NewPCG(w.seed^0x7717, uint64(slot)<<32|uint64(clock)))
	often := []float32{0, 0.1, 0.5, 1}[rng.IntN(4)]
	if w.Spec.Transient {
		often = 1 // all slots write all rows in each clock
	}
	again := rng.IntN(3) == 0
	for _, id := range w.ids {
		for range 4 {
			if rng.Float32() < often {
				d.ids = append(d.ids, id)
			}
			if !again {
				break
			}
		}
	}
	if again {
		rng.Shuffle(len(d.ids), func(i, j int) { d.ids[i], d.ids[j] = d.ids[j], d.ids[i] })
	}
	for range len(d.ids) * w.Spec.Dim {
		d.values = append(d.values, float32(rng.NormFloat64()))
	}
	for i := range d.flush {
		if rng.IntN(3) == 0 {
			d.flush[i] = rng.IntN(len(d.ids) + 1)
		}
	}
	d.reads = rng.IntN(3) == 0
	return d
}

// step is the program's work in one clock.
func (w *ReferenceTable) step(ctx context.Context, c *worker.Client, t *worker.Table, clock perdure.Clock) error {
	d := w.deltas(int(c.Slot()), clock)
	if w.Spec.Combine == perdure.CombineWeighted {
		if err := t.Weigh(updateWeight(int(c.Slot()), clock)); err != nil {
			return err
		}
	}
	if d.reads {
		values := make([]float32, len(w.ids)*w.Spec.Dim)
		if err := t.GetRows(ctx, w.ids, values); err != nil {
			return err
		}
		if i := differ(values, w.expected[clock]); i >= 0 {
			return violated("%s at clock %d read value %d of row %d of the twin (%s): %v, want %v", name(c), clock,
				i%w.Spec.Dim, w.ids[i/w.Spec.Dim], w.Spec.Rule.Kind, values[i], w.expected[clock][i])
		}
	}
	from, dim := 0, w.Spec.Dim
	for _, to := range []int{min(d.flush[0], d.flush[1]), max(d.flush[0], d.flush[1])} {
		if from == to {
			continue
		}
		if err := t.IncRows(d.ids[from:to], d.values[from*dim:to*dim]); err != nil {
			return err
		}
		if err := t.Flush(); err != nil {
			return err
		}
		from = to
	}
	return t.IncRows(d.ids[from:], d.values[from*dim:])
}

// differ returns the first index at which two lists are not bitwise equal, or -1.
func differ(a, b []float32) int {
	for i := range min(len(a), len(b)) {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}

// Final checks the table after the job.
func (w *ReferenceTable) Final(got Contents) error {
	if len(got) != len(w.final) {
		return violated("at the end the twin (%s, evict %d) has %d rows, want %d", w.Spec.Rule.Kind, w.Spec.Evict,
			len(got), len(w.final))
	}
	for id, want := range w.final {
		if i := differ(got[id], want); i >= 0 {
			return violated("at the end row %d of the twin (%s) and its state are %v, want %v (at %d)", id,
				w.Spec.Rule.Kind, got[id], want, i)
		}
	}
	return nil
}
