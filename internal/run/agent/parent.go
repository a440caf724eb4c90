//go:build linux

package agent

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
)

// WithParent returns a context that ends when this process's parent has ended. The end of a socket would not be
// sufficient, since processes forked by the parent, for example to load data, keep it open.
func WithParent(ctx context.Context) (of context.Context, parent int, err error) {
	parent = os.Getppid()
	fd, err := unix.PidfdOpen(parent, unix.PIDFD_NONBLOCK)
	if err != nil {
		return ctx, parent, perdure.Usagef("cannot watch the parent process: %w", err)
	}
	watch := os.NewFile(uintptr(fd), "parent")
	raw, err := watch.SyscallConn()
	if err != nil {
		return ctx, parent, err
	}
	of, end := context.WithCancel(ctx)
	context.AfterFunc(of, func() { _ = watch.Close() }) // ends the goroutine
	go func() {
		defer end()
		_ = raw.Read(func(fd uintptr) bool { // readable when the process has ended
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
	}()
	if os.Getppid() != parent { // it ended before it was watched
		end()
	}
	return of, parent, nil
}
