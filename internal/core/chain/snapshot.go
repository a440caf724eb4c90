package chain

// Wants reports whether a snapshot of position pos, sent in the present epoch, is to be
// taken: it has what the replica lacks, and nobody relies on what the replica has. It is
// to be asked when the snapshot begins, and again before it takes the state's place: two
// may be on their way.
func (r *Replica[E]) Wants(pos uint64) bool {
	if r.cfg.Joining {
		return !r.joined && (!r.has || pos > r.end)
	}
	return r.cfg.Periodic && !r.cfg.Head && pos > r.end
}

// Restored says that the replica's state is now a snapshot of position pos, which it
// wanted.
func (r *Replica[E]) Restored(pos uint64) {
	r.reset(pos)
	r.has = true
	r.have()
	r.renew(&r.succ, r.succ.there)
	r.renew(&r.join, r.join.there)
	r.advance()
}

// Sync has a periodic head or middle bring its successor up to it.
func (r *Replica[E]) Sync() { r.greet(&r.succ) }
