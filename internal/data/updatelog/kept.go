package updatelog

import (
	"context"
	"errors"
	"sync"
)

// A log may come back without its end: its machine failed before that was on the disk, or a
// file was damaged. Others may have appended as much since, so that positions tell nothing.
// So whoever has appended looks, each time the log has come back, whether the last that was
// acknowledged of it is there still. Else it might wait for what nobody will ever read.

// acked is the last group of a lane that the log has acknowledged.
type acked struct {
	at    Position // of its last record; 0: there is none
	group uint64
}

// looks are the looks that are under way.
type looks struct {
	mu     sync.Mutex
	closed bool
}

// returned is called when the log has come back. It does not block.
func (l *log) returned() {
	l.looks.mu.Lock()
	defer l.looks.mu.Unlock()
	if !l.looks.closed {
		l.running.Go(func() {
			for shard := range l.lanes {
				l.look(shard)
			}
		})
	}
}

// end lets no look begin any more.
func (k *looks) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
}

// look sees that what the log has acknowledged to this process is there.
func (l *log) look(shard int) {
	n := &l.lanes[shard]
	n.mu.Lock()
	last, over := n.last, n.usable() != nil
	n.mu.Unlock()
	if over || last.at == 0 {
		return
	}
	err := l.keeps(l.ctx, shard, last)
	if !lasting(err) || errors.Is(err, ErrClosed) {
		return // the log is away again, say: it is looked again when it is back
	}
	n.mu.Lock()
	first := n.failed == nil
	if first {
		n.failed = err
	}
	n.mu.Unlock()
	if first {
		l.Lost(shard, err)
	}
}

// mostLooks is how often it is looked for a record, a second apart, that the log does not show
// though it says that it goes further. In a cluster any server may be the one that is asked,
// and may not have heard yet what the others have.
const mostLooks = 10

// keeps returns a lasting error if a group of this process is gone that the log has
// acknowledged, and that nobody has trimmed.
func (l *log) keeps(ctx context.Context, shard int, last acked) error {
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
		missing := b == nil && last.at < next // and not cut off, nor another's
		switch {
		case first > last.at && b == nil:
			return nil // it was trimmed
		case missing && looks >= mostLooks || !missing && looks > 1:
			return lostEnd(l.Job, shard, min(next, last.at))
		}
		if err := sleep(ctx, lookTimeout); err != nil { // a cluster's new leader may not know of all at once
			return err
		}
	}
}
