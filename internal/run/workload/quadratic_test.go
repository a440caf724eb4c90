package workload

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// quadraticMemory is a table for a single thread.
type quadraticMemory []float32

func (m quadraticMemory) Get(_ context.Context, _ string, first perdure.RowID, dst []float32) error {
	copy(dst, m)
	return nil
}

func (m quadraticMemory) GetRows(context.Context, string, []perdure.RowID, []float32) error {
	return nil
}

func (m quadraticMemory) Inc(_ context.Context, _ string, _ perdure.RowID, delta []float32) error {
	for i, g := range delta {
		m[i] -= quadraticRate * g
	}
	return nil
}

func (m quadraticMemory) IncRows(context.Context, string, []perdure.RowID, []float32) error {
	return nil
}

const quadraticRate = 1.5

func quadraticParams() api.Params {
	return api.Params{
		Seed: 3, Slots: 1, Bowl: api.Quadratic{Rows: 50, Dim: 3, Condition: 20},
		Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: quadraticRate},
	}
}

// TestQuadraticContracts checks that each clock reduces the distance from x to x* by at least the reported contraction,
// and that Step reports the loss that Evaluate measured before it.
func TestQuadraticContracts(t *testing.T) {
	opened, err := openQuadratic(quadraticParams())
	if err != nil {
		t.Fatal(err)
	}
	w := opened.(*quadratic)
	m := make(quadraticMemory, 150)
	c, first := w.Contraction(quadraticRate), 0.0
	if want := 1 - quadraticRate/20; math.Abs(c-want) > 1e-12 {
		t.Fatalf("contraction %v, want %v", c, want)
	}
	for clock := range perdure.Clock(60) {
		e, err := w.Evaluate(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if clock == 0 {
			first = e.RMSE
		} else if bound := first * math.Pow(c, float64(clock)); e.RMSE > bound*(1+1e-5) {
			t.Fatalf("clock %d: %v from x*, the bound is %v", clock, e.RMSE, bound)
		}
		got, err := w.Step(t.Context(), m, api.Share{Of: 1}, clock)
		if err != nil || got.TrainLoss != e.Loss || got.TrainRMSE != e.RMSE {
			t.Fatalf("clock %d: %+v, %v; judged %+v", clock, got, err, e)
		}
	}
	sent, err := w.Findings(t.Context(), m)
	if err != nil || len(sent) != 2 || !strings.Contains(sent[1], "0.925") {
		t.Errorf("it tells %q, %v", sent, err)
	}
}

// TestQuadraticPlain checks that the plain loop computes what a job with one worker computes.
func TestQuadraticPlain(t *testing.T) {
	plain, err := NewPlainQuadratic(quadraticParams())
	if err != nil {
		t.Fatal(err)
	}
	w, err := openQuadratic(quadraticParams())
	if err != nil {
		t.Fatal(err)
	}
	x := make(quadraticMemory, len(plain.x))
	for clock := range perdure.Clock(20) {
		m, err := w.Step(t.Context(), x, api.Share{Of: 1}, clock)
		if err != nil {
			t.Fatal(err)
		}
		if values, off := plain.Run(1); values != len(x) || off != m.TrainRMSE || !slices.Equal(plain.x, x) {
			t.Fatalf("clock %d: %d values, %v off, and %v of the workload", clock, values, off, m.TrainRMSE)
		}
	}
}

// TestQuadraticNoise checks that a clock's noise depends only on seed, slot and clock, and that its mean is 0.
func TestQuadraticNoise(t *testing.T) {
	p := quadraticParams()
	p.Bowl.Noise, p.Bowl.Rows = 2, 4000
	a, err := openQuadratic(p)
	if err != nil {
		t.Fatal(err)
	}
	var exact []float32
	{
		still := p
		still.Bowl.Noise = 0
		w, err := openQuadratic(still)
		if err != nil {
			t.Fatal(err)
		}
		exact = quadraticStep(t, w, 0, 0)
	}
	first := quadraticStep(t, a, 0, 5)
	if !slices.Equal(first, quadraticStep(t, a, 0, 5)) || slices.Equal(first, quadraticStep(t, a, 1, 5)) ||
		slices.Equal(first, quadraticStep(t, a, 0, 6)) {
		t.Error("noise is not a function of slot and clock")
	}
	sum, squares := 0.0, 0.0
	for i, g := range first {
		d := float64(g-exact[i]) * 2 // with two slots, each computes half
		sum += d
		squares += d * d
	}
	n := float64(len(first))
	if deviation := math.Sqrt(squares / n); math.Abs(sum/n) > 0.1 || math.Abs(deviation-2) > 0.1 {
		t.Errorf("noise of mean %v and deviation %v", sum/n, deviation)
	}
}

// quadraticStep returns the gradient at zeros of one of two slots.
func quadraticStep(t *testing.T, w api.Workload, rank int, clock perdure.Clock) []float32 {
	t.Helper()
	x := make(quadraticMemory, len(w.(*quadratic).x))
	if _, err := w.Step(t.Context(), x, api.Share{Rank: rank, Of: 2}, clock); err != nil {
		t.Fatal(err)
	}
	return slices.Clone(w.(*quadratic).gradient)
}

func TestQuadraticRefuses(t *testing.T) {
	for want, change := range map[string]func(*api.Params){
		"number of workers 0": func(p *api.Params) { p.Slots = 0 },
		"0 rows":              func(p *api.Params) { p.Bowl.Rows = 0 },
		"values in total":     func(p *api.Params) { p.Bowl.Rows = 1 << 30 },
		"condition 0.5":       func(p *api.Params) { p.Bowl.Condition = 0.5 },
		"condition NaN":       func(p *api.Params) { p.Bowl.Condition = math.NaN() },
		"noise -1":            func(p *api.Params) { p.Bowl.Noise = -1 },
		"rule add":            func(p *api.Params) { p.Rule = perdure.Rule{Kind: perdure.RuleAdd} },
	} {
		p := quadraticParams()
		change(&p)
		if _, err := openQuadratic(p); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
