package replica

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/scar"
)

// Effects collects the actions that the shell must carry out for a replica. The shell does so in the order of the
// fields and before it releases the replica's lock, so the rows are still as they were when the effects were decided.
// Clear keeps the slices for reuse, so that an update or a read allocates no memory for its effects.
type Effects struct {
	// FreeBodies is the memory of update bodies that are no longer needed. It comes first, and the shell may take it
	// even earlier, because the next update is received into it.
	FreeBodies [][]byte

	// Reopen lists readers whose last message came after a gap: an earlier one is missing. They open the shard again,
	// so everything else that they are sent must come after this notice.
	Reopen []*Reader

	// Torn lists updates that no correct sender produces. Their connections are closed. They come early, so that
	// nothing below is sent on those connections in vain.
	Torn []Torn

	// Advanced reports that MinClock has advanced and that rows will be pushed because of it. The shell notes the time,
	// which the following pushes carry.
	Advanced bool

	// Pushes lists the slots that changed rows must be pushed to. Pushes come before the acknowledgements on the same
	// connections, so that an acknowledged update is already visible. They also come before the answers, so that no
	// answer is older than the rows that its reader was pushed.
	Pushes []perdure.Slot

	// Saves lists the cuts to write. If the shard continues during the write, the image was taken when the shard left
	// the cut, before any later update was applied; Saves can therefore come at this point. If the shard is paused at
	// the cut, its rows do not change until the cut is saved.
	Saves []Save

	// NothingToSave reports that a round which is not scheduled by clocks had nothing to save. The shell must delay
	// AllowRound as if the round had been written.
	NothingToSave bool

	// Dropped lists waiting reads that will not be answered because the shard or the connection has been replaced. The
	// readers send them again.
	Dropped []Read

	// Answers lists reads that waited and can now be answered. If an acknowledgement to the same reader is pending, it
	// is sent in the same batch.
	Answers []Answer

	// Opened lists readers whose Open is answered: everything received before it is applied. They come before the
	// acknowledgements, because a reader accepts none until its Open is answered.
	Opened []Opened

	// Acks lists the slots to send their counts to. They are sent last to each worker, because an acknowledgement lets
	// the worker discard its copy. AcksPending reports that further acknowledgements are pending that no worker waits
	// for. The shell sends them soon, together with other messages.
	Acks        []Ack
	AcksPending bool

	// ControlEntries must be appended to the log, by its head. Only Propose produces them. They may be appended as soon
	// as Propose returns, because they take effect only when the log returns them as entries.
	ControlEntries []ControlEntry

	// Sync reports that the other members of a periodic chain must be brought up to date with this one. It starts a new
	// round of the log, so everything that belongs to the current round must come before it.
	Sync bool

	// ReportStatus reports that the coordinator must be sent a status. The coordinator may act on it immediately, so
	// all of the above must be under way first.
	ReportStatus bool

	// Fail stops the server, which would otherwise continue without an update that other replicas have applied.
	Fail error
}

// Clear empties the effects after they are carried out, and drops the references that they hold.
func (fx *Effects) Clear() {
	fx.FreeBodies, fx.Reopen, fx.Torn = emptied(fx.FreeBodies), emptied(fx.Reopen), emptied(fx.Torn)
	fx.Pushes, fx.Saves, fx.Dropped = fx.Pushes[:0], emptied(fx.Saves), emptied(fx.Dropped)
	fx.Answers, fx.Opened, fx.Acks = emptied(fx.Answers), emptied(fx.Opened), emptied(fx.Acks)
	fx.ControlEntries = emptied(fx.ControlEntries)
	fx.Advanced, fx.NothingToSave, fx.AcksPending = false, false, false
	fx.Sync, fx.ReportStatus, fx.Fail = false, false, nil
}

func emptied[T any](s []T) []T {
	clear(s)
	return s[:0]
}

// fail records why the server must stop. Only the first reason is kept.
func (fx *Effects) fail(format string, args ...any) {
	if fx.Fail == nil {
		fx.Fail = fmt.Errorf(format, args...)
	}
}

// Torn is an update of several clocks that could be applied only in part. It is rejected as a whole.
type Torn struct {
	From   *Reader // nil if the update was read from a log
	Reason string
}

// Save is a cut to be written.
type Save struct {
	Cut perdure.Clock
	// Image is what to write if the shard continues during the write. It is nil if the shard is paused at the cut: its
	// rows are then written as they are, and do not change until the cut is saved.
	Image *Image
	// Rows is the ledger's choice if Image holds only some of the rows, saved separately. It is nil for a cut.
	Rows   *scar.Choice
	ledger *scar.Ledger // the ledger that made the choice
}

// Answer is a read to be answered with the current rows.
type Answer struct {
	Read
	Ack bool  // the acknowledgement of its reader's slot goes with the answer
	Err error // the read cannot be answered, and its connection must be closed
}

// Opened is a reader to be sent its slot's counts.
type Opened struct {
	Reader *Reader
	// Replaces is the connection on which the same process has read so far. It is broken, but this has not been
	// detected yet. The shell closes it, because the process would otherwise wait there for messages that are sent to
	// Reader. It is nil otherwise.
	Replaces *Reader
}

// Ack is an acknowledgement: it sends a slot its counts.
type Ack struct {
	Reader *Reader
	// Prompt reports that the acknowledgement must be sent immediately. Otherwise the slot's updates are staged here up
	// to clock Staged, and the shell sends it once that holds on all shards that use the connection.
	Prompt bool
	Staged perdure.Clock
}
