package plot

import (
	"math"
	"testing"

	"github.com/perdure/perdure/internal/run/humanize"
)

func TestSpread(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		values []float64
		want   Spread
		text   string
	}{
		{[]float64{3, 1, 2}, Spread{Mid: 2, Low: 1, High: 3, N: 3}, "2 (1 to 3)"},
		{[]float64{4, 1}, Spread{Mid: 2.5, Low: 1, High: 4, N: 2}, "2.500 (1 to 4)"},
		{[]float64{1.23456}, Spread{Mid: 1.23456, Low: 1.23456, High: 1.23456, N: 1}, "1.235"},
		{[]float64{2, inf, 1}, Spread{Mid: 2, Low: 1, High: inf, N: 3}, "2 (1 to ∞)"},
		{[]float64{inf, 1, inf}, Spread{Mid: inf, Low: 1, High: inf, N: 3}, "∞ (1 to ∞)"},
	} {
		got := SpreadOf(c.values)
		if got != c.want || got.String() != c.text {
			t.Errorf("%v: %+v, written %q; want %+v, %q", c.values, got, got, c.want, c.text)
		}
	}
	if got := SpreadOf([]float64{.1234, .2}).Text(humanize.Percent0); got != "16% (12% to 20%)" {
		t.Errorf("in percents: %q", got)
	}
	if none := SpreadOf(nil); !math.IsNaN(none.Mid) || none.String() != "–" {
		t.Errorf("no values: %+v, %q", none, none)
	}
}
