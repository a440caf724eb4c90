package updatelog

import (
	"context"
	"sync"
	"time"
)

// reader makes entries of one shard's records for one Read.
type reader struct {
	*assembler
	deliver  func(Entry) error
	caughtUp func(Position)

	mu   sync.Mutex // guards the assembler, and is held during the callbacks
	idle *time.Timer
	told Position // the last that caughtUp was called with
	up   bool     // it was called
}

func (r *reader) run(ctx context.Context, s store) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	r.idle = time.AfterFunc(MaxSpan, func() { r.quiet(ctx, s) })
	r.mu.Unlock()
	defer r.stop()
	return s.read(ctx, r.shard, r.next, r.record, r.atEnd)
}

func (r *reader) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle.Stop()
	r.up = false
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
	r.up = true
	r.tell()
}

// quiet is called when nothing has come for MaxSpan. If nothing is there either,
// what is open never becomes whole.
func (r *reader) quiet(ctx context.Context, s store) {
	_, next, err := s.extent(ctx, r.shard) // waits while the log is away
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || ctx.Err() != nil {
		return // the reading is over
	}
	if !r.up || next != r.next { // something is on its way
		r.idle.Reset(MaxSpan)
		return
	}
	clear(r.open)
	if r.resume() != r.told {
		r.tell()
	}
}

func (r *reader) tell() {
	r.told = r.resume()
	r.caughtUp(r.told)
}
