package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure/internal/core/placement"
)

func ExampleChains() {
	for s, chain := range placement.Chains(6, 2, []string{"", "", ""}) {
		fmt.Println("shard", s, "is on servers", chain)
	}
	// Output:
	// shard 0 is on servers [0 1]
	// shard 1 is on servers [0 2]
	// shard 2 is on servers [1 0]
	// shard 3 is on servers [1 2]
	// shard 4 is on servers [2 0]
	// shard 5 is on servers [2 1]
}

// arrangement is a set of chains on servers, as a job may reach it.
type arrangement struct {
	servers []placement.Server
	chains  [][]int
}

func (a *arrangement) held(server int) (shards []int) {
	for s, chain := range a.chains {
		if slices.Contains(chain, server) {
			shards = append(shards, s)
		}
	}
	return shards
}

func (a *arrangement) zones(chain []int) int {
	seen := map[string]bool{}
	for _, x := range chain {
		seen[a.servers[x].Zone] = true
	}
	return len(seen)
}

// count updates the servers' counts from the chains.
func (a *arrangement) count() {
	for x := range a.servers {
		a.servers[x].Replicas, a.servers[x].Heads = len(a.held(x)), 0
	}
	for _, chain := range a.chains {
		a.servers[chain[0]].Heads++
	}
}

func (a *arrangement) layout(heads bool) *placement.Layout {
	return &placement.Layout{
		Servers: a.servers, Shards: a.held, MoveHeads: heads,
		Chain: func(s int) []int { return a.chains[s] },
	}
}

// may reports whether a move is one that Layout.NextMove promises, judged only by its result.
func (a *arrangement) may(m placement.Move, heads bool) bool {
	chain := a.chains[m.Shard]
	at := slices.Index(chain, m.From)
	if at < 0 || slices.Contains(chain, m.To) || !a.servers[m.To].Eligible || at == 0 && !heads {
		return false
	}
	after := slices.Clone(chain)
	after[at] = m.To
	more := a.zones(after) - a.zones(chain)
	return more > 0 || more == 0 && a.servers[m.From].Replicas-a.servers[m.To].Replicas >= 2
}

func (a *arrangement) anyMove(heads bool) bool {
	for s, chain := range a.chains {
		for _, from := range chain {
			for to := range a.servers {
				if a.may(placement.Move{Shard: s, From: from, To: to}, heads) {
					return true
				}
			}
		}
	}
	return false
}

func arrangements(t *rapid.T) *arrangement {
	zones := rapid.IntRange(1, 4).Draw(t, "zones")
	a := &arrangement{servers: make([]placement.Server, rapid.IntRange(1, 8).Draw(t, "servers"))}
	for x := range a.servers {
		a.servers[x].Zone = fmt.Sprint(rapid.IntRange(1, zones).Draw(t, "zone"))
		a.servers[x].Eligible = rapid.IntRange(0, 4).Draw(t, "open") > 0
	}
	a.chains = make([][]int, rapid.IntRange(1, 20).Draw(t, "shards"))
	for s := range a.chains {
		all := rapid.Permutation(indices(len(a.servers))).Draw(t, "chain")
		a.chains[s] = all[:rapid.IntRange(1, min(3, len(all))).Draw(t, "copies")]
	}
	a.count()
	return a
}

func indices(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// TestMoves checks that NextMove finds a move exactly when there is one, that the move keeps its promises, and that a
// sequence of moves ends.
func TestMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := arrangements(t)
		heads := rapid.Bool().Draw(t, "heads")
		for n := 0; ; n++ {
			m, found := a.layout(heads).NextMove()
			if !found {
				if a.anyMove(heads) {
					t.Fatalf("no move found for %v on %v", a.chains, a.servers)
				}
				return
			}
			if !a.may(m, heads) {
				t.Fatalf("%+v is not a good move for %v on %v", m, a.chains, a.servers)
			}
			if n > 20*8*3 {
				t.Fatalf("the moves do not end")
			}
			a.chains[m.Shard][slices.Index(a.chains[m.Shard], m.From)] = m.To
			a.count()
		}
	})
}

// TestMovesToANewServer checks that a server that joins a balanced job gets its share in the minimum number of moves.
func TestMovesToANewServer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, copies := rapid.IntRange(1, 12).Draw(t, "servers"), rapid.IntRange(1, 3).Draw(t, "copies")
		a := &arrangement{servers: make([]placement.Server, n+1)}
		a.chains = placement.Chains(rapid.IntRange(n, 100).Draw(t, "shards"), copies, make([]string, n))
		for x := range a.servers {
			a.servers[x].Eligible = true
		}
		moves := 0
		for ; ; moves++ {
			a.count()
			m, found := a.layout(true).NextMove()
			if !found {
				break
			}
			if m.To != n {
				t.Fatalf("%+v although server %d joined", m, n)
			}
			a.chains[m.Shard][slices.Index(a.chains[m.Shard], m.From)] = m.To
		}
		if share := len(a.chains) * min(copies, n) / (n + 1); moves != share {
			t.Fatalf("%d moves, want %d", moves, share)
		}
	})
}

// TestChains checks that initial chains are on distinct servers and in as many zones as possible, and that servers
// without zones hold equal numbers of replicas, within one. The first followers of a server's heads are spread over all
// other servers, as evenly as that permits.
func TestChains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers, copies := rapid.IntRange(1, 20).Draw(t, "servers"), rapid.IntRange(1, 4).Draw(t, "copies")
		shards := rapid.IntRange(servers, 200).Draw(t, "shards")
		zones := make([]string, servers)
		for x, n := 0, rapid.IntRange(1, 4).Draw(t, "zones"); x < servers; x++ {
			zones[x] = fmt.Sprint(rapid.IntRange(1, n).Draw(t, "zone"))
		}
		distinct := len(slices.Compact(slices.Sorted(slices.Values(zones))))
		a := &arrangement{servers: make([]placement.Server, servers), chains: placement.Chains(shards, copies, zones)}
		first := map[[2]int]int{}
		for s, chain := range a.chains {
			if len(chain) != min(copies, servers) || chain[0] != s*servers/shards {
				t.Fatalf("shard %d is on %v", s, chain)
			}
			if sorted := slices.Sorted(slices.Values(chain)); len(slices.Compact(sorted)) != len(chain) {
				t.Fatalf("shard %d is on a server twice: %v", s, chain)
			}
			if len(chain) > 1 {
				first[[2]int{chain[0], chain[1]}]++
			}
		}
		for x := range a.servers {
			a.servers[x] = placement.Server{Zone: zones[x], Eligible: true}
		}
		a.count()
		for s, chain := range a.chains {
			if got, want := a.zones(chain), min(len(chain), distinct); got != want {
				t.Fatalf("shard %d is in %d zones, want %d: %v", s, got, want, chain)
			}
		}
		if distinct > 1 {
			return
		}
		least := slices.MinFunc(a.servers, func(x, y placement.Server) int { return x.Replicas - y.Replicas })
		most := slices.MaxFunc(a.servers, func(x, y placement.Server) int { return x.Replicas - y.Replicas })
		if most.Replicas-least.Replicas > 1 {
			t.Fatalf("servers hold %d to %d replicas", least.Replicas, most.Replicas)
		}
		for pair, n := range first {
			if even := (a.servers[pair[0]].Heads + servers - 2) / (servers - 1); n > even+2 {
				t.Fatalf("server %d follows %d of %d heads of server %d, of %d servers", pair[1], n,
					a.servers[pair[0]].Heads, pair[0], servers)
			}
		}
	})
}

// TestSurplus checks which member leaves: one that shares its zone, then the one with the most replicas, then neither
// the head nor the newest.
func TestSurplus(t *testing.T) {
	for _, c := range []struct {
		zones    string
		replicas []int
		want     int
	}{
		{"aaa", []int{5, 5, 5}, 1},
		{"aaa", []int{6, 5, 5}, 0},
		{"aab", []int{5, 5, 9}, 1},
		{"aba", []int{5, 9, 4}, 0},
		{"aa", []int{5, 5}, 0},
		{"aa", []int{5, 6}, 1},
	} {
		servers := make([]placement.Server, len(c.replicas))
		for x := range servers {
			servers[x] = placement.Server{Zone: c.zones[x : x+1], Replicas: c.replicas[x]}
		}
		if got := placement.Surplus(servers, indices(len(servers))); got != c.want {
			t.Errorf("zones %s, replicas %v: %d, want %d", c.zones, c.replicas, got, c.want)
		}
	}
}

// BenchmarkChains measures the placement of a large job's shards, which is computed once, at its start.
func BenchmarkChains(b *testing.B) {
	for name, zones := range map[string]int{"zones=1": 1, "zones=7": 7} {
		b.Run(name, func(b *testing.B) {
			list := make([]string, 1000)
			for x := range list {
				list[x] = fmt.Sprint(x * x % zones)
			}
			for b.Loop() {
				placement.Chains(4096, 3, list)
			}
		})
	}
}
