package logreg

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/workload/api"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// made returns random examples in which feature k is more frequent for class k.
func made(seed uint64, classes, features, examples int) *dataset.SparseSet {
	r := rand.New(rand.NewPCG(seed, 1))
	s := &dataset.SparseSet{Name: "made", Features: features}
	for k := range classes {
		s.Classes = append(s.Classes, string(rune('a'+k)))
	}
	for i := range examples {
		to := &s.Train
		if i%5 == 0 {
			to = &s.Test
		}
		if to.Starts == nil {
			to.Starts = []int64{0}
		}
		label := r.IntN(classes)
		for range 1 + r.IntN(8) {
			f := r.IntN(features)
			if r.IntN(3) > 0 {
				f = f/classes*classes + label
			}
			to.Feature = append(to.Feature, uint32(min(f, features-1)))
			to.Value = append(to.Value, float32(r.NormFloat64()+1))
		}
		to.Starts, to.Label = append(to.Starts, int64(len(to.Feature))), append(to.Label, uint8(label))
	}
	return s
}

// TestGradient compares the gradient with finite differences of the loss.
func TestGradient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		classes := rapid.IntRange(2, 5).Draw(t, "classes")
		set := made(rapid.Uint64().Draw(t, "seed"), classes, 12, 30)
		m, err := newModel(set, 1, 1, 4)
		if err != nil {
			t.Fatal(err)
		}
		examples := []int32{0, 3, 7, 3}
		m.need.of(&set.Train, examples)
		r := rand.New(rand.NewPCG(7, 7))
		weights := make([]float32, len(m.need.list)*m.dim)
		for i := range weights {
			weights[i] = float32(r.NormFloat64())
		}
		m.gradient = make([]float32, len(weights))
		m.losses(weights, &set.Train, examples)
		gradient := slices.Clone(m.gradient)
		for i := range weights {
			const step = 1e-2
			old := weights[i]
			weights[i] = old + step
			above, _ := m.losses(weights, &set.Train, examples)
			weights[i] = old - step
			below, _ := m.losses(weights, &set.Train, examples)
			weights[i] = old
			if want := (above - below) / (2 * step); math.Abs(want-float64(gradient[i])) > 2e-3*(1+math.Abs(want)) {
				t.Fatalf("weight %d of %d classes: gradient %v, differences say %v", i, classes, gradient[i], want)
			}
		}
	})
}

// server is a sparse table for a single thread. It applies every Inc immediately.
type server struct {
	part *table.Part
	now  perdure.Clock
	err  error
}

func (s *server) Get(context.Context, string, perdure.RowID, []float32) error {
	return errors.New("no runs")
}

func (s *server) GetRows(_ context.Context, _ string, rows []perdure.RowID, dst []float32) error {
	return errors.Join(s.err, s.part.ReadRows(dst, 0, rows, len(rows)))
}

func (s *server) Inc(context.Context, string, perdure.RowID, []float32) error {
	return errors.New("no runs")
}

func (s *server) IncRows(_ context.Context, _ string, rows []perdure.RowID, delta []float32) error {
	return s.part.ApplyRows(0, rows, len(rows), delta, s.now)
}

func params() api.Params {
	return api.Params{
		Seed: 3, Slots: 1, Batch: 64, Data: "synthetic:3000",
		Rule: perdure.Rule{Kind: perdure.RuleFTRL, Rate: 0.1}.WithDefaults(),
	}
}

// TestWorkloadIsPlain checks that a sparse table gives the bits of the plain loop, and that the model beats chance.
func TestWorkloadIsPlain(t *testing.T) {
	p := params()
	w, err := Open(p)
	must(t, err)
	data, err := dataset.OpenSparse(p.Data)
	must(t, err)
	plain, err := NewPlain(data, p.Seed, p.Batch, p.Rule)
	must(t, err)
	s := &server{part: table.New(w.Tables()[0], 0, p.Seed, 0, 0)}
	first, last := 0.0, 0.0
	for s.now = range perdure.Clock(120) {
		m, err := w.Step(t.Context(), s, api.Share{Of: 1}, s.now)
		must(t, err)
		_, loss, err := plain.Run(1)
		must(t, err)
		if m.TrainLoss != loss || m.Samples != p.Batch {
			t.Fatalf("clock %d: loss %v of %d, plain %v", s.now, m.TrainLoss, m.Samples, loss)
		}
		if s.now == 0 {
			first = loss
		}
		last = loss
	}
	e, err := w.Evaluate(t.Context(), s)
	must(t, err)
	if !(last < 0.8*first) || !(e.Loss < math.Ln2) || !(e.Accuracy > 0.7) {
		t.Errorf("loss %v, then %v; test %+v", first, last, e)
	}
	sent, err := w.(api.FindingsReporter).Findings(t.Context(), s)
	must(t, err)
	if len(sent) != 3 || !strings.HasPrefix(sent[0], "AUC 0.") || !strings.Contains(sent[2], "class 1: ") {
		t.Errorf("it tells %q", sent)
	}
	s.err = perdure.ErrRolledBack
	if _, err := w.Evaluate(t.Context(), s); !errors.Is(err, perdure.ErrRolledBack) {
		t.Errorf("Evaluate: %v", err)
	}
}

func TestClassesLearned(t *testing.T) {
	set := made(5, 4, 40, 2000)
	p, err := NewPlain(set, 1, 50, perdure.Rule{Kind: perdure.RuleFTRL, Rate: 0.1}.WithDefaults())
	must(t, err)
	_, first, err := p.Run(1)
	must(t, err)
	_, _, err = p.Run(200)
	must(t, err)
	_, last, err := p.Run(20)
	must(t, err)
	if !(last < 0.6*first) {
		t.Errorf("loss %v, then %v", first, last)
	}
}

func TestJudged(t *testing.T) {
	sorted := predictions{{0.1, false}, {0.2, true}, {0.2, false}, {0.9, true}}
	if got := sorted.auc(); got != 0.875 {
		t.Errorf("AUC %v", got)
	}
	if got := (predictions{{0.3, true}}).auc(); !math.IsNaN(got) {
		t.Errorf("AUC of one class: %v", got)
	}
	var calibrated, off predictions
	for i := range 1000 {
		v := float64(i/100)/10 + 0.05
		calibrated = append(calibrated, prediction{v, i%100 < i/100*10+5})
		off = append(off, prediction{v, i%2 == 0})
	}
	if got := calibrated.calibrationError(); got > 1e-9 {
		t.Errorf("calibration error %v of what is calibrated", got)
	}
	if got := off.calibrationError(); math.Abs(got-0.25) > 0.01 {
		t.Errorf("calibration error %v, want 0.25", got)
	}
	if lines := off.lines([]string{"a", "b", "c"}); len(lines) != 2 || !strings.Contains(lines[1], "accuracy 50.0 %") {
		t.Errorf("%q", lines)
	}
}

// TestMemory checks that a clock's memory depends on the features in its examples and not on the largest feature
// number.
func TestMemory(t *testing.T) {
	const most = 1<<30 - 1
	data := filepath.Join(t.TempDir(), "high.libsvm")
	must(t, os.WriteFile(data, []byte(strings.Repeat(fmt.Sprintf("a 7:1 %d:2 7:3\nb 0:1 %d\n", most, most-1), 100)),
		0o644))
	p := params()
	p.Data, p.Batch = data, 32
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w, err := Open(p)
	must(t, err)
	s := &server{part: table.New(w.Tables()[0], 0, p.Seed, 0, 0)}
	for s.now = range perdure.Clock(30) {
		_, err := w.Step(t.Context(), s, api.Share{Of: 1}, s.now)
		must(t, err)
	}
	e, err := w.Evaluate(t.Context(), s)
	must(t, err)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 || e.Accuracy != 1 {
		t.Errorf("%d bytes were taken; %+v", took, e)
	}
}

// TestNeeds checks that each row is listed once, at its first use, and that each feature finds its row.
func TestNeeds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfN(rapid.Uint32Range(0, 1<<30-1), 1, 20).Draw(t, "numbers")
		s := dataset.SparseSplit{Starts: []int64{0}}
		for range 10 {
			s.Feature = append(s.Feature, rapid.SliceOf(rapid.SampledFrom(numbers)).Draw(t, "features")...)
			s.Starts = append(s.Starts, int64(len(s.Feature)))
		}
		s.Value = make([]float32, len(s.Feature))
		var n neededRows
		for _, examples := range [][]int32{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {}, {9, 3, 3}} {
			n.of(&s, examples)
			want, at := []perdure.RowID{bias}, 0
			for _, e := range examples {
				features, _ := s.Example(int(e))
				for _, f := range features {
					row := perdure.RowID(f) + 1
					if !slices.Contains(want, row) {
						want = append(want, row)
					}
					if got := n.list[n.at[at]]; got != row {
						t.Fatalf("feature %d has row %d", f, got)
					}
					at++
				}
			}
			if !slices.Equal(n.list, want) || len(n.at) != at {
				t.Fatalf("%d, want %d", n.list, want)
			}
		}
	})
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string]func(*api.Params){
		"number of workers 0":              func(p *api.Params) { p.Slots = 0 },
		"batch of 0":                       func(p *api.Params) { p.Batch = 0 },
		"does not descend along gradients": func(p *api.Params) { p.Rule = perdure.Rule{Kind: perdure.RuleAdd} },
		"4000 workers are too many":        func(p *api.Params) { p.Slots = 4000 },
		"write synthetic:N":                func(p *api.Params) { p.Data = "synthetic:x" },
		"learning rate -1 ":                func(p *api.Params) { p.Rule.Rate = -1 },
	} {
		p := params()
		change(&p)
		if _, err := Open(p); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestInherits checks that a run rejects an initial model with other classes, or with features that are named
// differently.
func TestInherits(t *testing.T) {
	p := &program{model: &model{data: made(1, 2, 6, 20)}}
	for _, c := range []struct{ classes, hashed, want string }{
		{"a\nb", "false", ""},
		{"a\nb", "", ""}, // the model file does not record hashing
		{"a\nb", "true", "its metadata says hashed"},
		{"b\na", "false", "its classes are"},
		{"", "false", "its classes are that it does not name"},
	} {
		err := p.CheckWarmStart(t.Context(), nil, map[string]string{ClassesKey: c.classes, HashedKey: c.hashed})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
