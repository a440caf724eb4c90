package placement

import (
	"iter"
	"maps"
	"slices"
)

// Spread tracks where the replicas of a job's shards are. It is updated as replicas come and go, so that questions
// about all servers do not require a scan of all of them. It is not safe for concurrent use.
type Spread struct {
	servers []Server
	held    []map[int]struct{} // by server: the shards that it holds, or starts to hold
	shards  []where
	loads   loads // of all servers
	open    loads // of those that may be given more replicas
	zoned   bool  // there are, or were, several zones
	crowded map[int]struct{}
}

// where is the placement of one shard.
type where struct {
	chain  []int
	joiner int // the server that starts to hold it; -1: none
}

// NewSpread returns a Spread for shards without replicas, over no servers.
func NewSpread(shards int) *Spread {
	s := &Spread{shards: make([]where, shards), crowded: map[int]struct{}{}}
	for i := range s.shards {
		s.shards[i].joiner = -1
	}
	return s
}

// Add adds a server in a zone. It is not open yet.
func (s *Spread) Add(zone string) {
	s.servers = append(s.servers, Server{Zone: zone})
	s.zoned = s.zoned || zone != s.servers[0].Zone
	s.loads.add(0, 1)
	s.held = append(s.held, map[int]struct{}{})
}

// SetZone sets the zone of a server.
func (s *Spread) SetZone(server int, zone string) {
	if s.servers[server].Zone == zone {
		return
	}
	s.servers[server].Zone = zone
	s.zoned = true // now or before
	for shard := range s.held[server] {
		s.noteCrowd(shard)
	}
}

// Open sets whether a server may be given more replicas.
func (s *Spread) Open(server int, open bool) {
	at := &s.servers[server]
	if at.Open {
		s.open.add(at.Replicas, -1)
	}
	at.Open = open
	if open {
		s.open.add(at.Replicas, 1)
	}
}

// IsOpen reports whether a server is open.
func (s *Spread) IsOpen(server int) bool { return s.servers[server].Open }

// Set sets which servers hold a shard, in the order of its chain, and which one starts to; -1: none.
func (s *Spread) Set(shard int, chain []int, joiner int) {
	at := &s.shards[shard]
	s.count(shard, -1)
	at.chain, at.joiner = append(at.chain[:0], chain...), joiner
	s.count(shard, 1)
	s.noteCrowd(shard)
}

// count adds by to the counts of the servers of a shard.
func (s *Spread) count(shard, by int) {
	at := &s.shards[shard]
	for _, server := range at.chain {
		s.load(server, shard, by)
	}
	if at.joiner >= 0 {
		s.load(at.joiner, shard, by)
	}
	if len(at.chain) > 0 {
		s.servers[at.chain[0]].Heads += by
	}
}

func (s *Spread) load(server, shard, by int) {
	at := &s.servers[server]
	s.loads.add(at.Replicas, -1)
	s.loads.add(at.Replicas+by, 1)
	if at.Open {
		s.open.add(at.Replicas, -1)
		s.open.add(at.Replicas+by, 1)
	}
	at.Replicas += by
	if by > 0 {
		s.held[server][shard] = struct{}{}
	} else {
		delete(s.held[server], shard)
	}
}

// noteCrowd records whether two of a shard's replicas are in one zone.
func (s *Spread) noteCrowd(shard int) {
	chain := s.shards[shard].chain
	for i, a := range chain {
		for _, b := range chain[:i] {
			if s.servers[a].Zone == s.servers[b].Zone {
				s.crowded[shard] = struct{}{}
				return
			}
		}
	}
	delete(s.crowded, shard)
}

// Held returns the shards that a server holds, or starts to hold, in any order.
func (s *Spread) Held(server int) iter.Seq[int] { return maps.Keys(s.held[server]) }

// Load returns how many shards a server holds, or starts to hold.
func (s *Spread) Load(server int) int { return s.servers[server].Replicas }

// Choose returns the server that should hold one more replica of a shard, as the function Choose does.
func (s *Spread) Choose(chain []int, leaves int) int { return Choose(s.servers, chain, leaves) }

// Surplus returns the member that a chain with one replica too many can do without, as the function Surplus does.
func (s *Spread) Surplus(chain []int) int { return Surplus(s.servers, chain) }

// Level reports whether no move could balance the servers' loads or bring a shard into more zones. It errs only towards
// false, because it does not check all chains.
func (s *Spread) Level() bool {
	return s.loads.most() < s.open.least()+2 && (!s.zoned || len(s.crowded) == 0)
}

// Moves returns the next few moves that improve the layout: see Layout.Move. Shards that are being copied do not move.
func (s *Spread) Moves(most int) (moves []Move) {
	begun := map[int]bool{}
	layout := Layout{
		Servers: slices.Clone(s.servers), Heads: true,
		Held: func(server int) []int {
			return slices.DeleteFunc(slices.Sorted(s.Held(server)), func(shard int) bool {
				return s.shards[shard].joiner >= 0 || begun[shard]
			})
		},
		Chain: func(shard int) []int { return s.shards[shard].chain },
	}
	for len(moves) < most {
		m, ok := layout.Move()
		if !ok {
			break
		}
		moves, begun[m.Shard] = append(moves, m), true
		layout.Servers[m.From].Replicas--
		layout.Servers[m.To].Replicas++
	}
	return moves
}

// loads counts servers by their numbers of replicas.
type loads []int

func (l *loads) add(replicas, by int) {
	for len(*l) <= replicas {
		*l = append(*l, 0)
	}
	(*l)[replicas] += by
}

// least returns the smallest load of any server, and most the largest; 0 without servers.
func (l loads) least() int { return max(0, slices.IndexFunc(l, func(n int) bool { return n > 0 })) }

func (l loads) most() int {
	for i := len(l) - 1; i > 0; i-- {
		if l[i] > 0 {
			return i
		}
	}
	return 0
}
