package worker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// TestNoDriver checks that a program without a driver for the job's store is rejected immediately. The error names the
// store and the package to import. (No test of this package imports the S3 driver.)
func TestNoDriver(t *testing.T) {
	n := transport.NewMemory(1, transport.MemoryOptions{}).Host("coordinator")
	l, err := n.Listen("coordinator/1")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if _, err := transport.ReceiveHello(conn, time.Minute, wire.Keys{}); err == nil {
			w := wire.Welcome{Job: testcluster.Job("asp", "none", 1, 1, 1), Incarnation: 1, Store: "s3://bucket/prefix"}
			_ = conn.Send(wire.Control(wire.KindWelcome, w))
		}
	}()
	_, err = worker.Dial(hooks.NewContext(t.Context(), hooks.Worker{Network: n}),
		worker.Config{Coordinator: "coordinator/1", Process: "p"})
	if !errors.Is(err, perdure.ErrUsage) || !errors.Is(err, store.ErrNoDriver) {
		t.Errorf("joining gives %v", err)
	}
}
