package rundir

import "math"

// Finite returns nil for values that JSON cannot represent.
func Finite(v float64) *float64 {
	if v != v || v > 1e300 || v < -1e300 {
		return nil
	}
	return &v
}

// Known reverses Finite. An unknown value becomes NaN.
func Known(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}
