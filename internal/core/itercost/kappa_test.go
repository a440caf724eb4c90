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
		series Series
		want   Reach
	}{
		"falls":                      {EachClock([]float64{5, 3, 1, 0.5}), Reach{2, false}},
		"is at ε":                    {EachClock([]float64{5, 1}), Reach{1, false}},
		"begins below":               {EachClock([]float64{1, 0.5}), Reach{0, false}},
		"is thrown out, comes back":  {EachClock([]float64{5, 1, 7, 2, 1, 1}), Reach{4, false}},
		"is thrown out at its end":   {EachClock([]float64{5, 1, 1, 7}), Reach{4, true}},
		"never comes there":          {EachClock([]float64{5, 4, 3}), Reach{3, true}},
		"is looked at now and then":  {Series{{0, 5}, {10, 2}, {20, 1}, {30, 0}}, Reach{20, false}},
		"ends without a last look":   {Series{{0, 5}, {10, 2}}, Reach{11, true}},
		"is looked at once, and low": {Series{{7, 1}}, Reach{7, false}},
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
		if got, err := Kappa(EachClock(values), 1); err != nil || got != want {
			t.Fatalf("κ of %v: %v, %v; want %v", values, got, err, want)
		}
	}
}

func TestIota(t *testing.T) {
	for _, c := range []struct {
		disturbed, undisturbed Reach
		want                   Cost
		text                   string
	}{
		{Reach{12, false}, Reach{9, false}, Cost{3, false}, "3"},
		{Reach{8, false}, Reach{9, false}, Cost{-1, false}, "-1"},
		{Reach{40, true}, Reach{9, false}, Cost{31, true}, "≥ 31"},
	} {
		got, err := Iota(c.disturbed, c.undisturbed)
		if err != nil || got != c.want || got.String() != c.text {
			t.Errorf("ι of %v over %v: %v, %v; want %v, %s", c.disturbed, c.undisturbed, got, err, c.want, c.text)
		}
	}
}

// TestErrors checks that each mistake returns a one-line error that names it.
func TestErrors(t *testing.T) {
	good := []Cost{{3, false}}
	table := func(name string, dim int, values ...float32) []Table[float32] {
		return []Table[float32]{{name, dim, values}}
	}
	between := func(a, b []Table[float32]) error { _, err := Between(a, b); return err }
	kappa := func(s Series, epsilon float64) error { _, err := Kappa(s, epsilon); return err }
	iota := func(a, b Reach) error { _, err := Iota(a, b); return err }
	bound := func(c, start float64, p ...Perturbation) error { _, err := NewBound(c, start, p); return err }
	mean := func(b Bootstrap, costs []Cost) error { _, err := b.Mean(costs); return err }
	rate := func(values ...float64) error { _, err := Bootstrap{}.Rate(EachClock(values)); return err }
	summary := func(costs []Cost) error { _, err := Summarize(costs); return err }
	compare := func(pairs []Pair) error { _, err := Compare(pairs); return err }
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
		{kappa(EachClock([]float64{2, math.NaN()}), 1), ErrSeries, "at clock 1 is not finite: NaN"},
		{kappa(EachClock([]float64{math.Inf(1)}), 1), ErrSeries, "at clock 0 is not finite: +Inf"},
		{kappa(Series{{5, 1}, {5, 1}}, 1), ErrSeries, "clock 5 follows clock 5"},
		{kappa(EachClock([]float64{2}), math.NaN()), nil, "ε is NaN"},
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
		{between(table("a", 2, 1, 2), nil), ErrTables, "expected 1 tables, but 0"},
		{between(table("a", 2, 1, 2), table("b", 2, 1, 2)), ErrTables, "table 0 is a, but"},
		{between(table("a", 2, 1, 2), table("a", 1, 1, 2)), ErrTables, "a has 2 values per row"},
		{between(table("a", 2, 1, 2), table("a", 2, 1, 2, 3, 4)), ErrTables, "a has 2 values, but"},
		{between(table("a", 2, 1), table("a", 2, 1)), ErrTables, "in rows of 2"},
		{between(table("a", 0), table("a", 0)), ErrTables, "0 values per row"},
		{between(table("a", 1, 1, 2), table("a", 1, 1, float32(math.Inf(1)))), ErrTables, "row 1 of table a"},
		{summary(nil), ErrSample, "no costs"},
		{compare(nil), ErrSample, "no pairs"},
		{mean(Bootstrap{}, nil), ErrSample, "it is empty"},
		{mean(Bootstrap{}, []Cost{{3, true}}), ErrSample, "known value"},
		{mean(Bootstrap{Baselines: []int{1, 2}}, good), ErrSample, "1 members, but 2 twins"},
		{mean(Bootstrap{Level: 1}, good), nil, "level 1 is outside"},
		{mean(Bootstrap{Draws: -1}, good), nil, "number of draws -1"},
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
