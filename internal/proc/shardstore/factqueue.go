package shardstore

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// factQueue are the facts that the heads of a shard append to the update log. The first fact of an epoch is a Life.
// After it, facts of earlier epochs are ignored, even if they are appended later. Facts are numbered, and the next one
// is appended only once the log has the previous one, so that a repeated append counts once. The zero factQueue is for
// a log from which nothing was read.
type factQueue struct {
	life  replica.LogProgress // the newest Life in the log, and the number of its facts in the state
	epoch perdure.Epoch       // the newest epoch whose Life this server had to append
	added uint64              // number of facts of that epoch that this server had to append
	queue []wire.Frame        // the facts that are not in the log yet
}

// Life returns which facts are in the state.
func (q *factQueue) Life() replica.LogProgress { return q.life }

// Restore sets which facts are in a state that was read from a file.
func (q *factQueue) Restore(life replica.LogProgress) { q.life = life }

// StartEpoch starts an epoch and reports whether it is new to this server. Pending facts of earlier epochs are dropped.
func (q *factQueue) StartEpoch(epoch perdure.Epoch) bool {
	if q.epoch >= epoch {
		return false
	}
	q.epoch, q.added, q.queue = epoch, 0, nil
	return true
}

// Add queues a fact of an epoch after the previous ones.
func (q *factQueue) Add(f wire.Frame, epoch perdure.Epoch) {
	f.Epoch, f.Request = epoch, q.added
	q.added++
	q.queue = append(q.queue, f)
}

// Next returns the next fact to append, if there is one.
func (q *factQueue) Next() (f wire.Frame, ok bool) {
	if len(q.queue) == 0 {
		return f, false
	}
	return q.queue[0], true
}

// Appended removes a fact returned by Next that is now in the log. A newer epoch may have started in the meantime.
func (q *factQueue) Appended(f *wire.Frame) {
	if len(q.queue) > 0 && q.queue[0].Epoch == f.Epoch && q.queue[0].Request == f.Request {
		q.queue = q.queue[1:]
	}
}

// Accept processes a fact read from the log and reports whether it counts. Facts of superseded heads and repeated facts
// do not. If all is true, facts of every epoch count (for a negative control).
func (q *factQueue) Accept(f *wire.Frame, all bool) bool {
	switch {
	case all && f.Kind != wire.KindLife:
	case f.Epoch < q.life.Epoch, f.Epoch == q.life.Epoch && f.Request <= q.life.ControlEntries:
		return false
	case f.Kind == wire.KindLife:
		q.life = replica.LogProgress{Epoch: f.Epoch}
		return false
	case f.Epoch > q.life.Epoch:
		return false
	}
	q.life.ControlEntries = f.Request
	return true
}
