package terminal

import (
	"strings"
	"testing"
)

func TestBars(t *testing.T) {
	full := strings.Repeat("█", barWidth)
	for _, c := range []struct {
		name string
		h    map[int64]int64
		want []string
	}{
		{"nothing", nil, nil},
		{"one value", map[int64]int64{-1: 7}, []string{"    -1 100.0 % " + full}},
		{
			"a gap and a bar that is too short",
			map[int64]int64{-3: 1, -1: 998, 0: 1},
			[]string{"    -3   0.1 % ▏", "    -2   0.0 %", "    -1  99.8 % " + full, "     0   0.1 % ▏"},
		},
		{
			"both ends share lines",
			map[int64]int64{-500: 1, -20: 1, -6: 10, -1: 40, 0: 40, 3: 1, 4: 1, 1000: 6},
			[]string{
				"  ≤ -7   2.0 % ██", "    -6  10.0 % ████████", "    -5   0.0 %", "    -4   0.0 %", "    -3   0.0 %",
				"    -2   0.0 %",
				"    -1  40.0 % " + full, "     0  40.0 % " + full, "   ≥ 1   8.0 % ██████",
			},
		},
		{
			"most values are at an end",
			map[int64]int64{-9: 1, 0: 1, 2: 8},
			[]string{
				"  ≤ -5  10.0 % ████", "    -4   0.0 %", "    -3   0.0 %", "    -2   0.0 %", "    -1   0.0 %",
				"     0  10.0 % ████", "     1   0.0 %", "     2  80.0 % " + full,
			},
		},
	} {
		got := bars(c.h)
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") || len(got) > barRows {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}
