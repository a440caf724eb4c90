package plot

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// MaxPositions is the number of horizontal positions of a curve. Pictures cannot show more.
const MaxPositions = 240

// Points are values of a column over seconds.
type Points struct{ X, Y []float64 }

// ReadPoints returns the values of a column over time. diverged reports whether some were not finite; these are
// omitted.
func ReadPoints(columns []string, rows [][]string, column string) (p Points, diverged bool) {
	at, in := slices.Index(columns, "seconds"), slices.Index(columns, column)
	behind := -1
	if strings.HasPrefix(column, "test_") { // rows that lack updates match no state of the training
		behind = slices.Index(columns, "backlog")
	}
	if at < 0 || in < 0 {
		return p, false
	}
	for _, row := range rows {
		x, err := strconv.ParseFloat(row[at], 64)
		if err != nil || row[in] == "" || behind >= 0 && row[behind] == "1" {
			continue
		}
		y, err := strconv.ParseFloat(row[in], 64)
		switch {
		case err != nil:
		case math.IsNaN(y) || math.IsInf(y, 0):
			diverged = true
		case len(p.X) == 0 || x >= p.X[len(p.X)-1]:
			p.X, p.Y = append(p.X, x), append(p.Y, y)
		}
	}
	return p, diverged
}

// At returns the value at a time, interpolated between measurements. Before the first measurement ok is false. After
// the last one there is a value only if stays is set.
func (p *Points) At(x float64, stays bool) (y float64, ok bool) {
	if len(p.X) == 0 || x < p.X[0] {
		return 0, false
	}
	i, found := slices.BinarySearch(p.X, x)
	switch {
	case found:
		return p.Y[i], true
	case i == len(p.X):
		return p.Y[i-1], stays
	}
	share := (x - p.X[i-1]) / (p.X[i] - p.X[i-1])
	return p.Y[i-1] + share*(p.Y[i]-p.Y[i-1]), true
}

// Band returns the median of several runs, and their range; for a single run there is no range. stays reports for each
// run whether its last value still applies after its end. ok reports whether there are any values.
func Band(all []Points, stays []bool) (x, mid, low, high []float64, ok bool) {
	var some []Points
	var stay []bool
	first, last := math.Inf(-1), math.Inf(-1)
	for i, p := range all {
		if n := len(p.X); n > 0 {
			some, stay = append(some, p), append(stay, stays[i])
			first, last = max(first, p.X[0]), max(last, p.X[n-1])
		}
	}
	switch len(some) {
	case 0:
		return nil, nil, nil, nil, false
	case 1:
		thin := some[0].Downsample()
		return thin.X, thin.Y, nil, nil, true
	}
	for i := range MaxPositions + 1 {
		at := first + (last-first)*float64(i)/MaxPositions
		var values []float64
		for n := range some {
			if y, ok := some[n].At(at, stay[n]); ok {
				values = append(values, y)
			}
		}
		s := SpreadOf(values)
		x, mid, low, high = append(x, at), append(mid, s.Mid), append(low, s.Low), append(high, s.High)
	}
	return x, mid, low, high, true
}

// Downsample keeps the first, the last, the smallest and the largest value at each horizontal position. The omitted
// values would not be visible.
func (p *Points) Downsample() Points {
	n := len(p.X)
	if n <= 2*MaxPositions {
		return *p
	}
	var out Points
	width := (p.X[n-1] - p.X[0]) / (MaxPositions / 2)
	for from := 0; from < n; {
		end := from + 1
		for end < n && (width == 0 || math.Floor((p.X[end]-p.X[0])/width) == math.Floor((p.X[from]-p.X[0])/width)) {
			end++
		}
		keep := []int{from, from, from, end - 1}
		for i := from; i < end; i++ {
			if p.Y[i] < p.Y[keep[1]] {
				keep[1] = i
			}
			if p.Y[i] > p.Y[keep[2]] {
				keep[2] = i
			}
		}
		slices.Sort(keep)
		for _, i := range slices.Compact(keep) {
			out.X, out.Y = append(out.X, p.X[i]), append(out.Y, p.Y[i])
		}
		from = end
	}
	return out
}
