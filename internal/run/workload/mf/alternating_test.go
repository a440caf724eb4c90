package mf

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/gonum/mat"
	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

func newPlainAlternating(t testing.TB, d *dataset.Ratings, o Options) *PlainAlternating {
	t.Helper()
	p, err := NewPlainAlternating(d, o)
	must(t, err)
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func runAlternating(t testing.TB, p *PlainAlternating, clocks perdure.Clock) (ratings int, rmse float64) {
	t.Helper()
	ratings, rmse, err := p.Run(clocks)
	must(t, err)
	return ratings, rmse
}

// objective returns the function that als minimises, without the constant factor ½, in float64.
func (p *PlainAlternating) objective() (sum float64) {
	o, rank := &p.a.options, p.a.options.Rank
	squares := func(row []float32) (sum float64) {
		for _, x := range row {
			sum += float64(x) * float64(x)
		}
		return sum
	}
	t := &p.a.data.Train
	for i, v := range t.Value {
		u, w := p.users[int(t.User[i])*rank:][:rank], p.items[int(t.Item[i])*rank:][:rank]
		e := float64(p.a.target(v))
		for k := range u {
			e -= float64(u[k]) * float64(w[k])
		}
		sum += e*e + o.L2*(squares(u)+squares(w))
	}
	return sum
}

// TestAlternatingDescends checks that no half pass increases the loss, and that held-out predictions are better than
// the mean.
func TestAlternatingDescends(t *testing.T) {
	d := jesterLike(1000)
	squares := 0.0
	for _, v := range d.Test.Value {
		squares += float64(v) * float64(v)
	}
	always := math.Sqrt(squares / float64(d.Test.Len()))
	p := newPlainAlternating(t, d, Options{
		Seed: 1, Slots: 1, Factors: api.Factors{Rank: 10, L2: 0.05, ClockFraction: 1},
	})
	before := math.Inf(1)
	for half := range 12 {
		if n, _ := runAlternating(t, p, 1); n != d.Train.Len() {
			t.Fatalf("half a pass of %d ratings, there are %d", n, d.Train.Len())
		}
		now := p.objective()
		if !(now <= before*(1+1e-6)) {
			t.Errorf("clock %d: the loss was %v, and is %v", half, before, now)
		}
		before = now
	}
	if got := p.HeldOut(); !(got < 0.75*always) {
		t.Errorf("held-out RMSE %v; the mean alone has %v", got, always)
	}
}

// TestSolved compares a solved row with the solution of its equations by another method in float64.
func TestSolved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		rank, n := rapid.IntRange(1, 70).Draw(t, "rank"), rapid.IntRange(1, 1200).Draw(t, "ratings")
		all, hold := rapid.IntRange(0, 3).Draw(t, "all")*300, 0.01+r.Float64()
		equations := newNormalEquations(rank)
		left, right := mat.NewDense(rank, rank, nil), mat.NewVecDense(rank, nil)
		if all > 0 {
			rows := randomRow(r, all*rank)
			equations.sumAll(rows)
			for ; len(rows) > 0; rows = rows[rank:] {
				v := wide(rows[:rank])
				left.RankOne(left, 1, v, v)
			}
		}
		equations.start(all > 0)
		for range n {
			row, weight, target := randomRow(r, rank), float32(r.Float64()), float32(r.NormFloat64())
			equations.add(row, weight, target)
			v := wide(row)
			left.RankOne(left, float64(weight), v, v)
			right.AddScaledVec(right, float64(target), v)
		}
		for i := range rank {
			left.Set(i, i, left.At(i, i)+hold)
		}
		got := make([]float32, rank)
		if err := equations.solve(got, hold); err != nil {
			t.Fatal(err)
		}
		var want, missed mat.VecDense
		if err := want.SolveVec(left, right); err != nil {
			t.Skip("too near to having no solution")
		}
		missed.SubVec(&want, wide(got))
		if off := mat.Norm(&missed, 2) / max(mat.Norm(&want, 2), 1e-3); off > 2e-3 {
			t.Fatalf("rank %d, %d ratings: %v off, relative to the row", rank, n, off)
		}
	})
}

func wide(row []float32) *mat.VecDense {
	v := mat.NewVecDense(len(row), nil)
	for i, x := range row {
		v.SetVec(i, float64(x))
	}
	return v
}

func TestSingular(t *testing.T) {
	equations := newNormalEquations(2)
	equations.start(false)
	equations.add([]float32{1, 1}, 1, 1)
	if err := equations.solve(make([]float32, 2), -3); !errors.Is(err, errSingular) {
		t.Errorf("solved: %v", err)
	}
}

// TestAlternatingIsPlain checks that tables give the bits of the plain loop for any number of slots and of clocks per
// pass.
func TestAlternatingIsPlain(t *testing.T) {
	for _, implicit := range []float64{0, 20} {
		params := goodParams()
		params.Rule.Rate, params.Rule.Schedule = 0, ""
		params.Factors = api.Factors{
			Rank: 12, L2: 0.05, ClockFraction: 1, Solver: SolverALS, Implicit: implicit,
		}
		d, err := dataset.OpenRatings(params.Data)
		must(t, err)
		o := Options{params.Seed, params.Slots, params.Factors}
		plain := newPlainAlternating(t, d, o)
		runAlternating(t, plain, 6)
		for _, c := range []struct {
			slots    int
			fraction float64
		}{{1, 1}, {2, 1}, {3, 0.5}, {1, 0.2}} {
			params.Slots, params.Factors.ClockFraction = c.slots, c.fraction
			w, err := Open(params)
			must(t, err)
			s := newServer(w, params.Seed)
			for clock := range perdure.Clock(6 * math.Round(1/c.fraction)) {
				for rank := range c.slots {
					m, err := w.Step(t.Context(), s, api.Share{Rank: rank, Of: c.slots}, clock)
					must(t, err)
					if m.Samples == 0 || !(m.TrainLoss < 10) {
						t.Errorf("clock %d: %+v", clock, m)
					}
				}
				s.tick(t)
			}
			for name, rows := range map[string][]float32{Users: plain.users, Items: plain.items} {
				got, err := s.parts[name].Run(0, s.parts[name].Rows)
				must(t, err)
				if !slices.Equal(got, rows) {
					t.Errorf("%+v, implicit %v: table %s ends with other bits than the plain loop", c, implicit, name)
				}
			}
			e, err := w.Evaluate(t.Context(), s)
			must(t, err)
			if implicit == 0 && e.RMSE != plain.HeldOut() {
				t.Errorf("RMSE %v, plain %v", e.RMSE, plain.HeldOut())
			}
		}
	}
}

// TestImplicit checks that items observed by users with some taste are predicted for other users with that taste.
func TestImplicit(t *testing.T) {
	const users, items, tastes = 300, 200, 4
	r := rand.New(rand.NewPCG(5, 5))
	d := &dataset.Ratings{Name: "seen", Users: users, Items: items, Deviation: 1}
	for u := range users {
		for i := range items {
			if chance := 0.02 + 0.3*float64(1-min(1, (u-i)%tastes*((u-i)%tastes))); r.Float64() < chance {
				s := &d.Train
				if r.IntN(10) == 0 {
					s = &d.Test
				}
				s.User, s.Item = append(s.User, int32(u)), append(s.Item, int32(i))
				s.Value = append(s.Value, float32(1+r.IntN(5)))
			}
		}
	}
	p := newPlainAlternating(t, d, Options{
		Seed: 1, Slots: 1, Factors: api.Factors{Rank: 8, L2: 0.1, ClockFraction: 1, Implicit: 10},
	})
	runAlternating(t, p, 10)
	w := p.a
	s := newServer(w, 1)
	must(t, s.Inc(t.Context(), Users, 0, p.users))
	must(t, s.Inc(t.Context(), Items, 0, p.items))
	s.tick(t)
	e, err := w.Evaluate(t.Context(), s)
	must(t, err)
	if !(e.Loss > 0 && e.Loss < 0.25) || !math.IsNaN(e.RMSE) {
		t.Errorf("held-out items stand at %v of their users' lists; chance gives 0.5", e.Loss)
	}
}

func TestStanding(t *testing.T) {
	out := float32(math.Inf(-1))
	for _, c := range []struct {
		scores []float32
		want   float64
	}{
		{[]float32{3, 2, 1}, 0},
		{[]float32{1, 2, 3}, 1},
		{[]float32{1, 1, 1}, 0.5},
		{[]float32{2, out, 3, 1}, 0.5},
		{[]float32{2}, 0},
	} {
		if got := rankOf(c.scores, 0); got != c.want {
			t.Errorf("the first of %v stands at %v, want %v", c.scores, got, c.want)
		}
	}
}

// TestCut checks that the parts contain every row once and cost about the same.
func TestCut(t *testing.T) {
	d := jesterLike(400)
	a, err := newAlternating(d, Options{Seed: 1, Slots: 1, Factors: api.Factors{Rank: 9, L2: 1, ClockFraction: 1}})
	must(t, err)
	for _, s := range a.sides {
		rows := len(s.starts) - 1
		for _, n := range []int{1, 2, 3, 7, 40, 5 * rows} {
			if first, end := s.cut(0, n), s.cut(n, n); first != 0 || end != rows {
				t.Fatalf("%d parts of %s are rows %d to %d", n, s.table, first, end)
			}
			for k := range n {
				first, end := s.cut(k, n), s.cut(k+1, n)
				if first > end {
					t.Fatalf("part %d of %d of %s is rows %d to %d", k, n, s.table, first, end)
				}
				cost, all := s.weight[end]-s.weight[first], s.weight[rows]
				if n <= 7 && math.Abs(float64(cost*n)/float64(all)-1) > 0.1 {
					t.Errorf("part %d of %d of %s costs %d of %d", k, n, s.table, cost, all)
				}
			}
		}
	}
}

func TestAlternatingRefuses(t *testing.T) {
	good := func() api.Params {
		p := goodParams()
		p.Rule.Rate, p.Rule.Schedule = 0, ""
		p.Factors.Solver = SolverALS
		return p
	}
	if _, err := Open(good()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*api.Params){
		`solver "sdg"`:           func(p *api.Params) { p.Factors.Solver = "sdg" },
		"without an update rule": func(p *api.Params) { p.Rule.Rate = 0.1 },
		"number of workers 0":    func(p *api.Params) { p.Slots = 0 },
		"l2 is 0;":               func(p *api.Params) { p.Factors.L2 = 0 },
		"remove --whole-users":   func(p *api.Params) { p.Factors.WholeUsers = true },
		"implicit -1":            func(p *api.Params) { p.Factors.Implicit = -1 },
		"implicit NaN":           func(p *api.Params) { p.Factors.Implicit = math.NaN() },
		"rank 0":                 func(p *api.Params) { p.Factors.Rank = 0 },
		"only the solver als":    func(p *api.Params) { p.Factors.Solver, p.Factors.Implicit = "", 1 },
	} {
		p := good()
		change(&p)
		if _, err := Open(p); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want %q", p.Factors, err, want)
		}
	}
	below := jesterLike(50) // ratings from -10 to 10
	counts := Options{Factors: api.Factors{Rank: 4, L2: 1, ClockFraction: 1, Implicit: 1}}
	if _, err := newAlternating(below, counts); !errors.Is(err, perdure.ErrUsage) ||
		!strings.Contains(err.Error(), "values must be ≥ 0") {
		t.Errorf("counts below 0: %v", err)
	}
}

func BenchmarkAlternating(b *testing.B) {
	d, err := dataset.OpenRatings("synthetic:0.002")
	must(b, err)
	for _, rank := range []int{32, 100} {
		p := newPlainAlternating(b, d, Options{
			Seed: 1, Slots: 1, Factors: api.Factors{Rank: rank, L2: 0.07, ClockFraction: 1},
		})
		b.Run("rank "+string(rune('0'+rank/10))+"x", func(b *testing.B) {
			for b.Loop() {
				runAlternating(b, p, 2)
			}
			b.ReportMetric(float64(2*d.Train.Len()*b.N)/b.Elapsed().Seconds(), "ratings/s")
		})
	}
}

// HeldOut returns the root mean squared error on the held-out ratings.
func (p *PlainAlternating) HeldOut() float64 {
	a, test := p.a, &p.a.data.Test
	wide := func(rows []float32) []float32 {
		to := make([]float32, len(rows)/a.options.Rank*a.stride)
		a.widen(to, rows)
		return to
	}
	squares, _ := a.squaredErrors(0, test, 0, 0, math.MaxInt32, wide(p.users), wide(p.items))
	return math.Sqrt(a.loss(squares, test.Len()))
}
