package rundir

import (
	"math"
	"testing"
)

func TestFinite(t *testing.T) {
	for _, v := range []float64{0, -1.5, 1e300} {
		if got := ValueOrNaN(FiniteOrNil(v)); got != v {
			t.Errorf("%v becomes %v", v, got)
		}
	}
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e301} {
		if p := FiniteOrNil(v); p != nil || !math.IsNaN(ValueOrNaN(p)) {
			t.Errorf("%v becomes %v", v, p)
		}
	}
}
