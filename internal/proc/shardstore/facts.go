package shardstore

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// ownFacts are what the heads of a shard say in its stream. The first of an epoch is a Life: from
// there on, facts of earlier epochs count for nobody, whoever appends them late. They are
// numbered, and one follows another only when the log has that: an append that was repeated
// counts once. The zero Facts is of a stream in which nothing was read.
type ownFacts struct {
	life  replica.Life  // the newest that has begun in the stream, and its facts that are in the state
	begun perdure.Epoch // the newest whose Life this server was to append
	asked uint64        // how many of its facts this server was to append
	queue []wire.Frame  // of these, those that the log does not have
}

// Life is how far facts are in the state.
func (q *ownFacts) Life() replica.Life { return q.life }

// Restore says how far facts are in a state that was read from a file.
func (q *ownFacts) Restore(life replica.Life) { q.life = life }

// Begins reports whether an epoch is one that this server has not begun yet, and begins it:
// what it had to append in earlier ones is forgotten.
func (q *ownFacts) Begins(epoch perdure.Epoch) bool {
	if q.begun >= epoch {
		return false
	}
	q.begun, q.asked, q.queue = epoch, 0, nil
	return true
}

// Add has a fact of an epoch appended, after those before it.
func (q *ownFacts) Add(f wire.Frame, epoch perdure.Epoch) {
	f.Epoch, f.Request = epoch, q.asked
	q.asked++
	q.queue = append(q.queue, f)
}

// Next returns the fact that is to be appended next, if there is one.
func (q *ownFacts) Next() (f wire.Frame, ok bool) {
	if len(q.queue) == 0 {
		return f, false
	}
	return q.queue[0], true
}

// Appended says that the log has a fact that Next gave. Another epoch may have begun since.
func (q *ownFacts) Appended(f *wire.Frame) {
	if len(q.queue) > 0 && q.queue[0].Epoch == f.Epoch && q.queue[0].Request == f.Request {
		q.queue = q.queue[1:]
	}
}

// Take takes a fact that was read from the stream, and reports whether the shard is to take it:
// not if it is of a head that was succeeded, or was appended twice. all: for a negative
// control, facts of whatever epoch count.
func (q *ownFacts) Take(f *wire.Frame, all bool) bool {
	switch {
	case all && f.Kind != wire.KindLife:
	case f.Epoch < q.life.Epoch, f.Epoch == q.life.Epoch && f.Request <= q.life.Facts:
		return false
	case f.Kind == wire.KindLife:
		q.life = replica.Life{Epoch: f.Epoch}
		return false
	case f.Epoch > q.life.Epoch:
		return false
	}
	q.life.Facts = f.Request
	return true
}
