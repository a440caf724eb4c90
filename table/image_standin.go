package table

import "github.com/perdure/perdure"

// Image is a part's content as a checkpoint takes it: pieces in row order, which
// alias the part's memory.
type Image struct {
	Rows    int
	IDs     [][]perdure.RowID // sparse: the rows' ids
	Touched [][]uint32        // sparse with Evict: the clock of each row's last update
	// Planes holds the values, then the rule's full state planes (rows × dim
	// each), then its row plane (rows × 1).
	Planes [][][]float32
}

// StateShape returns how many full planes of state a rule keeps, and whether it
// keeps a row plane.
func StateShape(rule perdure.Rule) (full int, perRow bool) {
	switch rule.Kind {
	case perdure.RuleMomentum, perdure.RuleNesterov, perdure.RuleAdagrad:
		return 1, false
	case perdure.RuleAdam:
		return 2, true
	case perdure.RuleRowwiseAdagrad:
		return 0, true
	case perdure.RuleFTRL:
		return 2, false
	}
	return 0, false
}
