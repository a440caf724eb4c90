package outbox

import (
	"slices"

	"github.com/perdure/perdure"
)

// An update that is retained until it is in a checkpoint keeps its rows of transient tables only as long as a reader
// may need them. A row that clock c wrote is read until clock c+1 is applied: by then all slots have ended that clock.
// A restored shard may therefore be resent clock c without these rows. It applies c+1 before anyone reads from it. The
// exception is a cut at c+1 that is not durable yet, because the shard writes it again.

// dropTransient drops the rows of transient tables from the retained updates that no longer need them. The updates keep
// their place, their weights and everything else.
func (s *Shard) dropTransient() {
	b := s.outbox
	if !b.retains() || !slices.ContainsFunc(b.jobView.view.Tables, isTransient) {
		return
	}
	for _, u := range s.kept[:s.acked] {
		if u.until() >= s.counts.Applied {
			break // the newest applied clock
		}
		if b.jobView.isCut(u.until()) {
			continue
		}
		before := u.bytes
		if u.dropTables(func(t perdure.TableID) bool { return isTransient(b.jobView.view.Tables[t]) }) {
			s.retain(u.bytes - before)
		}
	}
}

func isTransient(t perdure.TableSpec) bool { return t.Transient }

// dropTables drops the rows of some tables, and reports whether there were any. The memory is reused unless it may
// still be queued for sending.
func (u *Update) dropTables(drops func(perdure.TableID) bool) bool {
	dropsBlock := func(b block) bool { return drops(b.Table) }
	if !slices.ContainsFunc(u.blocks, dropsBlock) {
		return false
	}
	blocks := make([]block, 0, len(u.blocks)) // queued frames may refer to the parts, but not to this list
	for _, b := range u.blocks {
		if !dropsBlock(b) {
			blocks = append(blocks, b)
		}
	}
	u.taken = slices.DeleteFunc(u.taken, func(m taken) bool {
		gone := drops(m.from.of.id)
		if gone && !u.again {
			m.from.recycle(m.memory)
		}
		return gone
	})
	kept := new(keepers)
	u.buffers = slices.DeleteFunc(u.buffers, func(r *Buffer) bool {
		gone := drops(r.of.id)
		if gone && !u.again {
			r.leave()
		} else if !gone && r.keeper != nil {
			kept.of = append(kept.of, r.keeper)
		}
		return gone
	})
	if u.keepers = kept; len(kept.of) == 0 {
		u.keepers = nil
	}
	// Both may be large, and may still be queued. The update is kept for as long as the checkpoints take.
	u.parts, u.arena = nil, nil
	u.blocks, u.indexes, u.grown, u.peak = blocks, nil, nil, peak{}
	u.rebuild()
	u.sent = len(u.parts)
	return true
}
