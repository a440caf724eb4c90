package coordinator

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// maxUnread is the maximum weight of one connection's messages that are waiting for the loop, so that no connection
	// can fill the inbox alone. minWeight is the minimum weight of a message, which limits a connection to 64 messages.
	maxUnread = 8 << 20
	minWeight = maxUnread / 64
)

// unreadLimit limits the messages of one connection that the loop has not read. The receiving goroutine waits while the
// limit is reached.
type unreadLimit struct {
	capacity *semaphore.Weighted
	messages atomic.Int32
}

func newUnreadLimit() *unreadLimit { return &unreadLimit{capacity: semaphore.NewWeighted(maxUnread)} }

// weight returns the weight of a message.
func (u *unreadLimit) weight(f *wire.Frame) int64 { return max(minWeight, int64(f.PayloadBytes())) }

// put counts a received message as soon as the limit permits.
func (u *unreadLimit) put(ctx context.Context, weight int64) error {
	if err := u.capacity.Acquire(ctx, weight); err != nil {
		return err
	}
	u.messages.Add(1)
	return nil
}

// take counts a message as read by the loop.
func (u *unreadLimit) take(weight int64) {
	u.messages.Add(-1)
	u.capacity.Release(weight)
}
