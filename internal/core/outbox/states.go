package outbox

import (
	"bytes"
	"slices"

	"github.com/perdure/perdure/internal/core/states"
)

// What a program saves may lie in the store: then an update only refers to it. Once a later state of the slot
// has been applied, the earlier one is deleted, unless a checkpoint needs it. So a shard that begins again, and
// is sent again what it had, is not to get a reference to what may be gone: it would be what the slot goes on
// with, should this process die before it has sent the later one.

// superseded takes the references out of what is to be sent to a shard that begins again, where a later update
// has another, and no checkpoint is made between the two. What is sent stays as long as it was: some of it may
// have come already.
func (s *Shard) superseded() {
	newest := (*Update)(nil)
	for _, u := range slices.Backward(s.kept) {
		ref := states.Of(u.state)
		if u.phase < Sent || ref == nil {
			continue
		}
		if newest != nil {
			cut := s.box.terms.cuts.From(u.until())
			if cut < 0 || cut > newest.clock {
				u.void()
				continue
			}
		}
		if u.phase == Ticked || !s.box.terms.twoStep {
			newest = u
		}
	}
}

// void replaces the reference that the update has by one to nothing. Its memory may be queued somewhere: the
// part that has it is copied.
func (u *Update) void() {
	none := states.Void()
	for i, p := range u.parts {
		if at := bytes.Index(p.head, u.state); at >= 0 {
			head := slices.Clone(p.head)
			copy(head[at:], none)
			u.parts[i].head = head
		}
	}
	u.state = none
}
