package replica

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/scar"
)

// Effects are what is to be done because of what a replica was told. They gather until the
// shell carries them out, which it does in the order of the fields and before it lets go of
// the replica: rows are then still as they were when the effect was decided. The slices are
// used again, so that an update or a read costs no memory of its own.
type Effects struct {
	// Spent is memory of updates that nobody needs any more. It comes first, and may come
	// earlier still: the next update is received into it.
	Spent [][]byte

	// Moved are readers of whom something is missing before what they sent. They open the
	// shard anew, so whatever they are told afterwards must come after this.
	Moved []*Reader

	// Torn are updates that no sender keeps the rules with. Their connections end: they come
	// before all that would be sent on these for nothing.
	Torn []Torn

	// Advanced says that MinClock has gone on and rows are to be pushed because of it: the
	// shell notes the time, which the pushes that follow tell.
	Advanced bool

	// Pushes are the slots to whom rows are due that have changed. They come before the
	// acknowledgements, on the same connections: what is acknowledged is shown. They come
	// before the answers, too, so that no answer is older than what its reader was pushed.
	Pushes []perdure.Slot

	// Saves are the cuts to be written. What is written while the shard goes on was taken as
	// an image when the cut was left, before any later update was applied, so that the place
	// here is free. What the shard stands at does not change until it is saved.
	Saves []Save

	// Calm says that a round had nothing to save, where it is not of clocks when the next one
	// comes: AllowRound is called as late as if it had been written.
	Calm bool

	// Dropped are reads that waited and are not answered, because the shard, or their
	// connection, is another one now. Whoever reads asks again.
	Dropped []Read

	// Answers are reads that waited and may now be answered. An acknowledgement that their
	// reader is owed goes with them, in one batch.
	Answers []Answer

	// Opened are readers whose Open is answered: all is applied that was received before it.
	// They come before acknowledgements, since a reader takes none before that answer.
	Opened []Opened

	// Acks are slots to be told how far they have come. They are the last thing that a worker
	// is told: an acknowledgement lets it forget. Later says that more are owed, for which
	// nobody waits: they go with others, soon.
	Acks  []Ack
	Later bool

	// Facts are to be appended to the log, by its head. Propose alone has them, and they may be
	// appended as soon as it returns: they change nothing before they are read back from there.
	Facts []Fact

	// Sync says that the other members of a periodic chain are to be brought up to this one.
	// It begins another round of the log, so all of this one comes before it.
	Sync bool

	// Tell says that the coordinator is to hear a status. It may act on it at once, so all of
	// the above is under way before.
	Tell bool

	// Fail ends the server, which would otherwise go on without what others have applied.
	Fail error
}

// Clear empties the effects once they are carried out, and lets go of what they name.
func (fx *Effects) Clear() {
	fx.Spent, fx.Moved, fx.Torn = emptied(fx.Spent), emptied(fx.Moved), emptied(fx.Torn)
	fx.Pushes, fx.Saves, fx.Dropped = fx.Pushes[:0], emptied(fx.Saves), emptied(fx.Dropped)
	fx.Answers, fx.Opened, fx.Acks = emptied(fx.Answers), emptied(fx.Opened), emptied(fx.Acks)
	fx.Facts = emptied(fx.Facts)
	fx.Advanced, fx.Calm, fx.Later, fx.Sync, fx.Tell, fx.Fail = false, false, false, false, false, nil
}

func emptied[T any](s []T) []T {
	clear(s)
	return s[:0]
}

// fail notes why the server cannot go on; the first reason counts.
func (fx *Effects) fail(format string, args ...any) {
	if fx.Fail == nil {
		fx.Fail = fmt.Errorf(format, args...)
	}
}

// Torn is an update of several clocks of which only some could be applied, so that none is.
type Torn struct {
	From *Reader // nil: it was read from a log
	Why  string
}

// Save is a cut to be written.
type Save struct {
	Cut perdure.Clock
	// Image is what to write while the shard goes on. It is nil where the shard stands at the
	// cut: then its rows are written as they are until it is saved.
	Image *Image
	// Rows says that Image has some of the rows only, each to be saved by itself, and which
	// choice of the ledger that is; nil: it is a cut.
	Rows   *scar.Choice
	ledger *scar.Ledger // whose choice it is
}

// Answer is a read that is to be answered with rows as they are now.
type Answer struct {
	Read
	Ack bool  // its reader is to be told its counts, too
	Err error // it cannot be answered, and its connection ends
}

// Opened is a reader that is told how far its slot has come.
type Opened struct {
	Reader *Reader
	// Replaces is the connection on which the same process has read so far: it broke, and
	// nobody has noticed yet. It is closed, for the process would wait on it for what is told
	// here. nil: there is none.
	Replaces *Reader
}

// Ack tells a slot how far it has come.
type Ack struct {
	Reader *Reader
	// Prompt says that somebody waits for it. Else its update is staged here, and it is sent
	// when that is so on all shards that use the connection: Staged says up to which clock.
	Prompt bool
	Staged perdure.Clock
}
