package workload_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/internal/run/workload/logreg"
)

func goodParams(name string) workload.Params {
	info, err := workload.Find(name)
	if err != nil {
		panic(err)
	}
	if info.Factors.Rank > 0 {
		info.Factors.Rank = 16 // for speed
	}
	switch {
	case info.Topics.Topics > 0:
		info.Topics.Topics, info.Data = 20, "synthetic:200"
	case info.Rule != "":
		info.Data, info.Rates = "synthetic:500", map[perdure.RuleKind]float64{perdure.RuleSGD: 0.01}
	default:
		info.Data = ""
	}
	if info.Bowl != (workload.Quadratic{}) {
		info.Bowl.Noise = 0.01 // without noise, all slots compute the same
	}
	return workload.Params{
		Seed: 3, Slots: 2, Batch: min(info.Batch, 8), Factors: info.Factors, Topics: info.Topics,
		Bowl: info.Bowl,
		Data: info.Data,
		Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: info.Rates[perdure.RuleSGD]},
	}
}

func TestNewRefuses(t *testing.T) {
	change := func(f func(*workload.Params)) workload.Params {
		p := goodParams("softmax")
		f(&p)
		return p
	}
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	for _, c := range []struct {
		name   string
		params workload.Params
		kind   error
		want   string
	}{
		{
			"sofmax", goodParams("softmax"), perdure.ErrUsage,
			`unknown workload "sofmax"; choose softmax or cnn or mf or logreg or lda or quadratic`,
		},
		{"softmax", change(func(p *workload.Params) { p.Batch = 0 }), perdure.ErrUsage, "batch of 0 examples"},
		{"softmax", change(func(p *workload.Params) { p.Batch = math.MaxInt }), perdure.ErrUsage, "choose 1 to"},
		{"softmax", change(func(p *workload.Params) { p.Slots = 0 }), perdure.ErrUsage, "number of workers 0"},
		{
			"softmax", change(func(p *workload.Params) { p.Rule.Rate = math.NaN() }), perdure.ErrUsage,
			"learning rate NaN",
		},
		{
			"softmax", change(func(p *workload.Params) { p.Rule = perdure.Rule{Kind: perdure.RuleAdd} }),
			perdure.ErrUsage,
			"choose a rule that does",
		},
		{"softmax", change(func(p *workload.Params) { p.Rule.Rate = -1 }), perdure.ErrUsage, "learning rate -1"},
		{
			"softmax", change(func(p *workload.Params) { p.Rule.Schedule = "cosine" }), perdure.ErrUsage,
			`schedule "cosine"`,
		},
		{
			"softmax", change(func(p *workload.Params) { p.Rule.Schedule = perdure.ScheduleStep }), perdure.ErrUsage,
			"schedule step needs",
		},
		{
			"softmax", change(func(p *workload.Params) { p.Data = nowhere }), dataset.ErrMissing,
			nowhere + ": no such directory",
		},
		{"softmax", change(func(p *workload.Params) { p.Factors.Rank = 3 }), perdure.ErrUsage, "no user or item rows"},
		{"softmax", change(func(p *workload.Params) { p.FinalReLU = true }), perdure.ErrUsage, "no final ReLU"},
		{"mf", change(func(p *workload.Params) { p.Batch, p.FinalReLU = 0, true }), perdure.ErrUsage, "no final ReLU"},
		{"softmax", change(func(p *workload.Params) { p.ByLayer = true }), perdure.ErrUsage, "no layers"},
		{"mf", change(func(p *workload.Params) { p.Batch, p.ByLayer = 0, true }), perdure.ErrUsage, "no layers"},
		{"cnn", change(func(p *workload.Params) { p.Topics.Topics = 3 }), perdure.ErrUsage, "no topics"},
		{"mf", change(func(p *workload.Params) { p.Batch = 64 }), perdure.ErrUsage, "mf has no batches"},
		{"lda", change(func(p *workload.Params) { p.Batch = 64 }), perdure.ErrUsage, "lda has no batches"},
		{"quadratic", change(func(p *workload.Params) { p.Batch = 0; p.Data = "x" }), perdure.ErrUsage, "no data"},
		{
			"cnn", change(func(p *workload.Params) { p.ByLayer, p.Sparse = true, true }), perdure.ErrUsage,
			"remove either --sparse or --partition layer",
		},
	} {
		w, err := workload.New(c.name, c.params)
		if w != nil || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("New(%q, %+v): %v, want one line with %q", c.name, c.params, err, c.want)
		}
	}
}

// memory is a parameter server for a single thread. Incs wait until tick, which applies them in order.
type memory struct {
	t       *testing.T
	specs   []perdure.TableSpec
	rows    [][]float32
	pending []inc
	err     error // first error of any call
}

// inc is an Inc that waits for its tick.
type inc struct {
	spec  perdure.TableSpec
	rows  []float32 // rows to change
	delta []float32
}

// rowsOf calls each for every row of a list, as runs of length one.
func rowsOf(rows []perdure.RowID, values []float32, each func(row perdure.RowID, values []float32) error) error {
	dim := len(values) / len(rows)
	for i, row := range rows {
		if err := each(row, values[i*dim:(i+1)*dim]); err != nil {
			return err
		}
	}
	return nil
}

func newMemory(t *testing.T, specs []perdure.TableSpec) *memory {
	m := &memory{t: t, specs: specs}
	for i, s := range specs {
		s.Consistency = perdure.Consistency{Kind: perdure.BSP} // the job's model
		if err := s.Validate(1); err != nil {
			t.Error(err)
		}
		if s.Sparse { // every row that can exist
			s.Sparse, s.Rows = false, dataset.HashedFeatures+1
		}
		rows, err := table.New(s, perdure.TableID(i), 1, 0, int(s.Rows)).Run(0, int(s.Rows))
		if err != nil {
			t.Error(err)
		}
		m.rows = append(m.rows, rows)
	}
	return m
}

func (m *memory) run(name string, first perdure.RowID, n int) (perdure.TableSpec, []float32) {
	i := slices.IndexFunc(m.specs, func(s perdure.TableSpec) bool { return s.Name == name })
	if i < 0 {
		m.t.Fatalf("no table %q", name)
	}
	dim := m.specs[i].Dim
	if n == 0 || n%dim != 0 {
		m.t.Fatalf("%d values are not whole rows of %d", n, dim)
	}
	return m.specs[i], m.rows[i][int(first)*dim:][:n]
}

func (m *memory) Get(_ context.Context, name string, first perdure.RowID, dst []float32) error {
	_, rows := m.run(name, first, len(dst))
	copy(dst, rows)
	return m.err
}

func (m *memory) Inc(_ context.Context, name string, first perdure.RowID, delta []float32) error {
	spec, rows := m.run(name, first, len(delta))
	m.pending = append(m.pending, inc{spec, rows, slices.Clone(delta)})
	return m.err
}

func (m *memory) GetRows(ctx context.Context, name string, rows []perdure.RowID, dst []float32) error {
	return rowsOf(rows, dst, func(row perdure.RowID, dst []float32) error { return m.Get(ctx, name, row, dst) })
}

func (m *memory) IncRows(ctx context.Context, name string, rows []perdure.RowID, delta []float32) error {
	return rowsOf(rows, delta, func(row perdure.RowID, delta []float32) error { return m.Inc(ctx, name, row, delta) })
}

func (m *memory) tick(c perdure.Clock) {
	for _, i := range m.pending {
		table.Apply(i.spec.Rule, i.spec.Dim, i.rows, i.delta, c)
	}
	m.pending = nil
}

// digest returns a hash of the bits of the pending Incs.
func (m *memory) digest() uint64 {
	h := fnv.New64a()
	for _, i := range m.pending {
		fmt.Fprintln(h, i.spec.Name, len(i.delta))
		for _, v := range i.delta {
			h.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
		}
	}
	return h.Sum64()
}

// TestAllLearn trains every workload. It repeats each clock of slot 0 in another instance, as after a failure, and
// expects the same deltas.
func TestAllLearn(t *testing.T) {
	for _, info := range workload.List() {
		t.Run(info.Name, func(t *testing.T) {
			params := goodParams(info.Name)
			w, err := workload.New(info.Name, params)
			if err != nil {
				t.Fatal(err)
			}
			again, err := workload.New(info.Name, params)
			if err != nil {
				t.Fatal(err)
			}
			d := w.Describe()
			if d.Name != info.Name || d.Data == "" || d.Train < 1 || d.Test < 1 || info.Line == "" {
				t.Errorf("described as %+v, %q", d, info.Line)
			}
			m := newMemory(t, w.Tables())
			values := 0
			for _, rows := range m.rows {
				values += len(rows)
			}
			if d.Parameters != values {
				t.Errorf("described with %d parameters, the tables hold %d", d.Parameters, values)
			}
			before := evaluate(t, w, m)
			for clock := range perdure.Clock(50) {
				for slot := range perdure.Slot(params.Slots) {
					step(t, w, m, workload.Share{Rank: int(slot), Of: params.Slots}, clock)
				}
				redone := &memory{t: t, specs: m.specs, rows: m.rows}
				step(t, again, redone, workload.Share{Of: params.Slots}, clock)
				for i, want := range m.pending[:len(redone.pending)] {
					if !slices.Equal(redone.pending[i].delta, want.delta) {
						t.Fatalf("clock %d, computed again elsewhere, gives other deltas", clock)
					}
				}
				m.tick(clock)
			}
			after := evaluate(t, w, m)
			better := after.Accuracy > before.Accuracy || after.RMSE < before.RMSE ||
				slices.Equal(info.Measures, []string{"loss"}) || info.Name == "logreg" // one class dominates
			if !(after.Loss < 0.96*before.Loss) || !better {
				t.Errorf("before training %+v, after %+v", before, after)
			}
		})
	}
}

func evaluate(t *testing.T, w workload.Workload, m *memory) workload.Eval {
	t.Helper()
	e, err := w.Evaluate(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func step(t *testing.T, w workload.Workload, m *memory, share workload.Share, clock perdure.Clock) workload.Metrics {
	t.Helper()
	metrics, err := w.Step(t.Context(), m, share, clock)
	if err != nil {
		t.Fatal(err)
	}
	if metrics.Samples < 1 || !(metrics.TrainLoss > 0) || len(m.pending) == 0 {
		t.Fatalf("share %v, clock %d: %+v, %d Incs", share, clock, metrics, len(m.pending))
	}
	return metrics
}

// TestSharesChange checks that a clock's result depends on its share and not on the shares of earlier clocks.
func TestSharesChange(t *testing.T) {
	for _, info := range workload.List() {
		open := func() (workload.Workload, *memory) {
			w, err := workload.New(info.Name, goodParams(info.Name))
			if err != nil {
				t.Fatal(err)
			}
			return w, newMemory(t, w.Tables())
		}
		used, m := open()
		seen := map[uint64]workload.Share{}
		for _, s := range [][2]int{{0, 2}, {1, 3}, {2, 3}, {1, 2}, {0, 1}, {0, 3}} {
			share := workload.Share{Rank: s[0], Of: s[1]}
			m.pending = nil
			step(t, used, m, share, 1)
			fresh, alone := open()
			step(t, fresh, alone, share, 1)
			got := m.digest()
			if want := alone.digest(); got != want {
				t.Errorf("%s: share %v is another after other shares", info.Name, share)
			}
			if other, twice := seen[got]; twice {
				t.Errorf("%s: shares %v and %v learn the same", info.Name, other, share)
			}
			seen[got] = share
		}
	}
}

// TestSoftmaxIsThePlainLoop checks that a bsp job whose servers apply their own rule computes the bits of the baseline.
func TestSoftmaxIsThePlainLoop(t *testing.T) {
	params := goodParams("softmax")
	params.Slots, params.Rule.Schedule = 3, perdure.ScheduleSqrt
	w, err := workload.New("softmax", params)
	if err != nil {
		t.Fatal(err)
	}
	m := newMemory(t, w.Tables())
	for clock := range perdure.Clock(15) {
		for slot := range perdure.Slot(params.Slots) {
			step(t, w, m, workload.Share{Rank: int(slot), Of: params.Slots}, clock)
		}
		m.tick(clock)
	}
	data, err := dataset.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	model, err := logreg.NewSoftmax(data,
		logreg.SoftmaxOptions{Seed: params.Seed, Slots: params.Slots, Batch: params.Batch})
	if err != nil {
		t.Fatal(err)
	}
	if plain := logreg.TrainPlainSoftmax(model, 15, params.Rule.RateAt); !slices.Equal(plain, m.rows[0]) {
		t.Error("the workload and the plain loop end with different bits")
	}
}

func TestErrorsOfTablesComeThrough(t *testing.T) {
	for _, info := range workload.List() {
		w, err := workload.New(info.Name, goodParams(info.Name))
		if err != nil {
			t.Fatal(err)
		}
		m := newMemory(t, w.Tables())
		for _, rank := range []int{-1, 2} {
			if _, err := w.Step(t.Context(), m, workload.Share{Rank: rank, Of: 2}, 0); !errors.Is(err,
				perdure.ErrUsage) {
				t.Errorf("share %d of 2: %v", rank, err)
			}
		}
		m.err = perdure.ErrRolledBack
		if _, err := w.Step(t.Context(), m, workload.Share{Of: 2}, 0); !errors.Is(err, perdure.ErrRolledBack) {
			t.Errorf("Step: %v", err)
		}
		if _, err := w.Evaluate(t.Context(), m); !errors.Is(err, perdure.ErrRolledBack) {
			t.Errorf("Evaluate: %v", err)
		}
	}
}

func ExampleNew() {
	w, err := workload.New("softmax", workload.Params{
		Seed: 1, Slots: 4, Batch: 64, Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.05},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	d := w.Describe()
	fmt.Printf("%s on %s: %d examples, %d values, rate %v\n", d.Name, d.Data, d.Train, d.Parameters, d.Rate)
	// Output:
	// softmax on embedded Fashion-MNIST: 10000 examples, 7850 values, rate 0.05
}
