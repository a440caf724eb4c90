package perdure

import "fmt"

// Combine says what becomes of the updates that slots make of a table in one clock. By CombineEach
// the table's rule runs for each of them, in the order of the slots. By all others they are combined
// first, row by row, and the rule runs once for each row that any of them touches.
type Combine string

// The ways. With n slots that take part in the clock and whose updates of it are not lost, and gᵢ what
// the i-th of them Inc'd to a row, 0 if it did not touch the row, the rule is run for
//
//	CombineSum       g = Σ gᵢ
//	CombineMean      g = Σ gᵢ/n
//	CombineWeighted  g = Σ (wᵢ/Σ wᵢ)·gᵢ, wᵢ the weight that the slot's program gives to the clock
//
// All but CombineEach need bsp: only there a clock has an end, at which all updates of it are there.
const (
	CombineEach     Combine = "" // the default
	CombineSum      Combine = "sum"
	CombineMean     Combine = "mean"
	CombineWeighted Combine = "weighted"
)

// ParseCombine reads "each", "sum", "mean" or "weighted".
func ParseCombine(s string) (Combine, error) {
	switch c := Combine(s); c {
	case "each":
		return CombineEach, nil
	case CombineSum, CombineMean, CombineWeighted:
		return c, nil
	}
	return CombineEach, fmt.Errorf("%w: unknown way %q to combine updates; choose each, sum, mean or weighted",
		ErrUsage, s)
}

// String returns the way as it is written on the command line.
func (c Combine) String() string {
	if c == CombineEach {
		return "each"
	}
	return string(c)
}

// Share is what a slot's update is multiplied with before it is added to the others', where that many slots' updates
// are not lost, this one weighs own, and all of them all.
func (c Combine) Share(slots int, own, all float64) float32 {
	switch c {
	case CombineMean:
		return float32(1 / float64(slots))
	case CombineWeighted:
		return float32(own / all)
	}
	return 1
}

// MaxWeight is the most that an update may weigh: far beyond use, and so little that all slots' add up.
const MaxWeight = 1e300

// ValidateWeight refuses a weight that is no number above 0, or more than MaxWeight.
func ValidateWeight(w float64) error {
	if w > 0 && w <= MaxWeight {
		return nil
	}
	return fmt.Errorf("%w: weight %v of an update; give a number above 0, and at most %g, for example how many "+
		"examples or tokens it is of", ErrUsage, w, MaxWeight)
}

// validateCombine reports what is wrong with how the table's updates are combined, if anything.
func (t TableSpec) validateCombine() error {
	if t.Combine == CombineEach {
		return nil
	}
	if _, err := ParseCombine(string(t.Combine)); err != nil {
		return fmt.Errorf("table %s: %w", t.Name, err)
	}
	switch {
	case !t.Consistency.TwoStep():
		return fmt.Errorf("%w: table %s: combine %s under %s: the rule would wait for all slots' updates of a clock, "+
			"which are together only under bsp; choose bsp for the table, or combine each", ErrUsage, t.Name, t.Combine,
			t.Consistency)
	case t.Rule.Kind == RuleSet:
		return fmt.Errorf("%w: table %s: combine %s under rule set, whose rows are one slot's each; choose combine "+
			"each, or a rule that adds", ErrUsage, t.Name, t.Combine)
	}
	return nil
}

// Foretold reports whether a program knows at once what its own update does to a row: it follows from
// the row and the update alone. Where it does not, the program sees the effect of what it Inc'd once
// an answer of a server contains it.
func (t TableSpec) Foretold() bool { return t.Combine == CombineEach && !t.Rule.KeepsState() }
