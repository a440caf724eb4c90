package localrun

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestLogPort checks that the port reserved for a job's own log cannot be taken by another process until the
// reservation is released.
func TestLogPort(t *testing.T) {
	s := settings.Run{Reach: settings.Reach{Listen: AnyPort}, Log: &settings.Log{Sync: updatelog.SyncInterval}}
	dir := t.TempDir()
	hold, err := chooseLogAddr(t.Context(), &s, dir, "token")
	must(t, err)
	if url, err := updatelog.ReadURL(settings.LogFolder(dir)); err != nil ||
		url != updatelog.WithToken(s.Job.Log, "token") {
		t.Errorf("the log's process finds %q, %v; want %q", url, err, s.Job.Log)
	}
	alone := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		must(t, c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0)
		}))
		return err
	}}
	if l, err := alone.Listen(t.Context(), "tcp", logAddr(&s)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("another process can listen on %s: %v, %v", logAddr(&s), l, err)
	}
	l, err := net.Listen("tcp", logAddr(&s)) // as the log's process does
	must(t, err)
	must(t, l.Close())
	must(t, hold.Close())
	l, err = alone.Listen(t.Context(), "tcp", logAddr(&s))
	must(t, err)
	must(t, l.Close())
}
