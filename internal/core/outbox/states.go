package outbox

import (
	"bytes"
	"slices"

	"github.com/perdure/perdure/internal/core/slotstate"
)

// A program's saved state may be in the store, and the update then only refers to it. Once a later state of the slot
// has been applied, the earlier one is deleted unless a checkpoint needs it. A restarted shard that is resent its
// updates must therefore not get a reference to a state that may be deleted. Otherwise the slot's next process would
// resume from that reference if this process died before it had sent the later one.

// superseded removes references from the updates that are resent to a restarted shard, where a later update has another
// reference and no checkpoint is made between the two. The updates keep their length, because parts of them may have
// arrived already.
func (s *Shard) superseded() {
	newest := (*Update)(nil)
	for _, u := range slices.Backward(s.kept) {
		ref := slotstate.DecodeRef(u.state)
		if u.phase < Sent || ref == nil {
			continue
		}
		if newest != nil {
			cut := s.outbox.jobView.cuts.From(u.until())
			if cut < 0 || cut > newest.clock {
				u.voidState()
				continue
			}
		}
		if u.phase == Ticked || !s.outbox.jobView.mode.Ticks() {
			newest = u
		}
	}
}

// voidState replaces the update's reference by an empty one of the same length. The update's memory may be queued for
// sending, so the part with the reference is copied.
func (u *Update) voidState() {
	none := slotstate.EmptyRef()
	for i, p := range u.parts {
		if at := bytes.Index(p.head, u.state); at >= 0 {
			head := slices.Clone(p.head)
			copy(head[at:], none)
			u.parts[i].head = head
		}
	}
	u.state = none
}
