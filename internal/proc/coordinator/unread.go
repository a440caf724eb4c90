package coordinator

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// mostUnread is how many bytes of one connection's messages wait for the loop, so that nobody fills its inbox
	// alone. leastUnread is what a message counts at least, so that there are no more than 64.
	mostUnread  = 8 << 20
	leastUnread = mostUnread / 64
)

// unread is what has come on a connection and the loop has not read. The reader waits while it is full.
type unread struct {
	room     *semaphore.Weighted
	messages atomic.Int32
}

func newUnread() *unread { return &unread{room: semaphore.NewWeighted(mostUnread)} }

// weight is what a message counts.
func (u *unread) weight(f *wire.Frame) int64 { return max(leastUnread, int64(f.PayloadBytes())) }

// put counts a message that has come, once there is room for it.
func (u *unread) put(ctx context.Context, weight int64) error {
	if err := u.room.Acquire(ctx, weight); err != nil {
		return err
	}
	u.messages.Add(1)
	return nil
}

// take counts a message that the loop reads.
func (u *unread) take(weight int64) {
	u.messages.Add(-1)
	u.room.Release(weight)
}
