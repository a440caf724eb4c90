package worker

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/core/outbox"
)

// sendBounded sends this clock's updates once vap allows it.
func (l *locked) sendBounded(ctx context.Context) error {
	start := l.outages.waits()
	defer func() {
		l.outages.waited(start)
		l.time.AddBoundWait(time.Since(start))
	}()
	checked := int64(-1)
	err := l.waits.Until(ctx, func() (bool, error) {
		if l.out.Phase() != outbox.Built {
			return true, nil // the clock has ended, or another call has sent its updates
		}
		changes := l.out.TransitChanges()
		if changes == checked || l.view.Pause {
			return false, nil
		}
		checked = changes
		return l.out.MaySend(), nil
	})
	if err != nil || l.out.Phase() != outbox.Built {
		return err
	}
	l.out.Send()
	l.sendUpdates()
	return nil
}
