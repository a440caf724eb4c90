package itercost

import (
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"
)

// ErrRate is returned for c outside (0, 1): a run that does not contract has no bound.
var ErrRate = errors.New("itercost: c is outside (0, 1)")

// Perturbation is ‖δ_ℓ‖ at clock ℓ: the error of the parameters at the start of iteration ℓ, from 0.
type Perturbation struct {
	Clock int
	Norm  float64
}

// Bound is the worst-case effect of perturbations, if ‖f(x) − x*‖ ≤ c‖x − x*‖ with c < 1 wherever the run goes. A clock
// maps an error e_k to at most c·(e_k + ‖δ_k‖), so e_k ≤ c^k·(‖x₀ − x*‖ + Δ_T) with Δ_T = Σ c^{−ℓ}‖δ_ℓ‖. This also
// holds before T, where the sum includes later perturbations, and if the error at clock ℓ already includes δ_ℓ.
//
// Minibatch training with a constant step size has a noise floor and does not contract near it: bounds are for full
// batches. All values are logarithms, because c^{−ℓ} soon exceeds the range of floating point.
type Bound struct {
	logStart float64 // of ‖x₀ − x*‖
	logAll   float64 // of ‖x₀ − x*‖ + Δ_T
	logC     float64 // of 1/c, above 0
}

// NewBound returns the bound for a run that starts at distance start from the optimum, contracts at rate c, and has the
// given perturbations, in any order.
func NewBound(c, start float64, perturbations []Perturbation) (Bound, error) {
	switch {
	case !(c > 0 && c < 1):
		return Bound{}, fmt.Errorf("%w: %v", ErrRate, c)
	case !(start > 0) || !finite(start):
		return Bound{}, fmt.Errorf("itercost: ‖x₀ − x*‖ is %v; it must be finite and above 0", start)
	}
	b := Bound{logStart: math.Log(start), logC: -math.Log(c)}
	terms := []float64{b.logStart}
	for _, p := range perturbations {
		if p.Clock < 0 || !(p.Norm >= 0) || !finite(p.Norm) {
			return Bound{}, fmt.Errorf("itercost: invalid perturbation of norm %v at clock %d; the norm must be "+
				"finite, and both must be ≥ 0", p.Norm, p.Clock)
		}
		terms = append(terms, math.Log(p.Norm)+float64(p.Clock)*b.logC)
	}
	b.logAll = floats.LogSumExp(terms)
	return b, nil
}

// Kappa returns the bound of κ(y, ε) of the disturbed run, ⌈log((‖x₀ − x*‖ + Δ_T)/ε) / log(1/c)⌉, limited to 0 to 2⁵³.
// If the quotient is within rounding error of a whole number, the result may be off by one.
func (b Bound) Kappa(epsilon float64) (int, error) {
	if !(epsilon > 0) || !finite(epsilon) {
		return 0, fmt.Errorf("itercost: ε is %v; for a distance it must be finite and above 0", epsilon)
	}
	return int(min(max(0, math.Ceil((b.logAll-math.Log(epsilon))/b.logC)), 1<<53)), nil
}

// Cost returns the bound of ι for a run whose undisturbed twin reached ε at that clock: the bound of κ minus κ(x, ε).
// It holds whenever the bound of κ does.
func (b Bound) Cost(epsilon float64, undisturbed Reach) (int, error) {
	kappa, err := b.Kappa(epsilon)
	if err != nil {
		return 0, err
	}
	cost, err := Iota(Reach{Clock: kappa}, undisturbed)
	return cost.Clocks, err
}

// SimpleCost is log(1 + Δ_T/‖x₀ − x*‖) / log(1/c), which knows neither ε nor the
// undisturbed run. Rounded up, it bounds ι only where the undisturbed run contracts
// at c exactly, as under f(x) = c·x + b. A run that contracts faster than c in
// some directions may be thrown by δ into one in which it does not, and then costs
// more than this: with factors (0.1, 0.9), x₀ = (1, 0), δ = (0, 1) at clock 0 and ε
// = 2e-6 it costs 119 clocks, and not 6.6. Use Cost there.
func (b Bound) SimpleCost() float64 { return (b.logAll - b.logStart) / b.logC }

// Rate estimates c, the factor by which each clock typically multiplies the distance to the optimum: the least-squares
// slope of the logarithm of the distance over clocks. Distances must be above 0, at three clocks or more, without a
// perturbation among them. Pass only the part of the series with a constant rate, in particular without the noise floor
// at its end. A loss is not a distance: near a minimum, its excess over the minimum contracts by c².
//
// A Bound computed with this c is not a bound, only an estimate for a typical run. The hypothesis of [Bound] needs at
// least the largest factor between two neighbors of the series, of the disturbed run as well as of its twin: a
// perturbation may move a run to where it contracts more slowly than its twin ever did.
func Rate(distances []float64) (c float64, err error) {
	if err := checkSeries(distances); err != nil {
		return 0, err
	}
	if len(distances) < 3 {
		return 0, fmt.Errorf("%w: %d distances are too few to compute a rate; at least 3 are needed", ErrSeries,
			len(distances))
	}
	clocks, logs := make([]float64, len(distances)), make([]float64, len(distances))
	for i, d := range distances {
		if d <= 0 {
			return 0, fmt.Errorf("%w: the distance at clock %d is %v; end the series before that clock", ErrSeries, i,
				d)
		}
		clocks[i], logs[i] = float64(i), math.Log(d)
	}
	_, slope := stat.LinearRegression(clocks, logs, nil, false)
	if slope >= 0 {
		return 0, fmt.Errorf("%w: the distances do not decrease; the fitted factor per iteration is %.4g", ErrRate,
			math.Exp(slope))
	}
	return math.Exp(slope), nil
}
