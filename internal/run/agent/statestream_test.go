//go:build linux

package agent

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// failing is a store's writer that fails once it has been given some bytes.
type failing struct {
	bytes.Buffer
	after int // -1: never
}

var errStore = errors.New("store")

func (f *failing) Write(b []byte) (int, error) {
	if f.after >= 0 && f.Len()+len(b) > f.after {
		return 0, errStore
	}
	return f.Buffer.Write(b)
}

// TestStateStream: wherever the store fails, in a piece or after the last one, the program sends the state from the
// start, and the next attempt writes all of it.
func TestStateStream(t *testing.T) {
	state := []byte("0123456789")
	for _, after := range []int{0, 3, 7, len(state)} {
		synctest.Test(t, func(t *testing.T) {
			s := newStateStream(int64(len(state)))
			program := make(chan []int64)
			go func() {
				var asked []int64
				for at := int64(0); at < s.size; {
					p := &statePiece{
						at:    at,
						bytes: state[at:min(at+4, s.size)],
						read:  make(chan struct{}),
						next:  make(chan int64, 1),
					}
					r := s.pass(t.Context(), p)
					at = r.args[0]
					asked = append(asked, at)
				}
				program <- asked
			}()
			first := &failing{after: after}
			if err := s.write(t.Context(), first); (err != nil) != (after < len(state)) {
				t.Errorf("after %d bytes: %v", after, err)
			}
			synctest.Wait()
			second := &failing{after: -1}
			if err := s.write(t.Context(), second); err != nil || second.String() != string(state) {
				t.Errorf("the second attempt: %v, %q", err, second.String())
			}
			close(s.ended)
			if asked := <-program; asked[len(asked)-1] != s.size {
				t.Errorf("asked for %d", asked)
			}
		})
	}
}

// TestStateStreamEnds: a program does not wait for a store that needs the state no longer, and a store not for a
// program that has gone.
func TestStateStreamEnds(t *testing.T) {
	s := newStateStream(1)
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := s.write(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("without a program: %v", err)
	}
	piece := func() *statePiece {
		return &statePiece{bytes: []byte{1}, read: make(chan struct{}), next: make(chan int64, 1)}
	}
	if r := s.pass(ctx, piece()); r.code != codeCancelled {
		t.Errorf("cancelled: code %d", r.code)
	}
	close(s.ended)
	if r := s.pass(t.Context(), piece()); r.code != codeOK || r.args[0] != 1 {
		t.Errorf("after the end: code %d, %d", r.code, r.args[0])
	}
}
