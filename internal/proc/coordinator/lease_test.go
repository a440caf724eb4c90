package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/proc/transport"
)

func config(t *testing.T, network *transport.Memory, host string, reg registry.Registry) Config {
	t.Helper()
	l, err := network.Host(host).Listen(host + "/0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	begin := membership.Begin(perdure.JobSpec{
		ID: "job", Shards: 1, Slots: 1, Servers: 1, Clocks: 1,
		Consistency: perdure.Consistency{Kind: perdure.BSP}, Recovery: perdure.Recovery{Kind: perdure.RecoverNone},
	}, 1, 0, nil)
	return Config{Listener: l, Registry: reg, Begin: &begin, Log: slog.New(slog.DiscardHandler)}
}

// TestLease: of two coordinators on one registry the second does not begin, and
// says who is there; one whose lease is taken away ends by itself, having saved
// nothing after that; then another can go on.
func TestLease(t *testing.T) {
	network, first := transport.NewMemory(1, transport.MemoryOptions{}), registry.NewMemory()
	c, err := New(t.Context(), config(t, network, "first", first))
	if err != nil {
		t.Fatal(err)
	}
	second := config(t, network, "second", first.Another())
	_, err = New(t.Context(), second)
	if !errors.Is(err, registry.ErrHeld) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d on ", os.Getpid())) {
		t.Errorf("a second coordinator gets %v", err)
	}

	ended := make(chan error)
	go func() { ended <- c.Run(t.Context()) }()
	if err := c.Ask(t.Context(), func(*membership.Core, Latest) {}); err != nil {
		t.Fatal(err) // it runs
	}
	first.Expire()
	if err := <-ended; !errors.Is(err, registry.ErrLost) {
		t.Errorf("without its lease it ends with %v", err)
	}
	if err := c.save(t.Context(), c.core.Facts()); !errors.Is(err, registry.ErrLost) {
		t.Errorf("without its lease it saves: %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	c, err = New(ctx, second)
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- c.Run(ctx) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the second ends with %v", err)
	}
}
