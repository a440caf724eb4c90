package rundir

import "math"

// Finite returns nil for what JSON cannot say.
func Finite(v float64) *float64 {
	if v != v || v > 1e300 || v < -1e300 {
		return nil
	}
	return &v
}

// Known undoes Finite: what is not known is no number.
func Known(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}
