package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// starved is a listener without file descriptors for a while.
type starved struct {
	transport.Listener
	fails int
}

func (l *starved) Accept() (transport.Conn, error) {
	if l.fails--; l.fails >= 0 {
		return nil, fmt.Errorf("transport: %w", os.NewSyscallError("accept", syscall.EMFILE))
	}
	return l.Listener.Accept()
}

// TestAccept checks that a coordinator with too many open files accepts connections again when it has fewer, and that
// it ends with an error when it loses its listener.
func TestAccept(t *testing.T) {
	var l transport.Listener
	inJob(t, testcluster.Job("bsp", "none", 1, 1, 1), func(t *testing.T, on *lone) {
		var w wire.Welcome
		await(t, peer(t, on.Net, wire.Hello{Role: wire.RoleObserver, Process: "observer"}), wire.KindWelcome, &w)
		if w.Job.ID != "job-1" {
			t.Errorf("welcomed to %+v", w.Job)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := on.process.Wait(); err == nil || errors.Is(err, context.Canceled) ||
			!strings.Contains(err.Error(), "coordinator: accept: ") {
			t.Errorf("it ended with %v after losing its listener", err)
		}
	}, func(cfg *coordinator.Config) { l, cfg.Listener = cfg.Listener, &starved{cfg.Listener, 3} })
}
