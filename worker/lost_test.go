package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// TestLostSightOfTheJob checks that every call of a worker fails if no process of its job was reachable for long. It
// must not fail while any of them is reachable, even if all are idle.
func TestLostSightOfTheJob(t *testing.T) {
	const patience = 6 * time.Second
	for _, model := range []string{"bsp", "asp"} {
		t.Run(model, func(t *testing.T) {
			inCluster(t, model, "none", 2, 2, func(c *cluster) {
				short := func(cfg *testcluster.DialConfig) { cfg.LostAfter = patience }
				w := c.dial("worker:0", 0, short)
				late := c.dial("worker:1", 1, short) // it does nothing: the other worker waits for it
				never := c.dial("observer", perdure.NoSlot, func(cfg *testcluster.DialConfig) {
					cfg.Observer, cfg.LostAfter = true, worker.NeverLost
				})
				table, others := c.table(w), c.table(late)
				c.clock(w, 1)
				waits := go1(func() error { // under bsp, Get already waits
					if err := table.GetRun(c.ctx, 0, make([]float32, rows*dim)); err != nil {
						return err
					}
					if _, err := w.Clock(c.ctx); err != nil {
						return err
					}
					return w.Finish(c.ctx)
				})
				idle := func(d time.Duration, who string) {
					t.Helper()
					if c.pass(d); len(waits) > 0 {
						t.Fatalf("%s: a call ended: %v", who, <-waits)
					}
				}
				idle(3*patience/2, "all are there")
				c.Kill("server:0")
				c.Kill("server:1")
				idle(3*patience/2, "the coordinator is there")
				c.start("server:1")
				c.start("server:0")
				c.pass(2 * time.Second)
				c.Kill("coordinator")
				c.Kill("server:0")
				idle(3*patience/2, "a server is there")
				if err := table.Inc(0, make([]float32, dim)); err != nil {
					t.Fatal(err)
				}

				begin := time.Now()
				c.Kill("server:1")
				err := <-waits
				if took := time.Since(begin); !errors.Is(err, perdure.ErrLost) || took < patience*3/4 ||
					took > patience*5/4 {
					t.Errorf("after %v: %v", took, err)
				}
				if !strings.Contains(fmt.Sprint(err),
					"coordinator at "+coordinatorAddr+" or any of its 2 servers, since 2") {
					t.Errorf("the error does not say what was lost: %v", err)
				}
				c.pass(patience / 2)
				c.allLost(late, others)
				c.pass(2 * patience)
				if err := never.Settle(c.within(time.Second)); err != nil {
					t.Errorf("a client that waits for ever: %v", err)
				}
			})
		})
	}
}

// allLost checks that all calls of a client return ErrLost.
func (c *cluster) allLost(w *worker.Client, table *worker.Table) {
	c.Helper()
	_, clockErr := w.Clock(c.ctx)
	spec := perdure.TableSpec{Name: "u", Rows: rows, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
	_, tableErr := w.Table(c.ctx, spec)
	getErr := table.GetRun(c.ctx, 0, make([]float32, rows*dim))
	for call, err := range map[string]error{
		"Clock": clockErr, "Table": tableErr, "Get": getErr, "Finish": w.Finish(c.ctx),
	} {
		if !errors.Is(err, perdure.ErrLost) {
			c.Errorf("%s: %v", call, err)
		}
	}
}

// TestHeardIsNotLost checks that a coordinator which has received a worker's hello and cannot answer yet counts as
// reachable.
func TestHeardIsNotLost(t *testing.T) {
	const patience = 6 * time.Second
	inCluster(t, "asp", "none", 1, 1, func(c *cluster) {
		w := c.dial("worker:0", 0, func(cfg *testcluster.DialConfig) { cfg.LostAfter = patience })
		c.table(w)
		c.clock(w, 1)
		c.Kill("server:0")
		c.Kill("server:1")
		c.Kill("coordinator")
		ctx, cancel := context.WithCancel(c.ctx)
		defer cancel()
		l := c.Listen(coordinatorAddr, func(conn transport.Conn, _ wire.Hello) { transport.ConfirmHello(ctx, conn) })
		defer l.Close()
		waits := go1(func() error {
			_, err := w.Table(c.ctx, perdure.TableSpec{
				Name: "u", Rows: rows, Dim: 1,
				Rule: perdure.Rule{Kind: perdure.RuleAdd},
			})
			return err
		})
		if c.pass(3 * patience); len(waits) > 0 {
			t.Fatalf("the coordinator is there, and a call ended: %v", <-waits)
		}
		start := time.Now()
		cancel()
		l.Close()
		if err := <-waits; !errors.Is(err, perdure.ErrLost) || time.Since(start) > patience*5/4 {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// TestCoordinatorStaysAway checks that the log reports an unreachable coordinator while training continues, and reports
// its return.
func TestCoordinatorStaysAway(t *testing.T) {
	inCluster(t, "bsp", "none", 1, 1, func(c *cluster) {
		var log bytes.Buffer
		w := c.dial("worker:0", 0, func(cfg *testcluster.DialConfig) {
			cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		})
		table := c.table(w)
		c.Kill("coordinator")
		c.pass(15 * time.Second)
		c.clock(w, 1)
		if err := table.GetRun(c.ctx, 0, make([]float32, rows*dim)); err != nil {
			t.Errorf("training does not go on without a coordinator: %v", err)
		}
		c.start("coordinator")
		c.pass(5 * time.Second)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		said := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(said) != 2 || !strings.Contains(said[0], "the coordinator does not answer") ||
			!strings.Contains(said[0], "for=10s") || !strings.Contains(said[1], "answers again") {
			t.Errorf("told %q", said)
		}
	})
}
