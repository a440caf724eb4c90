//go:build linux

package agent

import (
	"context"
	"io"
	"sync/atomic"
)

// stateStream passes a state from the program to the job's store in pieces, so that no copy of the whole state exists.
// If the store fails, the program sends the pieces again.
type stateStream struct {
	size   int64
	pieces chan *statePiece
	last   atomic.Pointer[statePiece] // written, but the state is not stored yet
	failed chan error                 // the program cannot read its state; of capacity 1
	ended  chan struct{}              // closed when the state is stored, or is not needed
	err    error                      // why a copy could not be stored; read only after ended
}

func newStateStream(size int64) *stateStream {
	return &stateStream{
		size: size, pieces: make(chan *statePiece), failed: make(chan error, 1), ended: make(chan struct{}),
	}
}

// statePiece is a piece of the state in memory that the program shares.
type statePiece struct {
	at    int64
	bytes []byte
	read  chan struct{} // closed when bytes is no longer used
	next  chan int64    // receives the position of the piece to send next; of capacity 1
}

// write writes the program's pieces. A second call, after a failed attempt, requests them from the start.
func (s *stateStream) write(ctx context.Context, w io.Writer) error {
	if p := s.last.Swap(nil); p != nil {
		p.next <- 0
	}
	for at := int64(0); at < s.size; {
		var p *statePiece
		select {
		case p = <-s.pieces:
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		if p.at != at {
			close(p.read)
			p.next <- at
			continue
		}
		_, err := w.Write(p.bytes)
		at += int64(len(p.bytes))
		if err == nil && at == s.size {
			s.last.Store(p)
		}
		close(p.read)
		switch {
		case err != nil:
			p.next <- 0
			return err
		case at < s.size:
			p.next <- at
		}
	}
	return nil
}

// statePiece passes a piece to the store. It replies with the position of the piece to send next: 0 after a failure of
// the store, the state's size when no more pieces are needed. Clock reports whether the state was stored. A piece of no
// bytes has the reason why the program cannot read its state.
func (a *Agent) statePiece(ctx context.Context, r *request) reply {
	s := a.sending(r.args[3])
	if s != nil && r.args[2] == 0 {
		select {
		case s.failed <- usageErrorf("the program cannot read its state: %s", r.text):
		default:
		}
		return answer(nil, s.size)
	}
	b, done, err := a.arena.acquire(r.args[0], r.args[2], 1)
	if err != nil {
		return failed(err)
	}
	defer done()
	if at := r.args[1]; s == nil || at < 0 || len(b) == 0 || at > s.size-int64(len(b)) {
		return failed(usageErrorf("a piece of %d bytes at position %d extends past the end of the state", len(b), at))
	}
	return s.pass(ctx, &statePiece{
		at: r.args[1], bytes: b, read: make(chan struct{}), next: make(chan int64, 1),
	})
}

// sending returns the state of a kind that the program sends, or nil.
func (a *Agent) sending(kind int64) *stateStream {
	a.mu.Lock()
	defer a.mu.Unlock()
	if kind == streamsDraft {
		return a.draft
	}
	return a.stream
}

// pass passes a piece to the store and returns the reply.
func (s *stateStream) pass(ctx context.Context, p *statePiece) reply {
	select {
	case s.pieces <- p:
		<-p.read // until then the program must not reuse the memory, even if it cancels the call
	case <-s.ended:
		return answer(nil, s.size)
	case <-ctx.Done():
		return failed(ctx.Err())
	}
	select {
	case next := <-p.next:
		return answer(nil, next)
	case <-s.ended:
		return answer(nil, s.size)
	case <-ctx.Done():
		return failed(ctx.Err())
	}
}
