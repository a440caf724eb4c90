package membership

import (
	"slices"
	"testing"
)

// TestNext checks the order: first the shards that no other server has, then small ones; two at a time for each server,
// or more while they are small in total. No shard overtakes a waiting one.
func TestNext(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		all   []drainingShard
		under []int64 // already being copied from server 1
		want  []int
	}{
		"none": {nil, nil, nil},
		"two large ones": {
			[]drainingShard{{1, 1, 0, 90 * mib}, {2, 1, 0, 80 * mib}, {3, 1, 0, mib}}, nil, []int{3, 2},
		},
		"many small ones": {[]drainingShard{{1, 1, 0, mib}, {2, 1, 0, mib}, {3, 1, 0, mib}}, nil, []int{1, 2, 3}},
		"of unknown size": {[]drainingShard{{3, 1, 0, 0}, {2, 1, 0, 0}, {1, 1, 0, 0}}, nil, []int{1, 2, 3}},
		"other servers have the small one": {
			[]drainingShard{{1, 1, 1, 1}, {2, 1, 0, 900 * mib}, {3, 1, 0, 800 * mib}}, nil, []int{3, 2},
		},
		"one is being copied": {
			[]drainingShard{{1, 1, 0, 100 * mib}, {2, 1, 0, 100 * mib}}, []int64{100 * mib}, []int{1},
		},
		"two are":            {[]drainingShard{{1, 1, 0, 100 * mib}}, []int64{100 * mib, 100 * mib}, nil},
		"two small ones are": {[]drainingShard{{1, 1, 0, 40 * mib}, {2, 1, 0, 50 * mib}}, []int64{mib, mib}, []int{1}},
		"no overtaking":      {[]drainingShard{{1, 1, 0, 100 * mib}, {2, 1, 1, mib}}, []int64{mib, mib}, nil},
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
			t.Errorf("%s: next are %v, want %v", name, got, c.want)
		}
	}
}

// TestNotice checks that the time is nearly over when a third, or five seconds, is left, and that a later message
// cannot extend it.
func TestNotice(t *testing.T) {
	const tick = 0.1
	for _, c := range []struct{ ms, from int64 }{{1, 50}, {90, 50}, {3000, 70}, {25_000, 250}, {120_000, 1200}} {
		var n drainDeadline
		n.Set(50, c.ms, tick)
		n.Set(51, c.ms+10_000, tick)
		if n.NearlyOver(c.from-1) && c.from > 50 || !n.NearlyOver(c.from) {
			t.Errorf("a notice of %d ms is nearly over at tick %+v, want %d", c.ms, n, c.from)
		}
		n.Set(52, 0, tick)
		if !n.NearlyOver(52) {
			t.Errorf("a notice of %d ms that was cut short is not nearly over", c.ms)
		}
	}
	if n := (drainDeadline{}); n.NearlyOver(1 << 40) {
		t.Error("a notice without a deadline is nearly over")
	}
}
