package server

import (
	"context"
	"sync"
)

// turnRoom is what snapshots to one server may take side by side, and leastTurn what
// each counts at least. So small ones need not wait for each other's answers, which a
// busy machine makes slow, and no more is on its way than one piece of a large one.
const (
	turnRoom  = snapshotPiece
	leastTurn = turnRoom / 32
)

// turns says whose turn it is to be copied to a server: of those that wait, who came first.
type turns struct {
	mu      sync.Mutex
	taken   int64
	waiting []*turn
}

type turn struct {
	bytes int64
	come  chan struct{} // closed when it is there
}

// take waits for the turn of so many bytes. It is over with give.
func (t *turns) take(ctx context.Context, bytes int64) (*turn, error) {
	mine := &turn{min(max(bytes, leastTurn), turnRoom), make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, mine)
	t.next()
	t.mu.Unlock()
	select {
	case <-mine.come:
		return mine, nil
	case <-ctx.Done():
		return nil, ctx.Err() // nobody is to be copied any more
	}
}

func (t *turns) give(mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken -= mine.bytes
	t.next()
}

// next lets go whom there is room for. It needs t.mu.
func (t *turns) next() {
	for len(t.waiting) > 0 && t.taken+t.waiting[0].bytes <= turnRoom {
		t.taken += t.waiting[0].bytes
		close(t.waiting[0].come)
		t.waiting = t.waiting[1:]
	}
}
