package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/transport"
)

// starved is a listener that has no files for a while.
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

// TestAccept: a coordinator that has too many files open takes connections as soon as it
// has fewer; one that has no listener any more ends, and says why.
func TestAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := transport.NewMemory(1, transport.MemoryOptions{})
		l, err := mem.Host("coordinator").Listen("coordinator/1")
		if err != nil {
			t.Fatal(err)
		}
		begin := membership.Begin(perdure.JobSpec{
			ID: "job", Shards: 1, Slots: 1, Servers: 1, Clocks: 1,
			Consistency: perdure.Consistency{Kind: perdure.BSP}, Recovery: perdure.Recovery{Kind: perdure.RecoverNone},
		}, 1, 0, nil)
		ended := make(chan error, 1)
		go func() {
			ended <- coordinator.Run(t.Context(), coordinator.Config{
				Listener: &starved{l, 3}, Registry: registry.NewMemory(), Begin: &begin,
				Log: slog.New(slog.DiscardHandler),
			})
		}()
		var w wire.Welcome
		await(t, peer(t, mem, wire.Hello{Role: wire.RoleObserver, Process: "observer"}), wire.KindWelcome, &w)
		if w.Job.ID != "job" {
			t.Errorf("welcomed to %+v", w.Job)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil || errors.Is(err, context.Canceled) ||
			!strings.Contains(err.Error(), "coordinator: accept: ") {
			t.Errorf("without its listener it ends with %v", err)
		}
	})
}
