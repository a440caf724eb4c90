package main

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/data/updatelog"
)

// TestLogPort: the port of a job's own log, which its process is still to take, is nobody
// else's until it is let go.
func TestLogPort(t *testing.T) {
	s := settings{Listen: localAny, Log: &logSettings{Sync: updatelog.SyncInterval}}
	dir := t.TempDir()
	hold, err := s.placeLog(t.Context(), dir, "token")
	must(t, err)
	if url, err := updatelog.ReadURL(logFolder(dir)); err != nil || url != updatelog.Authorized(s.Job.Log, "token") {
		t.Errorf("the log's process finds %q, %v; want %q", url, err, s.Job.Log)
	}
	alone := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		must(t, c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0)
		}))
		return err
	}}
	if l, err := alone.Listen(t.Context(), "tcp", s.logAddr()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%s is somebody else's: %v, %v", s.logAddr(), l, err)
	}
	l, err := net.Listen("tcp", s.logAddr()) // as the log does
	must(t, err)
	must(t, l.Close())
	must(t, hold.Close())
	l, err = alone.Listen(t.Context(), "tcp", s.logAddr())
	must(t, err)
	must(t, l.Close())
}
