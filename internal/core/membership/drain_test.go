package membership

import (
	"slices"
	"testing"
)

// TestNext: what nobody else has goes first, then what is small; of one server two at a time, or more while they are
// small together, and nobody overtakes one that waits.
func TestNext(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		all   []drainingShard
		under []int64 // is being copied of server 1
		want  []int
	}{
		"nobody": {nil, nil, nil},
		"two large ones": {
			[]drainingShard{{1, 1, 0, 90 * mib}, {2, 1, 0, 80 * mib}, {3, 1, 0, mib}}, nil, []int{3, 2},
		},
		"many small ones":  {[]drainingShard{{1, 1, 0, mib}, {2, 1, 0, mib}, {3, 1, 0, mib}}, nil, []int{1, 2, 3}},
		"of no known size": {[]drainingShard{{3, 1, 0, 0}, {2, 1, 0, 0}, {1, 1, 0, 0}}, nil, []int{1, 2, 3}},
		"others have the small": {
			[]drainingShard{{1, 1, 1, 1}, {2, 1, 0, 900 * mib}, {3, 1, 0, 800 * mib}}, nil, []int{3, 2},
		},
		"one is under way": {
			[]drainingShard{{1, 1, 0, 100 * mib}, {2, 1, 0, 100 * mib}}, []int64{100 * mib}, []int{1},
		},
		"two are":            {[]drainingShard{{1, 1, 0, 100 * mib}}, []int64{100 * mib, 100 * mib}, nil},
		"two small ones are": {[]drainingShard{{1, 1, 0, 40 * mib}, {2, 1, 0, 50 * mib}}, []int64{mib, mib}, []int{1}},
		"nobody overtakes":   {[]drainingShard{{1, 1, 0, 100 * mib}, {2, 1, 1, mib}}, []int64{mib, mib}, nil},
		"each server its own": {
			[]drainingShard{{1, 1, 0, 100 * mib}, {2, 2, 0, 100 * mib}}, []int64{100 * mib, 100 * mib}, []int{2},
		},
	} {
		var got []int
		for _, s := range nextToDrain(slices.Clone(c.all), func(server int) *drainLine {
			l := &drainLine{}
			for _, n := range c.under {
				if server == 1 {
					l.Add(n)
				}
			}
			return l
		}) {
			got = append(got, s.Shard)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: it is the turn of %v, want %v", name, got, c.want)
		}
	}
}

// TestNotice: it is nearly over when a third is left, or five seconds; what is said later makes it no longer.
func TestNotice(t *testing.T) {
	const tick = 0.1
	for _, c := range []struct{ ms, from int64 }{{1, 50}, {90, 50}, {3000, 70}, {25_000, 250}, {120_000, 1200}} {
		var n drainNotice
		n.Tell(50, c.ms, tick)
		n.Tell(51, c.ms+10_000, tick)
		if n.NearlyOver(c.from-1) && c.from > 50 || !n.NearlyOver(c.from) {
			t.Errorf("a notice of %d ms is nearly over at tick %+v, want %d", c.ms, n, c.from)
		}
		n.Tell(52, 0, tick)
		if !n.NearlyOver(52) {
			t.Errorf("a notice of %d ms that was cut short is not nearly over", c.ms)
		}
	}
	if n := (drainNotice{}); n.NearlyOver(1 << 40) {
		t.Error("one without an end is nearly over")
	}
}
