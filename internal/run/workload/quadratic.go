package workload

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// Names of the workload and its only table.
const (
	QuadraticName  = "quadratic"
	quadraticTable = "x"
)

// DefaultQuadratic holds the default choices.
var DefaultQuadratic = api.Quadratic{Rows: 1000, Dim: 4, Condition: 100}

// Upper limits, far above practical values.
const (
	maxValues    = 1 << 28
	maxCondition = 1e9
)

// quadratic minimises a quadratic function with a known solution: f(x) = ½ Σ λᵢ (xᵢ − x*ᵢ)², starting from zeros. It
// serves theory and teaching: the distance from x to x* shows the cost of a failure, a stale read or a lost row.
//
// The curvatures λ range from 1/K to 1, with evenly spaced logarithms, where K is the condition number. The seed
// determines x*, which is normally distributed. Rows across the whole table have each curvature. A step of gradient
// descent multiplies the distance from xᵢ to x*ᵢ by 1 − ηλᵢ, and the distance from x to x* by at most c = max |1 − ηλ|.
// c is smallest for η = 2/(1 + 1/K), where it is (K−1)/(K+1).
//
// A worker's gradient is exact, divided by the number of workers. If Noise is set, each value has additional normal
// noise with that standard deviation.
type quadratic struct {
	api.Quadratic
	params    api.Params
	curvature []float32 // λ, by value
	best      []float32 // x*
	x         []float32 // as returned by Get
	gradient  []float32
}

// openQuadratic creates the workload.
func openQuadratic(p api.Params) (api.Workload, error) {
	chosen := p.Rule.Rate == 0 && p.Rule.Kind == perdure.RuleSGD
	if chosen {
		p.Rule.Rate = 2 / (1 + 1/p.Bowl.Condition)
	}
	b := p.Bowl
	switch {
	case b.Rows < 1 || b.Dim < 1 || b.Dim > perdure.MaxDim || b.Rows > maxValues/b.Dim:
		return nil, perdure.Usagef("quadratic: invalid size of %d rows of %d values; choose at least 1 row, and at "+
			"most %d values in total", b.Rows, b.Dim, maxValues)
	case !(b.Condition >= 1) || b.Condition > maxCondition:
		return nil, perdure.Usagef("quadratic: invalid condition %v; choose 1 to %g", b.Condition,
			float64(maxCondition))
	case !(b.Noise >= 0) || math.IsInf(b.Noise, 0):
		return nil, perdure.Usagef("quadratic: noise %v is not a finite number ≥ 0", b.Noise)
	}
	if err := p.ValidateGradients(QuadraticName); err != nil {
		return nil, err
	}
	n := b.Rows * b.Dim
	w := &quadratic{
		Quadratic: b, params: p, curvature: make([]float32, n), best: make([]float32, n), x: make([]float32, n),
		gradient: make([]float32, n),
	}
	r := rand.New(rand.NewPCG(api.Mix(p.Seed), 1))
	for i := range n {
		w.curvature[i] = float32(math.Pow(b.Condition, -float64(i)/math.Max(float64(n-1), 1)))
		w.best[i] = float32(r.NormFloat64())
	}
	api.Shuffle(w.curvature, api.Mix(p.Seed+1))
	return w, nil
}

// Contraction returns c for a learning rate: each step of plain gradient descent multiplies the distance from x to x*
// by at most c.
func (p *quadratic) Contraction(rate float64) float64 {
	return max(math.Abs(1-rate), math.Abs(1-rate/p.Condition))
}

// Describe implements api.Workload.
func (p *quadratic) Describe() api.Description {
	return api.Description{
		Name: QuadraticName, Data: fmt.Sprintf("a quadratic function of condition %g", p.Condition), Train: len(p.x),
		Test:       len(p.x),
		Parameters: len(p.x), DataBytes: int64(8 * len(p.x)), Rate: p.params.Rule.Rate,
	}
}

// Digest implements api.Workload.
func (p *quadratic) Digest() string {
	return fmt.Sprintf("quadratic %d %d %g %g", p.Rows, p.Dim, p.Condition, p.Noise)
}

// Constants implements api.Workload. They identify the function.
func (p *quadratic) Constants() map[string]string {
	return map[string]string{
		"condition": strconv.FormatFloat(p.Condition, 'g', -1, 64), "noise": strconv.FormatFloat(p.Noise, 'g', -1, 64),
		"best": fmt.Sprintf("normally distributed numbers, drawn with seed %d", p.params.Seed),
	}
}

// Tables implements api.Workload.
func (p *quadratic) Tables() []perdure.TableSpec {
	spec := perdure.TableSpec{Name: quadraticTable, Rows: int64(p.Rows), Dim: p.Dim, Rule: p.params.Rule}
	if p.params.Sparse {
		spec.Sparse, spec.Rows = true, 0
	}
	return []perdure.TableSpec{spec}
}

// Step implements api.Workload.
func (p *quadratic) Step(
	ctx context.Context, t api.Tables, share api.Share, clock perdure.Clock,
) (api.Metrics, error) {
	if err := share.Validate(clock); err != nil {
		return api.Metrics{}, fmt.Errorf("quadratic: %w", err)
	}
	if err := t.Get(ctx, quadraticTable, 0, p.x); err != nil {
		return api.Metrics{}, err
	}
	part := 1 / float32(share.Of)
	p.descend(part)
	if p.Noise > 0 {
		r := rand.New(rand.NewPCG(api.PassState(p.params.Seed, perdure.Slot(share.Rank), int64(clock)), 2))
		for i := range p.gradient {
			p.gradient[i] += part * float32(p.Noise*r.NormFloat64())
		}
	}
	loss, off := p.evaluate()
	if err := t.Inc(ctx, quadraticTable, 0, p.gradient); err != nil {
		return api.Metrics{}, err
	}
	return api.Metrics{TrainLoss: loss, TrainRMSE: off, Samples: len(p.x)}, nil
}

// descend sets p.gradient to this worker's part of the gradient of f at p.x: part · λᵢ · (xᵢ − x*ᵢ). part is 1 divided
// by the number of workers.
func (p *quadratic) descend(part float32) {
	for i, x := range p.x {
		p.gradient[i] = part * float32(p.curvature[i]*float32(x-p.best[i]))
	}
}

// evaluate returns f(x) and the root mean square of xᵢ − x*ᵢ.
func (p *quadratic) evaluate() (loss, off float64) {
	squares := 0.0
	for i, x := range p.x {
		d := float64(x) - float64(p.best[i])
		squares += float64(d * d)
		loss += float64(float64(p.curvature[i]) / 2 * float64(d*d))
	}
	return loss, math.Sqrt(squares / float64(len(p.x)))
}

// Evaluate implements api.Workload. The loss is f(x), and the RMSE is the root mean square of xᵢ − x*ᵢ.
func (p *quadratic) Evaluate(ctx context.Context, t api.Tables) (api.Eval, error) {
	if err := t.Get(ctx, quadraticTable, 0, p.x); err != nil {
		return api.Eval{}, err
	}
	loss, off := p.evaluate()
	return api.Eval{Loss: loss, RMSE: off, Accuracy: math.NaN()}, nil
}

// Findings implements api.FindingsReporter. It reports the distance from x to x* and the expected contraction.
func (p *quadratic) Findings(ctx context.Context, t api.Tables) ([]string, error) {
	e, err := p.Evaluate(ctx, t)
	if err != nil {
		return nil, err
	}
	lines := []string{fmt.Sprintf("‖x − x*‖ is %.3g; it was %.3g at the start",
		e.RMSE*math.Sqrt(float64(len(p.x))), norm(p.best))}
	if r := p.params.Rule; r.Kind == perdure.RuleSGD && r.Decay == 0 {
		lines = append(lines, fmt.Sprintf("each clock brings x closer to x* by a factor of at least %.6g, under bsp, "+
			"at the rate of clock 0, without noise", p.Contraction(float64(r.RateAt(0)))))
	}
	return lines, nil
}

func norm(x []float32) float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum)
}
