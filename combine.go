package perdure

import "fmt"

// Combine selects how the updates of all slots for one clock are applied to a table. With CombineEach the table's rule
// runs once for each slot's update, in slot order. All other values first combine the updates row by row; the rule then
// runs once for each row that any of them touches.
type Combine string

// The values of Combine. Let n be the number of slots that participate in the clock and whose updates for it are not
// lost. Let gᵢ be the i-th slot's delta to a row, or 0 if the slot did not touch the row. The rule then uses this g:
//
//	CombineSum       g = Σ gᵢ
//	CombineMean      g = Σ gᵢ/n
//	CombineWeighted  g = Σ (wᵢ/Σ wᵢ)·gᵢ, where slot i's program gives the clock the weight wᵢ
//
// All except CombineEach require bsp: only under bsp does a clock have an end at which all of its updates are present.
const (
	CombineEach     Combine = "" // the default
	CombineSum      Combine = "sum"
	CombineMean     Combine = "mean"
	CombineWeighted Combine = "weighted"
)

// ParseCombine parses "each", "sum", "mean" or "weighted".
func ParseCombine(s string) (Combine, error) {
	switch c := Combine(s); c {
	case "each":
		return CombineEach, nil
	case CombineSum, CombineMean, CombineWeighted:
		return c, nil
	}
	return CombineEach, Usagef("unknown combine mode %q; choose each, sum, mean or weighted", s)
}

// String returns c in the form that ParseCombine accepts.
func (c Combine) String() string {
	if c == CombineEach {
		return "each"
	}
	return string(c)
}

// Share returns the factor by which a slot's update is multiplied before it is added to the others. slots is the number
// of slots whose updates are not lost, own is the weight of this update, and all is the sum of the weights.
func (c Combine) Share(slots int, own, all float64) float32 {
	switch c {
	case CombineMean:
		return float32(1 / float64(slots))
	case CombineWeighted:
		return float32(own / all)
	}
	return 1
}

// MaxWeight is the largest weight of an update: far above any practical value, and small enough that the sum over all
// slots does not overflow.
const MaxWeight = 1e300

// ValidateWeight returns an error unless w is greater than 0 and at most MaxWeight.
func ValidateWeight(w float64) error {
	if w > 0 && w <= MaxWeight {
		return nil
	}
	return Usagef("invalid update weight %v; choose a number > 0 and ≤ %g, for example the number of examples or "+
		"tokens that the update covers", w, MaxWeight)
}

// validateCombine returns an error if t.Combine is invalid for this table.
func (t TableSpec) validateCombine() error {
	if t.Combine == CombineEach {
		return nil
	}
	if _, err := ParseCombine(string(t.Combine)); err != nil {
		return fmt.Errorf("table %s: %w", t.Name, err)
	}
	if !t.Consistency.TwoStep() {
		return Usagef("table %s: combine %s does not work with %s, because only bsp waits for every slot's update in "+
			"each clock; choose bsp for the table, or combine each", t.Name, t.Combine, t.Consistency)
	}
	return nil
}

// HasPredictableEffect reports whether a program can compute the effect of its own update on a row immediately, from
// the row and the update alone. Otherwise the program sees the effect of its Inc once an answer of a server contains
// it: also if the update is rounded before it is sent.
func (t TableSpec) HasPredictableEffect() bool {
	return t.Combine == CombineEach && !t.Rule.KeepsState() && t.Encoding == EncodingFloat32
}
