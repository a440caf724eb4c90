package rundir

import "math"

// FiniteOrNil returns nil for values that JSON cannot represent.
func FiniteOrNil(v float64) *float64 {
	if v != v || v > 1e300 || v < -1e300 {
		return nil
	}
	return &v
}

// ValueOrNaN reverses FiniteOrNil. An unknown value becomes NaN.
func ValueOrNaN(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}
