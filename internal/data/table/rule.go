// # Update rules
//
// The rules below compute a row w from the delta g of an Inc, with η = Rule.RateAt(clock). They use float32, with each
// operation rounded on its own, in the order of the parentheses. A term in [ ] is one number per row or call: it is
// computed in float64 and rounded to float32 once. η, √a and ε in such terms are float32, and so are the operations
// that combine them.
//
// First, every rule except add and set modifies g in this order, by those options that are set:
//
//	ClipValue c   g = max(min(g, c), -c)
//	ClipNorm  N   g = [N/‖g‖]·g for a row whose norm is > N
//	Decay     λ   g = g + λ·w; under adam instead w = w - [η·λ]·w
//
// ‖g‖² is summed in float64, where squares of float32 are exact and cannot overflow: value i of a row goes to the
// partial sum i mod 16, and then the upper half of the sums is added to the lower one, four times. Then the rule is
// applied, with the row's state, which starts as zeros:
//
//	add              w = w + g
//	set              w = g
//	sgd              w = w - η·g
//	momentum         v = μ·v + g;  w = w - η·v
//	nesterov         v = μ·v + g;  w = w - η·(g + μ·v)
//	adagrad          a = a + g·g;  w = w - (η·g) / (√a + ε)
//	rowwise-adagrad  a = a + [‖g‖²/dim], one for the row;  w = w - [η/(√a + ε)]·g
//	adam             t = min(t + 1, 2²⁴), one for the row
//	                 m = β1·m + [1-β1]·g;  v = β2·v + [1-β2]·(g·g)
//	                 w = w - ([η/[1-β1^t]]·m) / ([1/√(1-β2^t)]·√v + ε)
//	ftrl             n' = n + g·g;  z = z + (g - ((√n' - √n)·[1/η])·w);  n = n'
//	                 w = 0 if |z| ≤ λ1, else
//	                 w = (sign(z)·λ1 - z) / ((β + √n)·[1/η] + λ2)
//
// momentum is Polyak's heavy ball and nesterov is the form of Sutskever, Martens, Dahl and Hinton ("On the importance
// of initialization and momentum in deep learning", 2013), both with the signs and the undamped gradient of PyTorch.
// adagrad is Duchi, Hazan and Singer ("Adaptive subgradient methods", 2011) with a diagonal matrix; rowwise-adagrad
// keeps one accumulator per row, for the mean square, as recommendation models do for embeddings (Naumov et al., DLRM,
// 2019). adam is Kingma and Ba ("Adam: a method for stochastic optimization", 2015), with Loshchilov and Hutter's
// decoupled decay (AdamW, 2019); its t counts the updates of each row, so that rarely updated rows are corrected for
// their own number of updates. ftrl is FTRL-Proximal with a learning rate for each coordinate, Algorithm 1 of McMahan
// et al. ("Ad click prediction: a view from the trenches", 2013), α = η; the paper has a constant α, and with a
// schedule 1/η is that of the update's clock.
//
// Edge cases: a row of rowwise-adagrad with a = 0 does not change, and neither does a row of ftrl once η is so small
// (2⁻¹²⁸) that 1/η is infinite. Clipping keeps NaN in an update as NaN; ±Inf is clipped by ClipValue, and becomes NaN
// under ClipNorm, where the row's other values become 0.
package table

import (
	"math"

	"github.com/perdure/perdure"
)

// StateShape returns the shape of a rule's state per row: how many values for each value of the row (0 to 2), and
// whether there is one more for the row as a whole.
func StateShape(rule perdure.Rule) (full int, perRow bool) {
	switch rule.Kind {
	case perdure.RuleMomentum, perdure.RuleNesterov, perdure.RuleAdagrad:
		return 1, false // v; v; a
	case perdure.RuleRowwiseAdagrad:
		return 0, true // a
	case perdure.RuleAdam:
		return 2, true // m and v; t
	case perdure.RuleFTRL:
		return 2, false // z and n
	}
	return 0, false
}

// Apply applies the deltas of an update of the given clock to complete rows of dim values each, for rules without
// state. Servers and workers' caches both use it. For a rule with state it does nothing, because only a shard has the
// state. Apply does not allocate and may be called concurrently for different rows.
func Apply(rule perdure.Rule, dim int, rows, delta []float32, clock perdure.Clock) {
	applyStateless(rule.Kind, shapingOf(rule), dim, rows, delta, rule.RateAt(clock))
}

func applyStateless(kind perdure.RuleKind, s shaping, dim int, rows, delta []float32, rate float32) {
	switch {
	case kind == perdure.RuleAdd:
		add(rows, delta)
	case kind == perdure.RuleSet:
		copy(rows, delta)
	case kind != perdure.RuleSGD:
	case s.isNeeded():
		s.descend(dim, rows, delta, rate)
	default:
		sgd(rows, delta, rate)
	}
}

// FirstNonFinite returns the index of the first NaN or ±Inf, or -1 if there are none.
func FirstNonFinite(values []float32) int { return nonFinite(values) }

// blockValues is the number of values that are shaped and then applied together: 4 KiB of each stream, so that all
// streams fit into the innermost cache.
const blockValues = 1024

// shaping describes how g is modified before a rule uses it.
type shaping struct {
	bound float32 // per value; +Inf: none
	norm  float64 // per row; 0: none
	decay float32 // λ; 0: none
}

func shapingOf(rule perdure.Rule) shaping {
	s := shaping{bound: float32(math.Inf(1)), norm: rule.ClipNorm}
	if rule.ClipValue > 0 {
		s.bound = float32(rule.ClipValue)
	}
	if rule.Kind != perdure.RuleAdam {
		s.decay = float32(rule.Decay)
	}
	return s
}

func (s shaping) isNeeded() bool {
	return s.norm > 0 || s.decay > 0 || !math.IsInf(float64(s.bound), 1)
}

// scale returns the factor for a row of g, after its values are bounded.
func (s shaping) scale(g []float32) float32 {
	if s.norm == 0 {
		return 1
	}
	if norm := math.Sqrt(squares(g, s.bound)); norm > s.norm {
		return float32(s.norm / norm)
	}
	return 1
}

// shape writes to dst the modified deltas g of the complete rows w.
func (s shaping) shape(dim int, dst, g, w []float32) {
	if s.norm == 0 {
		dim = len(g) // rows need not be treated separately
	}
	for at := 0; at < len(g); at += dim {
		row := g[at : at+dim]
		clip(dst[at:at+dim], row, s.bound, s.scale(row))
	}
	s.addDecay(dst, w)
}

func (s shaping) addDecay(g, w []float32) {
	if s.decay > 0 {
		sgd(g, w, -s.decay) // subtracts the negative: the same bits as addition
	}
}

// descend is sgd with the shaped deltas, for as many complete rows at a time as fit into a block, or for one longer
// row.
func (s shaping) descend(dim int, rows, delta []float32, rate float32) {
	var scratch [blockValues]float32
	for len(delta) > 0 {
		n := min(len(delta), max(dim, blockValues/dim*dim))
		w, g := rows[:n], delta[:n]
		if n > blockValues {
			s.descendLong(scratch[:], w, g, rate)
		} else {
			s.shape(dim, scratch[:n], g, w)
			sgd(w, scratch[:n], rate)
		}
		rows, delta = rows[n:], delta[n:]
	}
}

// descendLong is descend for one row that is longer than the scratch memory.
func (s shaping) descendLong(scratch, w, g []float32, rate float32) {
	for scale := s.scale(g); len(g) > 0; {
		n := min(len(g), len(scratch))
		clip(scratch[:n], g[:n], s.bound, scale)
		s.addDecay(scratch[:n], w[:n])
		sgd(w[:n], scratch[:n], rate)
		w, g = w[n:], g[n:]
	}
}

// planes is the memory of n consecutive rows of dim values.
type planes struct {
	values []float32    // n × dim
	state  [2][]float32 // n × dim each; as many as the rule needs
	row    []float32    // n: one value per row, if the rule has one
}

// rows returns the memory of the rows from … to-1.
func (p planes) rows(dim, from, to int) planes {
	q := planes{values: p.values[from*dim : to*dim]}
	for i, s := range p.state {
		if s != nil {
			q.state[i] = s[from*dim : to*dim]
		}
	}
	if p.row != nil {
		q.row = p.row[from:to]
	}
	return q
}

// updater applies one rule to the rows of one part. It is not safe for concurrent use.
type updater struct {
	rule    perdure.Rule
	dim     int
	batch   int // rows processed together where the block size matters
	shaping shaping
	scratch []float32 // batch × dim: shaped deltas; nil if no shaping is needed
	clock   perdure.Clock
	rate    float32 // at that clock
	adam    adamFactors
	bias    *biases // adam
}

func newUpdater(rule perdure.Rule, dim int) *updater {
	u := &updater{rule: rule, dim: dim, batch: max(1, blockValues/dim), shaping: shapingOf(rule), rate: rule.RateAt(0)}
	if rule.KeepsState() && u.shaping.isNeeded() {
		u.scratch = make([]float32, u.batch*dim)
	}
	if rule.Kind == perdure.RuleAdam {
		u.adam = adamFactors{
			beta1: float32(rule.Beta1), rest1: float32(1 - rule.Beta1),
			beta2: float32(rule.Beta2), rest2: float32(1 - rule.Beta2),
			epsilon: float32(rule.Epsilon),
		}
		u.bias = new(biases)
		u.bias.beta1.init(rule.Beta1)
		u.bias.beta2.init(rule.Beta2)
	}
	return u
}

// apply applies the deltas of an update of the given clock to rows and their state; there are as many deltas as values.
// It does not allocate.
func (u *updater) apply(p planes, delta []float32, clock perdure.Clock) {
	if clock != u.clock { // many rows arrive one by one
		u.clock, u.rate = clock, u.rule.RateAt(clock)
	}
	switch {
	case !u.rule.KeepsState():
		applyStateless(u.rule.Kind, u.shaping, u.dim, p.values, delta, u.rate)
	case u.scratch == nil:
		u.step(p, delta)
	default:
		u.applyShaped(p, delta)
	}
}

// applyShaped shapes and applies the deltas of a batch of rows at a time.
func (u *updater) applyShaped(p planes, delta []float32) {
	count := len(delta) / u.dim
	for from := 0; from < count; from += u.batch {
		to := min(from+u.batch, count)
		q, g := p.rows(u.dim, from, to), delta[from*u.dim:to*u.dim]
		shaped := u.scratch[:len(g)]
		u.shaping.shape(u.dim, shaped, g, q.values)
		u.step(q, shaped)
	}
}

// step applies the rule itself.
func (u *updater) step(p planes, g []float32) {
	switch u.rule.Kind {
	case perdure.RuleMomentum:
		momentum(p.values, p.state[0], g, float32(u.rule.Momentum), u.rate)
	case perdure.RuleNesterov:
		nesterov(p.values, p.state[0], g, float32(u.rule.Momentum), u.rate)
	case perdure.RuleAdagrad:
		adagrad(p.values, p.state[0], g, u.rate, float32(u.rule.Epsilon))
	case perdure.RuleRowwiseAdagrad:
		u.stepRowwiseAdagrad(p, g)
	case perdure.RuleAdam:
		u.stepAdam(p, g)
	case perdure.RuleFTRL:
		inverse := 1 / u.rate
		if math.IsInf(float64(inverse), 0) {
			return
		}
		k := ftrlFactors{inverse: inverse, beta: float32(u.rule.Beta), l1: float32(u.rule.L1), l2: float32(u.rule.L2)}
		ftrl(p.values, p.state[0], p.state[1], g, &k)
	}
}

func (u *updater) stepRowwiseAdagrad(p planes, g []float32) {
	unbounded := float32(math.Inf(1))
	for i := range p.row {
		w, g := p.values[i*u.dim:][:u.dim], g[i*u.dim:][:u.dim]
		p.row[i] += float32(squares(g, unbounded) / float64(u.dim))
		if p.row[i] != 0 {
			sgd(w, g, u.rate/(root(p.row[i])+float32(u.rule.Epsilon)))
		}
	}
}

// stepAdam processes consecutive rows with the same number of updates together.
func (u *updater) stepAdam(p planes, g []float32) {
	decay := float32(float64(u.rate) * u.rule.Decay)
	for from := 0; from < len(p.row); {
		before, to := p.row[from], from+1
		for to < len(p.row) && to < from+u.batch && p.row[to] == before {
			to++
		}
		t := min(before+1, maxUpdates)
		for i := from; i < to; i++ {
			p.row[i] = t
		}
		q := p.rows(u.dim, from, to)
		if decay > 0 {
			sgd(q.values, q.values, decay)
		}
		first, second := u.bias.at(t)
		u.adam.step, u.adam.scale = u.rate/first, second
		adam(q.values, q.state[0], q.state[1], g[from*u.dim:to*u.dim], &u.adam)
		from = to
	}
}

// maxUpdates is the largest count that a float32 represents exactly.
const maxUpdates = 1 << 24

// biases computes adam's bias corrections. The rows of a sparse table differ in t, so only powers can be cached.
type biases struct{ beta1, beta2 powers }

// at returns 1-β1^t and 1/√(1-β2^t), which correct for the moments' initial zeros after t updates.
func (b *biases) at(t float32) (first, second float32) {
	n := uint32(t)
	return float32(1 - b.beta1.at(n)), float32(1 / math.Sqrt(1-b.beta2.at(n)))
}

// powers holds the powers of one number with the exponents i, 2⁸·i and 2¹⁶·i for every i up to 2⁸. It needs only
// multiplications, so every machine gets the same bits, which math.Pow does not guarantee. The conversions keep the
// multiplications from being fused with later operations.
type powers [3][257]float64

func (p *powers) init(x float64) {
	for k := range p {
		p[k][0] = 1
		for i := range 256 {
			p[k][i+1] = float64(p[k][i] * x)
		}
		x = p[k][256]
	}
}

// at returns the power with exponent n, up to 2²⁴.
func (p *powers) at(n uint32) float64 {
	low := float64(p[1][n>>8&255] * p[0][n&255])
	return float64(p[2][min(n>>16, 256)] * low)
}
