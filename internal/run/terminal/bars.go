package terminal

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	barRows  = 9  // most rows of a histogram
	barWidth = 30 // length of the longest bar
)

// bars draws a histogram with one line per value. If there are too many values, those at each end share a line, so that
// the lines between have as many counts as possible.
func bars(h map[int64]int64) (lines []string) {
	if len(h) == 0 {
		return nil
	}
	keys := slices.Sorted(maps.Keys(h))
	least, most := keys[0], keys[len(keys)-1]
	from, to := least, most
	if most-least >= barRows {
		from = densest(h, keys, barRows-2)
		to = min(from+barRows-3, most)
		from = to - (barRows - 3)
	}
	counts := map[int64]int64{} // per line
	var total, longest int64
	for k, n := range h {
		at := min(max(k, from-1), to+1)
		counts[at] += n
		total, longest = total+n, max(longest, counts[at])
	}
	for k := max(least, from-1); k <= min(most, to+1); k++ {
		name := fmt.Sprint(k)
		switch {
		case k < from:
			name = "≤ " + name
		case k > to:
			name = "≥ " + name
		}
		drawn := strings.Repeat("█", int(float64(barWidth)*float64(counts[k])/float64(longest)+0.5))
		if drawn == "" && counts[k] > 0 {
			drawn = "▏"
		}
		lines = append(lines, strings.TrimRight(fmt.Sprintf("%6s %5.1f %% %s", name,
			100*float64(counts[k])/float64(total), drawn), " "))
	}
	return lines
}

// densest returns the first of n consecutive values with the largest sum of counts. keys are the histogram's keys,
// sorted.
func densest(h map[int64]int64, keys []int64, n int64) (first int64) {
	var most, sum int64 = -1, 0
	left := 0
	for _, k := range keys {
		for sum += h[k]; keys[left] <= k-n; left++ {
			sum -= h[keys[left]]
		}
		if sum > most {
			most, first = sum, keys[left]
		}
	}
	return first
}
