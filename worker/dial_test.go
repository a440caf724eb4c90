package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// TestDialIsHeard checks that a worker that the coordinator asks to wait does so beyond its patience. If that
// coordinator dies, the worker looks for another for as long again. Without any answer it gives up in time.
func TestDialIsHeard(t *testing.T) {
	const patience, waits = 10 * time.Second, 2 * time.Minute
	for _, sent := range []bool{true, false} {
		testcluster.RunVirtual(
			t,
			time.Hour,
			testcluster.Options{},
			func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
				var lives atomic.Int32
				h.Listen(coordinatorAddr, func(c transport.Conn, _ wire.Hello) {
					switch {
					case !sent:
						var f wire.Frame
						_ = c.Recv(&f) // until the worker gives up
					case lives.Add(1) == 1:
						received, end := context.WithTimeout(ctx, waits)
						defer end()
						transport.ConfirmHello(received, c) // the coordinator dies
					default:
						_ = transport.Refuse(c, wire.Refusal{Reason: "enough"}) // the worker receives it
						var f wire.Frame
						_ = c.Recv(&f)
					}
				})
				began := time.Now()
				setTimeout := func(cfg *testcluster.DialConfig) { cfg.JoinTimeout = patience }
				_, err := h.NewProcess("worker").Dial(ctx, perdure.NoSlot, setTimeout)
				took := time.Since(began)
				if sent && (!errors.Is(err, perdure.ErrRefused) || !strings.Contains(err.Error(), "enough") ||
					took < waits) {
					t.Errorf("told that it was heard, it ends after %v: %v", took, err)
				}
				if !sent && (err == nil || took < patience || took > 2*patience) {
					t.Errorf("told nothing, it ends after %v: %v", took, err)
				}
			},
		)
	}
}

// TestAnyFreeSlot checks that programs without a slot number share the slots of a job. A program with a slot number,
// even 0, gets that slot or is rejected.
func TestAnyFreeSlot(t *testing.T) {
	inCluster(t, "bsp", "none", 3, 1, func(c *cluster) {
		dial := func(slot perdure.Slot) (perdure.Slot, error) {
			w, err := c.NewProcess("worker").Dial(c.ctx, 0, func(cfg *testcluster.DialConfig) {
				cfg.Slot, cfg.JoinTimeout = slot, time.Second
			})
			if err != nil {
				return 0, err
			}
			c.Cleanup(func() { w.Close() })
			return w.Slot(), nil
		}
		var none worker.Config
		for i, asked := range []struct{ slot, want perdure.Slot }{{1, 1}, {none.Slot, 0}, {none.Slot, 2}} {
			if got, err := dial(asked.slot); err != nil || got != asked.want {
				t.Errorf("the %d-th program has slot %d, %v; want %d", i, got, err, asked.want)
			}
		}
		if got, err := dial(perdure.SlotZero); err == nil || !strings.Contains(err.Error(), "runs as worker:0") {
			t.Errorf("a program that asks for slot 0, which is taken, has %d, %v", got, err)
		}
	})
}
