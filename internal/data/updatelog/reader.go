package updatelog

import (
	"context"
	"sync"
	"time"
)

// reader assembles entries from one shard's records for one Read.
type reader struct {
	*assembler
	deliver  func(Entry) error
	caughtUp func(Position)

	mu          sync.Mutex // guards the assembler and the fields below; held during callbacks
	idle        *time.Timer
	reported    Position // last argument of caughtUp
	hasCaughtUp bool     // caughtUp was called
}

func (r *reader) run(ctx context.Context, s store) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	r.idle = time.AfterFunc(MaxSpan, func() { r.onIdle(ctx, s) })
	r.mu.Unlock()
	defer r.stop()
	return s.read(ctx, r.shard, r.next, r.record, r.atEnd)
}

func (r *reader) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle.Stop()
	r.hasCaughtUp = false
}

func (r *reader) record(at Position, stored time.Time, b []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries, err := r.add(at, stored, b)
	if err != nil {
		return err
	}
	r.idle.Reset(MaxSpan)
	for _, e := range entries {
		if err := r.deliver(e); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) atEnd() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hasCaughtUp = true
	r.reportCaughtUp()
}

// onIdle is called when no record has arrived for MaxSpan. If the log has no new record either, the open groups will
// never be completed.
func (r *reader) onIdle(ctx context.Context, s store) {
	_, next, err := s.extent(ctx, r.shard) // waits while the log is unavailable
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || ctx.Err() != nil {
		return // the read has ended
	}
	if !r.hasCaughtUp || next != r.next { // more records will arrive
		r.idle.Reset(MaxSpan)
		return
	}
	clear(r.open)
	if r.resume() != r.reported {
		r.reportCaughtUp()
	}
}

func (r *reader) reportCaughtUp() {
	r.reported = r.resume()
	r.caughtUp(r.reported)
}
