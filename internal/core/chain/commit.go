package chain

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
)

// maxPendingBytes is about how many bytes of entries a predecessor keeps at most because it has not been sent their
// commit position. It never sends more than a window ahead.
const maxPendingBytes = 64 << 10

// commitDelay tracks the commit position that has not been sent to a shard's predecessor. If rows are read only from
// the tail, it can be sent later: the predecessor does not show these rows to readers, and each message costs both
// servers as much as an entry.
type commitDelay struct {
	pending  bool   // a message is held back
	bytes    int    // bytes of entries applied since the last message
	awaited  bool   // a process waits for one of these entries: a fact, or the job's last clock
	followed uint64 // end of the predecessor's log at its last Follow: it serves once that is committed
}

func (u *commitDelay) clear() { u.pending, u.bytes, u.awaited = false, 0, false }

// add records an entry to be applied. end is the clock at which the job ends, or 0.
func (u *commitDelay) add(e *replica.Entry, end perdure.Clock) {
	f := &e.Frame
	u.bytes += entryBytes(*e)
	u.awaited = u.awaited || !fromWorker(f) || end > 0 && f.Until() >= end
}

// defers reports whether a Committed message to the predecessor is deferred. tailReads means that clients read at
// the tail.
func (u *commitDelay) defers(m *LinkOutgoing, tailReads bool) bool {
	joins := m.Joiner != 0 // the tail waits for the joiner's message
	if joins || !tailReads || m.Pos <= u.followed || u.awaited || u.bytes >= maxPendingBytes {
		u.clear()
		return false
	}
	u.pending = true
	return true
}
