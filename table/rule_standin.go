package table

import "github.com/perdure/perdure"

// planes is the memory of n consecutive rows of dim values.
type planes struct {
	values []float32    // n × dim
	state  [2][]float32 // n × dim each: as many as the rule keeps
	row    []float32    // n: one value for each row, if the rule keeps one
}

// StateShape says what a rule keeps beside the rows: so many planes of the
// rows' own shape, and whether one value for each row.
func StateShape(rule perdure.Rule) (full int, perRow bool) {
	switch rule.Kind {
	case perdure.RuleMomentum:
		return 1, false
	case perdure.RuleRowwiseAdagrad:
		return 0, true
	}
	return 0, false
}

// updater computes a table's rule.
type updater struct {
	rule perdure.Rule
	dim  int
}

func newUpdater(rule perdure.Rule, dim int) *updater { return &updater{rule: rule, dim: dim} }

// apply changes rows by the deltas of an update of the given clock.
func (u *updater) apply(p planes, delta []float32, clock perdure.Clock) {
	switch u.rule.Kind {
	case perdure.RuleSGD:
		axpy(-u.rule.RateAt(clock), delta, p.values)
	case perdure.RuleMomentum:
		rate, momentum := u.rule.RateAt(clock), float32(u.rule.Momentum)
		for i, g := range delta {
			p.state[0][i] = float32(momentum*p.state[0][i]) + g
			p.values[i] -= float32(rate * p.state[0][i])
		}
	case perdure.RuleRowwiseAdagrad:
		rate := u.rule.RateAt(clock)
		for r := range p.row {
			g := delta[r*u.dim:][:u.dim]
			for _, v := range g {
				p.row[r] += float32(v*v) / float32(u.dim)
			}
			for i, v := range g {
				p.values[r*u.dim+i] -= float32(rate * v / (p.row[r] + 1))
			}
		}
	default:
		axpy(1, delta, p.values) // a product with 1 changes no bit
	}
}

// Apply changes rows by the deltas of an update of the given clock, for rules
// that keep no state.
func Apply(rule perdure.Rule, dim int, rows, delta []float32, clock perdure.Clock) {
	(&updater{rule: rule, dim: dim}).apply(planes{values: rows}, delta, clock)
}
