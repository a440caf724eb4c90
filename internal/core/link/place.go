package link

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
)

// Place is a server's part in a shard's chain, as a view says. Of the holders beside it, one that is
// nil is nobody.
type Place struct {
	chain.Config
	Since uint64       // as in the view's Holder
	Pred  words.Holder // whom it follows, unless it is the head

	Succ *words.Holder // to whom it passes entries on
	Join *words.Holder // whom it, as the tail, brings up to itself
	// Soon joins and may be the successor then. It is connected to now, since nobody waits for it yet.
	Soon *words.Holder
}

// Reads reports whether rows of vap tables are read here: of no other replica is it known, then,
// what slots can see.
func (p *Place) Reads() bool {
	if p.Eager {
		return p.Head
	}
	return p.Tail
}

// PlaceOf returns a process's part in a shard's chain; not held: it has none.
func PlaceOf(v *words.View, id perdure.ShardID, server int, incarnation perdure.Incarnation,
	traits *recovery.Traits,
) (at Place, held bool) {
	sv := &v.Shards[id]
	mine := func(h *words.Holder) bool { return h.Server == server && h.Incarnation == incarnation }
	at.Config = chain.Config{Epoch: sv.Epoch, Eager: traits.Eager, Periodic: traits.Period > 0}
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
		if !traits.Logged() { // else nobody follows anybody, but all the same stream
			at.after(sv, i)
		}
		return at, true
	}
	return at, false
}

// after notes who comes after a shard's replica.
func (p *Place) after(sv *words.ShardView, i int) {
	switch {
	case !p.Tail:
		next := sv.Replica(i + 1)
		p.Succ, p.Soon = &next, sv.Joining
	case sv.Joining != nil:
		p.Joiner, p.Join = sv.Joining.Since, sv.Joining
	}
}
