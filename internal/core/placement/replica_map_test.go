package placement_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure/internal/core/placement"
)

// TestSpread compares a ReplicaMap with a scan of all chains after random changes.
func TestSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shards := rapid.IntRange(1, 6).Draw(t, "shards")
		s, chains, joiners := placement.NewReplicaMap(shards), make([][]int, shards), make([]int, shards)
		for i := range joiners {
			joiners[i] = -1
		}
		var zones []string
		var open []bool
		zone := rapid.SampledFrom([]string{"a", "b"})
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			n := len(zones)
			switch what := rapid.IntRange(0, 5).Draw(t, "what"); {
			case n == 0 || what == 0 && n < 6:
				zones, open = append(zones, zone.Draw(t, "zone")), append(open, false)
				s.Add(zones[n])
			case what == 1:
				x := rapid.IntRange(0, n-1).Draw(t, "server")
				zones[x] = zone.Draw(t, "zone")
				s.SetZone(x, zones[x])
			case what == 2:
				x := rapid.IntRange(0, n-1).Draw(t, "server")
				open[x] = !open[x]
				s.SetEligible(x, open[x])
			default:
				i := rapid.IntRange(0, shards-1).Draw(t, "shard")
				order := rapid.Permutation(upTo(n)).Draw(t, "servers")
				members := rapid.IntRange(0, min(n, 3)).Draw(t, "members")
				chains[i], joiners[i] = slices.Clone(order[:members]), -1
				if members < n && rapid.Bool().Draw(t, "joins") {
					joiners[i] = order[members]
				}
				s.Set(i, chains[i], joiners[i])
			}
			compare(t, s, chains, joiners, zones, open)
		}
	})
}

func upTo(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

func compare(t *rapid.T, s *placement.ReplicaMap, chains [][]int, joiners []int, zones []string, open []bool) {
	naive := make([]placement.Server, len(zones))
	held := make([]map[int]bool, len(zones))
	for x := range naive {
		naive[x], held[x] = placement.Server{Zone: zones[x], Eligible: open[x]}, map[int]bool{}
	}
	for i, chain := range chains {
		for at, x := range chain {
			held[x][i] = true
			if at == 0 {
				naive[x].Heads++
			}
		}
		if j := joiners[i]; j >= 0 {
			held[j][i] = true
		}
	}
	for x := range naive {
		naive[x].Replicas = len(held[x])
		if got, want := slices.Sorted(s.Shards(x)), slices.Sorted(maps.Keys(held[x])); !slices.Equal(got, want) ||
			s.NumShards(x) != len(want) {
			t.Fatalf("server %d holds %v, want %v", x, got, want)
		}
		if s.IsEligible(x) != open[x] {
			t.Fatalf("server %d is open: %v", x, s.IsEligible(x))
		}
	}
	if got, want := s.Choose(nil, -1), placement.Choose(naive, nil, -1); got != want {
		t.Fatalf("server %d is chosen, want %d", got, want)
	}
	layout := placement.Layout{
		Servers: naive, MoveHeads: true,
		Shards: func(x int) (list []int) {
			for _, i := range slices.Sorted(maps.Keys(held[x])) {
				if joiners[i] < 0 {
					list = append(list, i)
				}
			}
			return list
		},
		Chain: func(i int) []int { return chains[i] },
	}
	m, moves := layout.NextMove()
	if got := s.NextMoves(1); moves != (len(got) == 1) || moves && got[0] != m {
		t.Fatalf("moves %v, want %v (%v)", got, m, moves)
	}
	if moves && s.IsBalanced() {
		t.Fatalf("level, although %v helps", m)
	}
}
