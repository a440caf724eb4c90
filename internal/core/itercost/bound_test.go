package itercost

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/floats"
)

// quadratic is gradient descent with a constant step on a quadratic: x ← x − ηA(x − x*). A reflection rotates its axes,
// and each step multiplies the error along an axis by a factor.
type quadratic struct {
	factors, mirror, optimum []float64
}

func vector(r *rand.Rand, dim int, norm float64) []float64 {
	v := make([]float64, dim)
	for i := range v {
		v[i] = r.NormFloat64()
	}
	floats.Scale(norm/floats.Norm(v, 2), v)
	return v
}

// someQuadratic draws a quadratic that contracts at c, in one direction or in all of them.
func someQuadratic(r *rand.Rand, c float64, everywhere bool) quadratic {
	q := quadratic{factors: make([]float64, 1+r.IntN(6))}
	for i := range q.factors {
		q.factors[i] = c
		if i > 0 && !everywhere {
			q.factors[i] *= 2*r.Float64() - 1 // negative: the step is so long that it overshoots
		}
	}
	q.mirror, q.optimum = vector(r, len(q.factors), 1), vector(r, len(q.factors), 3)
	return q
}

func (q quadratic) reflect(x []float64) { floats.AddScaled(x, -2*floats.Dot(x, q.mirror), q.mirror) }

func (q quadratic) step(x []float64) {
	floats.Sub(x, q.optimum)
	q.reflect(x)
	floats.Mul(x, q.factors)
	q.reflect(x)
	floats.Add(x, q.optimum)
}

// shove is a perturbation at a clock.
type shove struct {
	clock int
	by    func(x []float64) []float64
}

// run returns the distances to the optimum at each clock up to last. with determines whether the distance at a clock of
// a perturbation includes it.
func (q quadratic) run(x []float64, last int, shoves []shove, with bool) (distances []float64) {
	x = append([]float64{}, x...)
	for clock := 0; clock <= last; clock++ {
		before := floats.Distance(x, q.optimum, 2)
		for _, s := range shoves {
			if s.clock == clock {
				floats.Add(x, s.by(x))
			}
		}
		if with {
			before = floats.Distance(x, q.optimum, 2)
		}
		distances = append(distances, before)
		q.step(x)
	}
	return distances
}

// trial is a disturbed run of a quadratic.
type trial struct {
	quadratic
	c, start, epsilon float64
	x                 []float64
	perturbations     []Perturbation
	shoves            []shove
}

// someTrial draws a run with up to five perturbations. With outward, they point away from the optimum, which is the
// worst case.
func someTrial(r *rand.Rand, everywhere, outward bool) trial {
	p := trial{c: 0.05 + 0.93*r.Float64(), start: math.Pow(10, 4*r.Float64()-2)}
	p.quadratic = someQuadratic(r, p.c, everywhere)
	dim := len(p.factors)
	p.epsilon = p.start * math.Pow(10, 1-9*r.Float64())
	p.x = vector(r, dim, p.start)
	floats.Add(p.x, p.optimum)
	for range r.IntN(6) {
		clock, norm := r.IntN(60), p.start*math.Pow(10, 4*r.Float64()-3)
		by := vector(r, dim, norm)
		p.perturbations = append(p.perturbations, Perturbation{clock, norm})
		p.shoves = append(p.shoves, shove{clock, func(x []float64) []float64 {
			if !outward {
				return by
			}
			out := floats.SubTo(make([]float64, dim), x, p.optimum)
			if far := floats.Norm(out, 2); far > 0 {
				floats.Scale(norm/far, out)
				return out
			}
			return by // from the optimum itself, every direction is outward
		}})
	}
	return p
}

// kappas returns κ of the disturbed and of the undisturbed run. Both runs are long enough that they cannot exceed ε
// again.
func (p trial) kappas(t *testing.T, last int, with bool) (disturbed, undisturbed Reach) {
	t.Helper()
	disturbed, err := Kappa(p.run(p.x, last, p.shoves, with), p.epsilon)
	if err != nil {
		t.Fatal(err)
	}
	undisturbed, err = Kappa(p.run(p.x, last, nil, with), p.epsilon)
	if err != nil {
		t.Fatal(err)
	}
	return disturbed, undisturbed
}

func (p trial) bound(t *testing.T) (Bound, int) {
	t.Helper()
	b, err := NewBound(p.c, p.start, p.perturbations)
	if err != nil {
		t.Fatal(err)
	}
	kappa, err := b.Kappa(p.epsilon)
	if err != nil {
		t.Fatal(err)
	}
	return b, kappa
}

// slack is the max effect of rounding on a clock.
const slack = 1

// TestKappaBound checks that the bound of κ, and the bound of ι derived from it, hold for quadratics of any shape. It
// takes distances both before and after a perturbation.
func TestKappaBound(t *testing.T) {
	for seed := range uint64(1000) {
		p := someTrial(rand.New(rand.NewPCG(seed, 0)), false, seed%2 == 1)
		b, most := p.bound(t)
		for _, with := range []bool{false, true} {
			disturbed, undisturbed := p.kappas(t, max(most, 60)+5, with)
			if disturbed.Censored || disturbed.Clock > most+slack {
				t.Fatalf("seed %d: κ is %v, its bound %d (c %v, %v)", seed, disturbed, most, p.c, p.perturbations)
			}
			cost, err := Iota(disturbed, undisturbed)
			if err != nil {
				t.Fatal(err)
			}
			if bound, err := b.Cost(p.epsilon, undisturbed); err != nil || cost.Clocks > bound+slack ||
				bound != most-undisturbed.Clock {
				t.Fatalf("seed %d: ι is %v, its bound %d, %v", seed, cost, bound, err)
			}
		}
	}
}

// TestBoundsAreMet checks that both bounds are tight to a clock for f(x) = c·x + b with perturbations that point away
// from the optimum. The last perturbation must come before the bound, and distances are taken after it. So no smaller
// value is a bound.
func TestBoundsAreMet(t *testing.T) {
	met := 0
	for seed := range uint64(1000) {
		p := someTrial(rand.New(rand.NewPCG(seed, 1)), true, true)
		b, most := p.bound(t)
		disturbed, undisturbed := p.kappas(t, max(most, 60)+5, true)
		if disturbed.Clock > most+slack {
			t.Fatalf("seed %d: κ is %v, its bound %d", seed, disturbed, most)
		}
		late := false
		for _, x := range p.perturbations {
			late = late || x.Clock >= most
		}
		if late || p.epsilon > p.start {
			continue
		}
		met++
		cost, err := Iota(disturbed, undisturbed)
		if err != nil {
			t.Fatal(err)
		}
		if neat := b.SimpleCost(); disturbed.Clock < most-slack || math.Abs(float64(cost.Clocks)-neat) > 1+slack {
			t.Fatalf("seed %d: κ is %v, its bound %d; ι is %v, its bound %v", seed, disturbed, most, cost, neat)
		}
	}
	if met < 300 {
		t.Errorf("%d of 1000 trials meet their bounds; the others say nothing", met)
	}
}

// TestNeatCost checks that log(1 + Δ_T/‖x₀ − x*‖) / log(1/c), rounded up, bounds ι if the undisturbed run contracts at
// exactly c, for perturbations in any direction.
func TestNeatCost(t *testing.T) {
	for seed := range uint64(1000) {
		p := someTrial(rand.New(rand.NewPCG(seed, 2)), true, seed%2 == 1)
		b, most := p.bound(t)
		cost, err := Iota(p.kappas(t, max(most, 60)+5, false))
		if err != nil {
			t.Fatal(err)
		}
		if neat := b.SimpleCost(); float64(cost.Clocks) > math.Ceil(neat)+slack {
			t.Fatalf("seed %d: ι is %v, its bound %v (c %v, %v)", seed, cost, neat, p.c, p.perturbations)
		}
	}
}

// TestNeatCostIsNoBound is the counterexample: the undisturbed run moves in the direction that contracts fast, and the
// perturbation moves it into the slow direction.
func TestNeatCostIsNoBound(t *testing.T) {
	for _, c := range []struct {
		epsilon float64
		cost    int
	}{{2e-6, 119}, {1.01e-6, 126}} {
		p := trial{
			quadratic: quadratic{[]float64{0.1, 0.9}, []float64{0, 0}, []float64{0, 0}},
			c:         0.9, start: 1, epsilon: c.epsilon, x: []float64{1, 0},
			perturbations: []Perturbation{{0, 1}},
			shoves:        []shove{{0, func([]float64) []float64 { return []float64{0, 1} }}},
		}
		b, _ := p.bound(t)
		disturbed, undisturbed := p.kappas(t, 200, false)
		cost, err := Iota(disturbed, undisturbed)
		if err != nil {
			t.Fatal(err)
		}
		if neat := b.SimpleCost(); cost != (Cost{c.cost, false}) || !near(neat, 6.58, 1e-3) {
			t.Errorf("ε %v: ι is %v, want %d; the neat bound is %v", c.epsilon, cost, c.cost, neat)
		}
		if bound, err := b.Cost(c.epsilon, undisturbed); err != nil || bound < cost.Clocks || bound > cost.Clocks+7 {
			t.Errorf("ε %v: ι is %v, its bound %d, %v", c.epsilon, cost, bound, err)
		}
	}
}

// TestWorstOfBoth checks that the worst rate of the undisturbed run does not bound the disturbed run. The larger of the
// two worst rates does.
func TestWorstOfBoth(t *testing.T) {
	q := quadratic{[]float64{0.1, 0.9}, []float64{0, 0}, []float64{0, 0}}
	aside := []shove{{0, func([]float64) []float64 { return []float64{0, 1} }}}
	worst := func(distances []float64) (c float64) {
		for i := 1; i < len(distances); i++ {
			c = max(c, distances[i]/distances[i-1])
		}
		return c
	}
	disturbed := q.run([]float64{1, 0}, 200, aside, true)
	reach, err := Kappa(disturbed, 1e-4)
	if err != nil {
		t.Fatal(err)
	}
	kappa := func(c float64) int {
		_, most := trial{c: c, start: 1, epsilon: 1e-4, perturbations: []Perturbation{{0, 1}}}.bound(t)
		return most
	}
	twins, own := worst(q.run([]float64{1, 0}, 200, nil, true)), worst(disturbed)
	if !near(twins, 0.1, 1e-9) || kappa(twins) >= reach.Clock {
		t.Errorf("the twin contracts at %v: κ is %v, as if at most %d", twins, reach, kappa(twins))
	}
	if most := kappa(max(twins, own)); !near(own, 0.9, 1e-9) || reach.Clock > most+slack {
		t.Errorf("the run contracts at %v: κ is %v, its bound %d", own, reach, most)
	}
}

// TestBoundByHand uses c = 1/2 and a distance of 8. The perturbations have the effect of a distance of 8 + 2·2 + 4·1 =
// 16.
func TestBoundByHand(t *testing.T) {
	b, err := NewBound(0.5, 8, []Perturbation{{2, 1}, {1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	for epsilon, want := range map[float64]int{1.01: 4, 0.99: 5, 7: 2, 20: 0, 1e-300: 1001} {
		if got, err := b.Kappa(epsilon); err != nil || got != want {
			t.Errorf("κ ≤ %d, %v for ε %v; want %d", got, err, epsilon, want)
		}
	}
	if got := b.SimpleCost(); !near(got, 1, 1e-12) {
		t.Errorf("ι ≤ %v, want 1", got)
	}
	if got, err := b.Cost(0.99, Reach{3, false}); err != nil || got != 2 {
		t.Errorf("ι ≤ %d, %v, want 2", got, err)
	}
	far, err := NewBound(0.5, 1, []Perturbation{{100_000, 1}}) // 2¹⁰⁰⁰⁰⁰ exceeds float64
	if got, err2 := far.Kappa(0.75); err != nil || err2 != nil || got != 100_001 {
		t.Errorf("κ ≤ %d after a perturbation at clock 100000, %v, %v", got, err, err2)
	}
	slow, err := NewBound(math.Nextafter(1, 0), 1, nil)
	if got, err2 := slow.Kappa(1e-300); err != nil || err2 != nil || got != 1<<53 {
		t.Errorf("κ ≤ %d where c is next to 1, %v, %v", got, err, err2)
	}
}
