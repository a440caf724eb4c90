package updatelog

import (
	"context"
	"errors"
	"sync"
)

// A log may come back without its last records: its machine failed before they were on disk, or a file was damaged.
// Other producers may have appended as many since, so positions alone do not show the loss. Therefore each producer
// checks, each time the log comes back, whether the last record acknowledged to it still exists. Otherwise it might
// wait forever for its records to be read.

// acked is the last acknowledged group of a lane.
type acked struct {
	at    Position // of its last record; 0: none
	group uint64
}

// backgroundChecks controls the checks that run in the background.
type backgroundChecks struct {
	mu     sync.Mutex
	closed bool
}

// onAvailable is called when the log is available again. It does not block.
func (l *log) onAvailable() {
	l.checks.mu.Lock()
	defer l.checks.mu.Unlock()
	if !l.checks.closed {
		l.running.Go(func() {
			for shard := range l.queues {
				l.checkKept(shard)
			}
		})
	}
}

// stop prevents further checks.
func (k *backgroundChecks) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
}

// checkKept checks that the records acknowledged to this process still exist.
func (l *log) checkKept(shard int) {
	n := &l.queues[shard]
	n.mu.Lock()
	last, over := n.last, n.checkOpen() != nil
	n.mu.Unlock()
	if over || last.at == 0 {
		return
	}
	err := l.checkAcked(l.ctx, shard, last)
	if !isPermanent(err) || errors.Is(err, ErrClosed) {
		return // for example, the log is unavailable again; the next return triggers another check
	}
	n.mu.Lock()
	first := n.failed == nil
	if first {
		n.failed = err
	}
	n.mu.Unlock()
	if first {
		l.OnLost(shard, err)
	}
}

// maxLookups is how often a record is looked up, a second apart, that the log does not return although its end is
// further. In a cluster, any server may answer, and that server may lag behind the others.
const maxLookups = 10

// checkAcked returns a permanent error if an acknowledged group of this process is missing and was not trimmed.
func (l *log) checkAcked(ctx context.Context, shard int, last acked) error {
	for looks := 1; ; looks++ {
		b, err := l.store.record(ctx, shard, last.at)
		if err != nil {
			return err
		}
		if h, _, err := decode(b); err == nil && h.Producer == l.producer && h.Group == last.group {
			return nil
		}
		first, next, err := l.store.extent(ctx, shard)
		if err != nil {
			return err
		}
		missing := b == nil && last.at < next // neither truncated nor replaced
		switch {
		case first > last.at && b == nil:
			return nil // trimmed
		case missing && looks >= maxLookups || !missing && looks > 1:
			return lostRecordsError(l.Job, shard, min(next, last.at))
		}
		if err := sleep(ctx, diagnoseTimeout); err != nil { // a cluster's new leader may not know of all records yet
			return err
		}
	}
}
