package chain

// NeedsSnapshot reports whether to accept a snapshot of position pos that was sent in the current epoch: it must
// contain entries that the replica lacks, and no other member may rely on the replica's state. The caller must check
// when the snapshot starts, and again before it replaces the state, because two snapshots may be in transit.
func (r *Log[E]) NeedsSnapshot(pos uint64) bool {
	if r.cfg.Joining {
		return !r.joined && (!r.hasState || pos > r.end)
	}
	return r.cfg.Periodic && !r.cfg.Head && pos > r.end
}

// Restored records that the replica's state is now a snapshot of position pos. Wants must have accepted it.
func (r *Log[E]) Restored(pos uint64) {
	r.resetLog(pos)
	r.hasState = true
	r.sendHave()
	r.reset(&r.succ, r.succ.exists)
	r.reset(&r.join, r.join.exists)
	r.advance()
}

// Sync makes a periodic head or middle member bring its successor up to date.
func (r *Log[E]) Sync() { r.sendFollow(&r.succ) }
