package failuredetector

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func all(n int) []bool { return slices.Repeat([]bool{true}, n) }

// TestOut checks which processes are excluded in the partitions that occur in real networks.
func TestOut(t *testing.T) {
	for _, c := range []struct {
		what             string
		servers, workers int
		pairs            []Pair
		want             []int
	}{
		{"no complaints", 4, 4, nil, nil},
		{"one worker cannot reach one server", 4, 4, []Pair{{5, 1}}, []int{1}},
		{"no process can reach one server", 4, 4, []Pair{{4, 1}, {5, 1}, {6, 1}, {7, 1}, {0, 1}, {2, 1}}, []int{1}},
		{"a worker cannot reach a host of two servers", 4, 4, []Pair{{4, 0}, {4, 1}}, []int{0, 1}},
		{"a worker is cut off from most servers", 4, 4, []Pair{{4, 0}, {4, 1}, {4, 2}}, []int{4}},
		{"a worker is cut off from the only server", 1, 2, []Pair{{1, 0}}, []int{1}},
		{"the only worker is cut off from the only server", 1, 1, []Pair{{1, 0}}, nil},
		{"two servers do not reach each other", 4, 4, []Pair{{1, 2}, {2, 1}}, []int{2}},
		{"a server is cut off from all others", 4, 4, []Pair{{0, 1}, {0, 2}, {3, 0}}, []int{0}},
		{"the servers of two zones are apart", 4, 4, []Pair{{0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 0}}, []int{2, 3}},
		{"all workers are cut off from all servers", 2, 2, []Pair{{2, 0}, {2, 1}, {3, 0}, {3, 1}}, []int{1, 2}},
		{"two servers, one unreachable", 2, 2, []Pair{{2, 1}, {3, 1}}, []int{1}},
	} {
		j := Processes{Servers: c.servers, Live: all(c.servers + c.workers)}
		if got := j.Exclude(c.pairs); !slices.Equal(got, c.want) {
			t.Errorf("%s: excluded %v, want %v", c.what, got, c.want)
		}
	}
	dead := Processes{Servers: 3, Live: []bool{true, false, true, true}}
	if got := dead.Exclude([]Pair{{3, 1}, {0, 1}}); len(got) > 0 {
		t.Errorf("complaints of a dead server: %v are excluded", got)
	}
}

// For arbitrary complaints: at least half of the servers and of the workers remain; every excluded process is part of a
// complaint; and if fewer servers are excluded than allowed, every complaint has an excluded end.
func TestOutIsSpare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := Processes{Servers: rapid.IntRange(1, 8).Draw(t, "servers")}
		j.Live = rapid.SliceOfN(rapid.Bool(), j.Servers+1, j.Servers+8).Draw(t, "live")
		var pairs []Pair
		for range rapid.IntRange(0, 20).Draw(t, "pairs") {
			pairs = append(pairs, Pair{
				rapid.IntRange(0, len(j.Live)-1).Draw(t, "from"), rapid.IntRange(0, j.Servers-1).Draw(t, "to"),
			})
		}
		out := j.Exclude(pairs)
		servers, workers := 0, 0
		for _, n := range out {
			if !j.Live[n] || !slices.ContainsFunc(pairs, func(p Pair) bool { return p.From == n || p.To == n }) {
				t.Fatalf("%d is excluded without a complaint, or is not live", n)
			}
			if n < j.Servers {
				servers++
			} else {
				workers++
			}
		}
		if 2*servers > j.count(0, j.Servers) || 2*workers > j.count(j.Servers, len(j.Live)) {
			t.Fatalf("too many excluded: %v of %v", out, j.Live)
		}
		if servers == j.count(0, j.Servers)/2 {
			return
		}
		for _, p := range pairs {
			if p.From != p.To && j.Live[p.From] && j.Live[p.To] && !slices.Contains(out, p.From) &&
				!slices.Contains(out, p.To) {
				t.Fatalf("excluded %v, but complaint %v has no excluded end", out, p)
			}
		}
	})
}
