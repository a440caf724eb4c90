package transport

import (
	"context"
	"errors"
	"log/slog"
	"syscall"
	"time"
)

// acceptPause is how long a process with too many open files waits before it accepts again.
const acceptPause = 100 * time.Millisecond

// AcceptAll passes a listener's connections to serve, which must not block. If too many files are open, it logs that
// and retries. It returns nil when ctx ends, and otherwise the error that prevents accepting.
func AcceptAll(ctx context.Context, l Listener, log *slog.Logger, serve func(Conn)) error {
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			serve(c)
			continue
		case ctx.Err() != nil:
			return nil
		case !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE):
			return err
		}
		log.Warn("cannot accept connections now", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(acceptPause): // other connections may have closed
		}
	}
}
