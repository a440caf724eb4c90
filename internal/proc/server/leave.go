package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
)

// ErrDrained is how a server ends that the coordinator has ordered to: it is not to be started again.
var ErrDrained = errors.New("server: it was drained")

// leaving is a server's end in order. Server.mu guards what is known of it.
type leaving struct {
	s        *Server
	draining bool
	ordered  bool      // by the coordinator, and not by whoever has started it
	by       time.Time // when the process ends anyway; zero: it stays until others have all
}

// notice is how many milliseconds the server will still be there; 0: as long as it takes.
func (l *leaving) notice(now time.Time) int64 {
	if l.by.IsZero() {
		return 0
	}
	return max(1, l.by.Sub(now).Milliseconds())
}

// end ends the server. It needs Server.mu.
func (l *leaving) end(why string) {
	kind := perdure.ErrStopped
	if l.ordered {
		kind = ErrDrained
	}
	l.s.fail(fmt.Errorf("%w: %s", kind, why))
}

// heed hands over once whoever has started this server tells it to end.
func (l *leaving) heed(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-l.s.cfg.Drain:
		l.begin(l.s.cfg.Notice, false)
	}
}

// begin asks that others take over what is held here, so that this process can end. When the notice is over it ends
// anyway; 0: it takes as long as it takes. Asked again, it ends with the notice that is over first.
func (l *leaving) begin(notice time.Duration, ordered bool) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !l.draining {
		s.cfg.Log.Info("handing over what is held here, to end", "notice", notice)
	}
	l.draining, l.ordered = true, l.ordered || ordered
	if by := time.Now().Add(notice); notice > 0 && (l.by.IsZero() || by.Before(l.by)) {
		l.by = by
		late := time.AfterFunc(notice, l.late)
		context.AfterFunc(s.ctx, func() { late.Stop() })
	}
	l.ifFree()
	s.notify()
}

// late ends a server whose notice is over.
func (l *leaving) late() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.cfg.Log.Warn("the notice is over; others have not taken over all", "shards", len(l.s.shards))
	l.end("the notice is over")
}

// ifFree ends a server that is to end, once the view gives it nothing to hold. It needs Server.mu.
func (l *leaving) ifFree() {
	if l.draining && len(l.s.shards) == 0 {
		l.end("what this server held is on others")
	}
}
