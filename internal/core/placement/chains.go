package placement

import (
	"cmp"
	"slices"
)

// Server is a server as placement sees it. Servers are numbered by their index.
type Server struct {
	Zone     string // failure domain
	Eligible bool   // it may be given more replicas
	Replicas int    // number that it holds or receives
	Heads    int    // number of chains that it heads
}

// Chains spreads the replicas of a job's shards over its servers; zones lists the servers' zones. result[s] is the
// chain of shard s, with copies servers or as many as there are. Heads are placed as by Assign. Followers are spread so
// that all servers have equal numbers of replicas, and so that all other servers share the work after the death of one.
// No chain has two servers of one zone while an unused zone exists.
func Chains(shards, copies int, zones []string) [][]int {
	n := len(zones)
	servers := make([]Server, n)
	for i := range servers {
		servers[i] = Server{Zone: zones[i], Eligible: true}
	}
	heads := Assign(shards, n)
	for _, h := range heads {
		servers[h].Replicas++
		servers[h].Heads++
	}
	chains := make([][]int, shards)
	shared := make([]int, n) // how many shards of the current head each server follows
	next := make([]int, n)   // and for how many it would be the next head
	for s, h := range heads {
		if s > 0 && heads[s-1] != h {
			clear(shared)
			clear(next)
		}
		chain := []int{h}
		for len(chain) < min(copies, n) {
			x := best(servers, chain, -1, func(a, b int) int {
				return cmp.Or(
					cmp.Compare(shared[a], shared[b]),
					cmp.Compare(servers[a].Replicas, servers[b].Replicas),
					cmp.Compare((a-h+n)%n, (b-h+n)%n),
				)
			})
			chain = append(chain, x)
			servers[x].Replicas++
			shared[x]++
		}
		slices.SortFunc(chain[1:], func(a, b int) int {
			return cmp.Or(cmp.Compare(next[a], next[b]), cmp.Compare((a-h+n)%n, (b-h+n)%n))
		})
		if len(chain) > 1 {
			next[chain[1]]++
		}
		chains[s] = chain
	}
	level(chains, servers)
	return chains
}

// level moves followers as long as that balances the servers.
func level(chains [][]int, servers []Server) {
	held := make([][]int, len(servers))
	for s, chain := range chains {
		for _, x := range chain {
			held[x] = append(held[x], s)
		}
	}
	layout := Layout{
		Servers: servers,
		Shards:  func(server int) []int { return held[server] },
		Chain:   func(shard int) []int { return chains[shard] },
	}
	for {
		m, ok := layout.NextMove()
		if !ok {
			return
		}
		chain := chains[m.Shard]
		chain[slices.Index(chain, m.From)] = m.To
		at := slices.Index(held[m.From], m.Shard)
		held[m.From] = slices.Delete(held[m.From], at, at+1)
		at, _ = slices.BinarySearch(held[m.To], m.Shard)
		held[m.To] = slices.Insert(held[m.To], at, m.Shard)
		servers[m.From].Replicas--
		servers[m.To].Replicas++
	}
}

// best returns the open server outside a chain whose zone contains the fewest members of the chain, not counting one,
// and of those the smallest by order; -1: none.
func best(servers []Server, chain []int, without int, order func(a, b int) int) int {
	found, conflicts := -1, 0
	for x := range servers {
		if !servers[x].Eligible || slices.Contains(chain, x) {
			continue
		}
		c := 0
		for _, member := range chain {
			if member != without && servers[member].Zone == servers[x].Zone {
				c++
			}
		}
		if found < 0 || c < conflicts || c == conflicts && order(x, found) < 0 {
			found, conflicts = x, c
		}
	}
	return found
}

// Choose returns the server that should hold one more replica of a shard: an open one outside its chain, in a new zone
// if possible, with as few replicas as possible; -1: none. The zone of the member that leaves does not count;
// -1: all stay.
func Choose(servers []Server, chain []int, leaves int) int {
	return best(servers, chain, leaves, func(a, b int) int {
		return cmp.Compare(servers[a].Replicas, servers[b].Replicas)
	})
}

// Surplus returns the member that a chain with one replica too many can do without: one that shares its zone with
// another member, with as many replicas as possible, and otherwise neither the head nor the newest. The chain must have
// at least two members.
func Surplus(servers []Server, chain []int) int {
	last := len(chain) - 1
	order := append(slices.Clone(chain[1:last]), chain[0], chain[last])
	found := order[0]
	for _, x := range order[1:] {
		if cmp.Or(
			cmp.Compare(zonesWithout(servers, chain, x), zonesWithout(servers, chain, found)),
			cmp.Compare(servers[x].Replicas, servers[found].Replicas),
		) > 0 {
			found = x
		}
	}
	return found
}

// zonesWithout counts the zones of a chain's members, ignoring one of them.
func zonesWithout(servers []Server, chain []int, without int) int {
	n := 0
	for i, x := range chain {
		if x == without {
			continue
		}
		first := true
		for _, y := range chain[:i] {
			first = first && (y == without || servers[y].Zone != servers[x].Zone)
		}
		if first {
			n++
		}
	}
	return n
}

// Move moves one replica of a shard between servers.
type Move struct {
	Shard, From, To int
}

// Layout describes where the replicas are.
type Layout struct {
	Servers   []Server
	Shards    func(server int) []int // the shards that a server holds, in order
	Chain     func(shard int) []int  // the servers of a shard's chain, in order
	MoveHeads bool                   // heads may also move
}

// NextMove returns the next move that improves the layout, if there is one. Such a move brings a shard into one more
// zone; or it balances two servers whose numbers of replicas differ by two or more, and leaves no shard in fewer zones.
// A sequence of moves therefore always ends.
func (l *Layout) NextMove() (Move, bool) {
	if m, ok := l.nextZoneMove(); ok {
		return m, true
	}
	from, to := make([]int, 0, len(l.Servers)), make([]int, 0, len(l.Servers))
	for x, s := range l.Servers {
		if s.Replicas > 0 {
			from = append(from, x)
		}
		if s.Eligible {
			to = append(to, x)
		}
	}
	replicas := func(a, b int) int { return cmp.Compare(l.Servers[a].Replicas, l.Servers[b].Replicas) }
	slices.SortStableFunc(to, replicas)
	slices.SortStableFunc(from, func(a, b int) int { return replicas(b, a) })
	for _, t := range to {
		for _, f := range from {
			if l.Servers[f].Replicas < l.Servers[t].Replicas+2 {
				break
			}
			if s := l.bestShardToMove(f, t); s >= 0 {
				return Move{s, f, t}, true
			}
		}
	}
	return Move{}, false
}

// nextZoneMove finds a shard with two replicas in one zone, and a server in an unused zone.
func (l *Layout) nextZoneMove() (Move, bool) {
	if !slices.ContainsFunc(l.Servers, func(s Server) bool { return s.Zone != l.Servers[0].Zone }) {
		return Move{}, false
	}
	for f := range l.Servers {
		for _, s := range l.Shards(f) {
			chain := l.Chain(s)
			if len(chain) < 2 || chain[0] == f && !l.MoveHeads ||
				zonesWithout(l.Servers, chain, f) < zonesWithout(l.Servers, chain, -1) {
				continue // no other member is in its zone
			}
			t := Choose(l.Servers, chain, f)
			if t >= 0 && !slices.ContainsFunc(chain,
				func(x int) bool { return l.Servers[x].Zone == l.Servers[t].Zone }) {
				return Move{s, f, t}, true
			}
		}
	}
	return Move{}, false
}

// bestShardToMove returns the shard whose replica is best moved between two servers; -1: none. A head moves, if
// permitted, when that balances the numbers of heads.
func (l *Layout) bestShardToMove(from, to int) int {
	found, most := -1, 0
	for _, s := range l.Shards(from) {
		chain := l.Chain(s)
		gain := 0
		if chain[0] == from {
			next := to
			if len(chain) > 1 {
				next = chain[1]
			}
			gain = l.Servers[from].Heads - l.Servers[next].Heads - 1
		}
		if slices.Contains(chain, to) || chain[0] == from && !l.MoveHeads || found >= 0 && gain <= most {
			continue
		}
		after := append(slices.Clone(chain), to)
		if zonesWithout(l.Servers, after, from) < zonesWithout(l.Servers, chain, -1) {
			continue
		}
		found, most = s, gain
	}
	return found
}
