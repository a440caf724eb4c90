package itercost

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestKappa(t *testing.T) {
	for name, c := range map[string]struct {
		series []float64
		want   Reach
	}{
		"falls":                     {[]float64{5, 3, 1, 0.5}, Reach{2, false}},
		"is at ε":                   {[]float64{5, 1}, Reach{1, false}},
		"begins below":              {[]float64{1, 0.5}, Reach{0, false}},
		"is thrown out, comes back": {[]float64{5, 1, 7, 2, 1, 1}, Reach{4, false}},
		"is thrown out at its end":  {[]float64{5, 1, 1, 7}, Reach{4, true}},
		"never comes there":         {[]float64{5, 4, 3}, Reach{3, true}},
	} {
		if got, err := Kappa(c.series, 1); err != nil || got != c.want {
			t.Errorf("a run that %s: %v, %v; want %v", name, got, err, c.want)
		}
	}
}

// TestKappaDefinition compares with the definition: the first clock from which on no value exceeds ε.
func TestKappaDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	for range 1000 {
		values := make([]float64, 1+r.IntN(12))
		for i := range values {
			values[i] = float64(r.IntN(3))
		}
		want := Reach{len(values), true}
		for from := len(values) - 1; from >= 0; from-- {
			stays := true
			for _, v := range values[from:] {
				stays = stays && v <= 1
			}
			if stays {
				want = Reach{from, false}
			}
		}
		if got, err := Kappa(values, 1); err != nil || got != want {
			t.Fatalf("κ of %v: %v, %v; want %v", values, got, err, want)
		}
	}
}

func TestIota(t *testing.T) {
	for _, c := range []struct {
		disturbed, undisturbed Reach
		want                   Cost
	}{
		{Reach{12, false}, Reach{9, false}, Cost{3, false}},
		{Reach{8, false}, Reach{9, false}, Cost{-1, false}},
		{Reach{40, true}, Reach{9, false}, Cost{31, true}},
	} {
		got, err := Iota(c.disturbed, c.undisturbed)
		if err != nil || got != c.want {
			t.Errorf("ι of %v over %v: %v, %v; want %v", c.disturbed, c.undisturbed, got, err, c.want)
		}
	}
}

// TestErrors checks that each mistake returns a one-line error that names it.
func TestErrors(t *testing.T) {
	good := []Cost{{3, false}}
	kappa := func(s []float64, epsilon float64) error { _, err := Kappa(s, epsilon); return err }
	iota := func(a, b Reach) error { _, err := Iota(a, b); return err }
	bound := func(c, start float64, p ...Perturbation) error { _, err := NewBound(c, start, p); return err }
	mean := func(b Bootstrap, costs []Cost) error { _, err := b.Mean(costs); return err }
	rate := func(values ...float64) error { _, err := Rate(values); return err }
	summary := func(costs []Cost) error { _, err := Summarize(costs); return err }
	half, err := NewBound(0.5, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, noEpsilon := half.Kappa(0)
	_, noTwin := half.Cost(0.1, Reach{7, true})
	for _, c := range []struct {
		err  error
		is   error // nil: no sentinel error
		says string
	}{
		{kappa(nil, 1), ErrSeries, "it is empty"},
		{kappa([]float64{2, math.NaN()}, 1), ErrSeries, "at clock 1 is not finite: NaN"},
		{kappa([]float64{math.Inf(1)}, 1), ErrSeries, "at clock 0 is not finite: +Inf"},
		{kappa([]float64{2}, math.NaN()), nil, "ε is NaN"},
		{iota(Reach{3, false}, Reach{9, true}), ErrNeverReached, "before clock 9"},
		{noTwin, ErrNeverReached, "before clock 7"},
		{noEpsilon, nil, "ε is 0"},
		{bound(0, 1), ErrRate, "(0, 1): 0"},
		{bound(1, 1), ErrRate, "(0, 1): 1"},
		{bound(math.NaN(), 1), ErrRate, "(0, 1): NaN"},
		{bound(0.5, 0), nil, "is 0; it must be"},
		{bound(0.5, math.Inf(1)), nil, "is +Inf; it must be"},
		{bound(0.5, 1, Perturbation{-1, 1}), nil, "at clock -1"},
		{bound(0.5, 1, Perturbation{3, math.NaN()}), nil, "norm NaN at clock 3"},
		{summary(nil), ErrSample, "no costs"},
		{mean(Bootstrap{}, nil), ErrSample, "it is empty"},
		{mean(Bootstrap{}, []Cost{{3, true}}), ErrSample, "known value"},
		{mean(Bootstrap{Baselines: []int{1, 2}}, good), ErrSample, "1 members, but 2 twins"},
		{rate(1, 0.5), ErrSeries, "2 distances are too few"},
		{rate(1, 0.5, 0), ErrSeries, "the distance at clock 2 is 0"},
		{rate(1, 2, 3), ErrRate, "do not decrease"},
		{rate(), ErrSeries, "it is empty"},
	} {
		switch {
		case c.err == nil:
			t.Errorf("no error that says %q", c.says)
		case c.is != nil && !errors.Is(c.err, c.is), !strings.HasPrefix(c.err.Error(), "itercost: "),
			!strings.Contains(c.err.Error(), c.says), strings.Contains(c.err.Error(), "\n"):
			t.Errorf("%v: is not %v, or does not say %q in one line", c.err, c.is, c.says)
		}
	}
}
