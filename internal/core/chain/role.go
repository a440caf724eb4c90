package chain

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// Role is a server's role in a shard's chain according to a view. Neighbors that do not exist are nil.
type Role struct {
	Config
	Since uint64          // as in the view's Holder
	Pred  protocol.Holder // its predecessor, unless it is the head

	Succ *protocol.Holder // its successor
	Join *protocol.Holder // the joiner that copies from it, if it is the tail
	// NextJoin is a joiner that may become the successor. The connection is opened now, while nothing waits for it.
	NextJoin *protocol.Holder
}

// Reads reports whether vap tables are read here. Only this replica then knows what slots can see.
func (p *Role) Reads() bool {
	if p.Eager {
		return p.Head
	}
	return p.Tail
}

// RoleOf returns a process's role in a shard's chain. held is false if it has none.
func RoleOf(v *protocol.View, id perdure.ShardID, server int, incarnation perdure.Incarnation,
	traits *recovery.Traits,
) (at Role, held bool) {
	sv := &v.Shards[id]
	mine := func(h *protocol.Holder) bool { return h.Server == server && h.Incarnation == incarnation }
	at.Config = Config{Epoch: sv.Epoch, Eager: traits.EarlyAck, Periodic: traits.Period > 0}
	if sv.Joining != nil && mine(sv.Joining) {
		at.Joining, at.Joiner, at.Since, at.Pred = true, sv.Joining.Since, sv.Joining.Since, sv.Tail()
		return at, true
	}
	for i := range sv.Replicas() {
		h := sv.Replica(i)
		if !mine(&h) {
			continue
		}
		at.Since, at.Head, at.Tail = h.Since, i == 0, i == sv.Replicas()-1
		if i > 0 {
			at.Pred = sv.Replica(i - 1)
		}
		if !traits.UsesLog() { // otherwise all replicas read the same stream, without a chain
			at.setSuccessors(sv, i)
		}
		return at, true
	}
	return at, false
}

// setSuccessors sets the neighbors that come after a shard's replica.
func (p *Role) setSuccessors(sv *protocol.ShardView, i int) {
	switch {
	case !p.Tail:
		next := sv.Replica(i + 1)
		p.Succ, p.NextJoin = &next, sv.Joining
	case sv.Joining != nil:
		p.Joiner, p.Join = sv.Joining.Since, sv.Joining
	}
}
