package terminal

import (
	"math"
	"slices"
)

var heights = []rune("▁▂▃▄▅▆▇█")

// Curve draws values as a line of at most width characters. Each character shows the mean of its part of the values.
func Curve(values []float64, width int) string {
	finite := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	if len(finite) == 0 {
		return ""
	}
	width = min(width, len(finite))
	means := make([]float64, width)
	for i := range means {
		part := finite[i*len(finite)/width : (i+1)*len(finite)/width]
		for _, v := range part {
			means[i] += v / float64(len(part))
		}
	}
	least, most := slices.Min(means), slices.Max(means)
	drawn := make([]rune, width)
	for i, v := range means {
		at := 0
		if most > least {
			at = int((v - least) / (most - least) * float64(len(heights)-1))
		}
		drawn[i] = heights[at]
	}
	return string(drawn)
}
