package quadratic

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/workload/contract"
)

// memory is a table of one thread.
type memory []float32

func (m memory) Get(_ context.Context, _ string, first perdure.RowID, dst []float32) error {
	copy(dst, m)
	return nil
}
func (m memory) GetRows(context.Context, string, []perdure.RowID, []float32) error { return nil }
func (m memory) Inc(_ context.Context, _ string, _ perdure.RowID, delta []float32) error {
	for i, g := range delta {
		m[i] -= rate * g
	}
	return nil
}
func (m memory) IncRows(context.Context, string, []perdure.RowID, []float32) error { return nil }

const rate = 1.5

func params() contract.Params {
	return contract.Params{
		Seed: 3, Slots: 1, Bowl: contract.Bowl{Rows: 50, Dim: 3, Condition: 20},
		Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: rate},
	}
}

// TestContracts: each clock brings x nearer to x* by the factor that is told, and no clock by less than it must.
func TestContracts(t *testing.T) {
	opened, err := Open(params())
	if err != nil {
		t.Fatal(err)
	}
	w := opened.(*program)
	m := make(memory, 150)
	c, first := w.Contraction(rate), 0.0
	if want := 1 - rate/20; math.Abs(c-want) > 1e-12 {
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
		got, err := w.Step(t.Context(), m, contract.Share{Of: 1}, clock)
		if err != nil || got.TrainLoss != e.Loss || got.TrainRMSE != e.RMSE {
			t.Fatalf("clock %d: %+v, %v; judged %+v", clock, got, err, e)
		}
	}
	told, err := w.Tell(t.Context(), m)
	if err != nil || len(told) != 2 || !strings.Contains(told[1], "0.925") {
		t.Errorf("it tells %q, %v", told, err)
	}
}

// TestNoise: a clock's noise is a function of seed, slot and clock, and of mean 0.
// TestPlain: the plain loop does what a job of one worker does.
func TestPlain(t *testing.T) {
	plain, err := NewPlain(params())
	if err != nil {
		t.Fatal(err)
	}
	w, err := Open(params())
	if err != nil {
		t.Fatal(err)
	}
	x := make(memory, len(plain.x))
	for clock := range perdure.Clock(20) {
		m, err := w.Step(t.Context(), x, contract.Share{Of: 1}, clock)
		if err != nil {
			t.Fatal(err)
		}
		if values, off := plain.Run(1); values != len(x) || off != m.TrainRMSE || !slices.Equal(plain.x, x) {
			t.Fatalf("clock %d: %d values, %v off, and %v of the workload", clock, values, off, m.TrainRMSE)
		}
	}
}

func TestNoise(t *testing.T) {
	p := params()
	p.Bowl.Noise, p.Bowl.Rows = 2, 4000
	a, err := Open(p)
	if err != nil {
		t.Fatal(err)
	}
	var exact []float32
	{
		still := p
		still.Bowl.Noise = 0
		w, err := Open(still)
		if err != nil {
			t.Fatal(err)
		}
		exact = step(t, w, 0, 0)
	}
	first := step(t, a, 0, 5)
	if !slices.Equal(first, step(t, a, 0, 5)) || slices.Equal(first, step(t, a, 1, 5)) ||
		slices.Equal(first, step(t, a, 0, 6)) {
		t.Error("noise is not a function of slot and clock")
	}
	sum, squares := 0.0, 0.0
	for i, g := range first {
		d := float64(g-exact[i]) * 2 // of two slots, each has half
		sum += d
		squares += d * d
	}
	n := float64(len(first))
	if deviation := math.Sqrt(squares / n); math.Abs(sum/n) > 0.1 || math.Abs(deviation-2) > 0.1 {
		t.Errorf("noise of mean %v and deviation %v", sum/n, deviation)
	}
}

// step returns a slot's gradient at zeros, of two slots.
func step(t *testing.T, w contract.Workload, rank int, clock perdure.Clock) []float32 {
	t.Helper()
	x := make(memory, len(w.(*program).x))
	if _, err := w.Step(t.Context(), x, contract.Share{Rank: rank, Of: 2}, clock); err != nil {
		t.Fatal(err)
	}
	return slices.Clone(w.(*program).gradient)
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string]func(*contract.Params){
		"0 workers":     func(p *contract.Params) { p.Slots = 0 },
		"batch of 3":    func(p *contract.Params) { p.Batch = 3 },
		"data here":     func(p *contract.Params) { p.Data = "here" },
		"no factors":    func(p *contract.Params) { p.ByLayer = true },
		"0 rows":        func(p *contract.Params) { p.Bowl.Rows = 0 },
		"values in all": func(p *contract.Params) { p.Bowl.Rows = 1 << 30 },
		"condition 0.5": func(p *contract.Params) { p.Bowl.Condition = 0.5 },
		"condition NaN": func(p *contract.Params) { p.Bowl.Condition = math.NaN() },
		"noise -1":      func(p *contract.Params) { p.Bowl.Noise = -1 },
		"rule add":      func(p *contract.Params) { p.Rule = perdure.Rule{Kind: perdure.RuleAdd} },
	} {
		p := params()
		change(&p)
		if _, err := Open(p); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
