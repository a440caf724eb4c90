package transport

import (
	"context"
	"errors"
	"log/slog"
	"syscall"
	"time"
)

// acceptPause is how long a process that has too many files open waits for some to be closed.
const acceptPause = 100 * time.Millisecond

// AcceptAll takes a listener's connections and gives each to serve, which returns at once.
// While too many files are open it waits, and says so. It returns nil when ctx ends, and
// otherwise why no connection can be taken any more.
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
		log.Warn("cannot take connections now", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(acceptPause): // others may have gone
		}
	}
}
