package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
)

// ErrDrained ends a server that the coordinator has ordered to drain. It must not be restarted.
var ErrDrained = errors.New("server: drained")

// drain ends a server gracefully. Server.mu guards its fields.
type drain struct {
	s        *Server
	draining bool
	ordered  bool      // by the coordinator, not by the parent process
	deadline time.Time // when the process ends in any case; zero: after the hand-over
}

// remainingMs returns how many milliseconds the server has left; 0 if there is no limit.
func (l *drain) remainingMs(now time.Time) int64 {
	if l.deadline.IsZero() {
		return 0
	}
	return max(1, l.deadline.Sub(now).Milliseconds())
}

// endLocked ends the server. The caller must hold Server.mu.
func (l *drain) endLocked(why string) {
	kind := perdure.ErrStopped
	if l.ordered {
		kind = ErrDrained
	}
	l.s.fail(fmt.Errorf("%w: %s", kind, why))
}

// watch starts the hand-over when the parent process closes Drain.
func (l *drain) watch(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-l.s.cfg.Drain:
		l.start(l.s.cfg.Notice, false)
	}
}

// start starts the hand-over of this server's replicas to others. The process ends when that is done or when the notice
// is over, whichever comes first; a notice of 0 sets no limit. If begin is called again, the earlier deadline applies.
func (l *drain) start(notice time.Duration, ordered bool) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !l.draining {
		s.cfg.Log.Info("handing over all replicas before exiting", "notice", notice)
	}
	l.draining, l.ordered = true, l.ordered || ordered
	if by := time.Now().Add(notice); notice > 0 && (l.deadline.IsZero() || by.Before(l.deadline)) {
		l.deadline = by
		late := time.AfterFunc(notice, l.expire)
		context.AfterFunc(s.ctx, func() { late.Stop() })
	}
	l.endIfEmptyLocked()
	s.notify()
}

// expire ends a server whose notice is over.
func (l *drain) expire() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.cfg.Log.Warn("the notice expired before the handover was complete", "shards", len(l.s.shards))
	l.endLocked("the notice expired")
}

// endIfEmptyLocked ends a draining server once the view assigns no shards to it. The caller must hold Server.mu.
func (l *drain) endIfEmptyLocked() {
	if l.draining && len(l.s.shards) == 0 {
		l.endLocked("other servers have taken over its replicas")
	}
}
