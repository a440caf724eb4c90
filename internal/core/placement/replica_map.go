package placement

import (
	"iter"
	"maps"
	"slices"
)

// ReplicaMap tracks where the replicas of a job's shards are. It is updated as replicas come and go, so that questions
// about all servers do not require a scan of all of them. It is not safe for concurrent use.
type ReplicaMap struct {
	servers       []Server
	shardsOf      []map[int]struct{} // by server: the shards that it holds, or starts to hold
	shards        []shardPlacement
	loads         loadCounts // of all servers
	eligibleLoads loadCounts // of those that may be given more replicas
	zoned         bool       // there are, or were, several zones
	zoneConflicts map[int]struct{}
}

// shardPlacement is the placement of one shard.
type shardPlacement struct {
	chain  []int
	joiner int // the server that starts to hold it; -1: none
}

// NewReplicaMap returns a ReplicaMap for shards without replicas, over no servers.
func NewReplicaMap(shards int) *ReplicaMap {
	s := &ReplicaMap{shards: make([]shardPlacement, shards), zoneConflicts: map[int]struct{}{}}
	for i := range s.shards {
		s.shards[i].joiner = -1
	}
	return s
}

// Add adds a server in a zone. It is not open yet.
func (s *ReplicaMap) Add(zone string) {
	s.servers = append(s.servers, Server{Zone: zone})
	s.zoned = s.zoned || zone != s.servers[0].Zone
	s.loads.add(0, 1)
	s.shardsOf = append(s.shardsOf, map[int]struct{}{})
}

// SetZone sets the zone of a server.
func (s *ReplicaMap) SetZone(server int, zone string) {
	if s.servers[server].Zone == zone {
		return
	}
	s.servers[server].Zone = zone
	s.zoned = true // now or before
	for shard := range s.shardsOf[server] {
		s.updateZoneConflict(shard)
	}
}

// SetEligible sets whether a server may be given more replicas.
func (s *ReplicaMap) SetEligible(server int, open bool) {
	at := &s.servers[server]
	if at.Eligible {
		s.eligibleLoads.add(at.Replicas, -1)
	}
	at.Eligible = open
	if open {
		s.eligibleLoads.add(at.Replicas, 1)
	}
}

// IsEligible reports whether a server is open.
func (s *ReplicaMap) IsEligible(server int) bool { return s.servers[server].Eligible }

// Set sets which servers hold a shard, in the order of its chain, and which one starts to; -1: none.
func (s *ReplicaMap) Set(shard int, chain []int, joiner int) {
	at := &s.shards[shard]
	s.addReplicas(shard, -1)
	at.chain, at.joiner = append(at.chain[:0], chain...), joiner
	s.addReplicas(shard, 1)
	s.updateZoneConflict(shard)
}

// addReplicas adds by to the counts of the servers of a shard.
func (s *ReplicaMap) addReplicas(shard, by int) {
	at := &s.shards[shard]
	for _, server := range at.chain {
		s.addReplica(server, shard, by)
	}
	if at.joiner >= 0 {
		s.addReplica(at.joiner, shard, by)
	}
	if len(at.chain) > 0 {
		s.servers[at.chain[0]].Heads += by
	}
}

func (s *ReplicaMap) addReplica(server, shard, by int) {
	at := &s.servers[server]
	s.loads.add(at.Replicas, -1)
	s.loads.add(at.Replicas+by, 1)
	if at.Eligible {
		s.eligibleLoads.add(at.Replicas, -1)
		s.eligibleLoads.add(at.Replicas+by, 1)
	}
	at.Replicas += by
	if by > 0 {
		s.shardsOf[server][shard] = struct{}{}
	} else {
		delete(s.shardsOf[server], shard)
	}
}

// updateZoneConflict records whether two of a shard's replicas are in one zone.
func (s *ReplicaMap) updateZoneConflict(shard int) {
	chain := s.shards[shard].chain
	for i, a := range chain {
		for _, b := range chain[:i] {
			if s.servers[a].Zone == s.servers[b].Zone {
				s.zoneConflicts[shard] = struct{}{}
				return
			}
		}
	}
	delete(s.zoneConflicts, shard)
}

// Shards returns the shards that a server holds, or starts to hold, in any order.
func (s *ReplicaMap) Shards(server int) iter.Seq[int] { return maps.Keys(s.shardsOf[server]) }

// NumShards returns how many shards a server holds, or starts to hold.
func (s *ReplicaMap) NumShards(server int) int { return s.servers[server].Replicas }

// Choose returns the server that should hold one more replica of a shard, as the function Choose does.
func (s *ReplicaMap) Choose(chain []int, leaves int) int { return Choose(s.servers, chain, leaves) }

// Surplus returns the member that a chain with one replica too many can do without, as the function Surplus does.
func (s *ReplicaMap) Surplus(chain []int) int { return Surplus(s.servers, chain) }

// IsBalanced reports whether no move could balance the servers' loads or bring a shard into more zones. It errs only
// towards false, because it does not check all chains.
func (s *ReplicaMap) IsBalanced() bool {
	return s.loads.max() < s.eligibleLoads.min()+2 && (!s.zoned || len(s.zoneConflicts) == 0)
}

// NextMoves returns the next few moves that improve the layout: see Layout.NextMove. Shards that are being copied do
// not move.
func (s *ReplicaMap) NextMoves(most int) (moves []Move) {
	started := map[int]bool{}
	layout := Layout{
		Servers: slices.Clone(s.servers), MoveHeads: true,
		Shards: func(server int) []int {
			return slices.DeleteFunc(slices.Sorted(s.Shards(server)), func(shard int) bool {
				return s.shards[shard].joiner >= 0 || started[shard]
			})
		},
		Chain: func(shard int) []int { return s.shards[shard].chain },
	}
	for len(moves) < most {
		m, ok := layout.NextMove()
		if !ok {
			break
		}
		moves, started[m.Shard] = append(moves, m), true
		layout.Servers[m.From].Replicas--
		layout.Servers[m.To].Replicas++
	}
	return moves
}

// loadCounts counts servers by their numbers of replicas.
type loadCounts []int

func (l *loadCounts) add(replicas, by int) {
	for len(*l) <= replicas {
		*l = append(*l, 0)
	}
	(*l)[replicas] += by
}

// min returns the smallest load of any server, and most the largest; 0 without servers.
func (l loadCounts) min() int { return max(0, slices.IndexFunc(l, func(n int) bool { return n > 0 })) }

func (l loadCounts) max() int {
	for i := len(l) - 1; i > 0; i-- {
		if l[i] > 0 {
			return i
		}
	}
	return 0
}
