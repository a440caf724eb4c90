package worker_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

var (
	showLog = flag.Bool("worker.log", false, "show what the processes log")
	seed    = flag.Uint64("worker.seed", 1, "of networks and of what is drawn")
)

const coordinatorAddr = testcluster.CoordinatorAddr

// cluster is a small job in one process, in virtual time.
type cluster struct {
	*testing.T
	*testcluster.Hosts
	ctx  context.Context
	job  perdure.JobSpec
	slow func(updatelog.Log) updatelog.Log // wraps the log from which servers read; nil: unchanged
	// servers create no file until it is closed; nil: no restriction
	unwritten chan struct{}
	// time that a server takes to write a push, in nanoseconds
	landing atomic.Int64
	around  func(host string, n transport.Network) transport.Network // wraps a server's network; nil: unchanged
}

// inCluster runs a test in a cluster of 2 servers and 4 shards.
func inCluster(t *testing.T, model, recovery string, slots int, clocks perdure.Clock, test func(c *cluster)) {
	t.Helper()
	inClusterOf(t, transport.MemoryOptions{}, nil, model, recovery, slots, clocks, test)
}

// inClusterOf is inCluster with network options. around wraps a server's network.
func inClusterOf(
	t *testing.T, like transport.MemoryOptions, around func(string, transport.Network) transport.Network, model,
	recovery string, slots int, clocks perdure.Clock, test func(c *cluster),
) {
	t.Helper()
	inJob(t, like, around, jobOf(model, recovery, slots, clocks), test)
}

// jobOf returns a job with 2 servers and 4 shards.
func jobOf(model, recovery string, slots int, clocks perdure.Clock) perdure.JobSpec {
	job := testcluster.Job(model, recovery, slots, 2, 4)
	job.Seed, job.Clocks = *seed, clocks
	return job
}

// hosts returns the options of the hosts in tests.
func hosts(like transport.MemoryOptions) testcluster.Options {
	o := testcluster.Options{Seed: *seed, Network: like}
	if *showLog {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return o
}

// inJob is inClusterOf for a given job.
func inJob(
	t *testing.T, like transport.MemoryOptions, around func(string, transport.Network) transport.Network,
	job perdure.JobSpec, test func(c *cluster),
) {
	t.Helper()
	o := hosts(like)
	if job.ID == guardedJob {
		o.Keys = wire.Keys{Job: "the job's", Servers: "the servers'"}
	}
	testcluster.RunVirtual(t, time.Minute, o, func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
		c := &cluster{T: t, Hosts: h, ctx: ctx, job: job, around: around}
		c.start(testcluster.CoordinatorHost)
		for i := range job.Servers {
			c.start(fmt.Sprintf("server:%d", i))
		}
		test(c)
	})
}

// start starts a process of a host.
func (c *cluster) start(host string) {
	c.Helper()
	if host == testcluster.CoordinatorHost {
		if _, err := c.StartCoordinator(c.job); err != nil {
			c.Fatal(err)
		}
		return
	}
	unwritten := c.unwritten // a copy, because the test may change it
	c.StartServer(host, func(cfg *server.Config) {
		if c.around != nil {
			cfg.Network = c.around(host, cfg.Network)
		}
		cfg.Network = slowWriter{cfg.Network, &c.landing}
		cfg.Store = lateStore{cfg.Store, unwritten}
		if open := cfg.OpenLog; c.slow != nil {
			cfg.OpenLog = func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error) {
				l, err := open(ctx, addr, o)
				if err == nil {
					l = c.slow(l)
				}
				return l, err
			}
		}
	})
}

// lateStore is a store whose Put waits until a channel is closed, if there is one.
type lateStore struct {
	store.Store
	from <-chan struct{}
}

func (s lateStore) Put(name string, write func(io.Writer) error) error {
	if s.from != nil {
		<-s.from
	}
	return s.Store.Put(name, write)
}

// dial joins as a worker from the given host.
func (c *cluster) dial(host string, slot perdure.Slot, with ...func(*testcluster.DialConfig)) *worker.Client {
	c.Helper()
	w, err := c.tryDial(host, slot, with...)
	if err != nil {
		c.Fatal(err)
	}
	return w
}

func (c *cluster) tryDial(
	host string,
	slot perdure.Slot,
	with ...func(*testcluster.DialConfig),
) (*worker.Client, error) {
	w, err := c.NewProcess(host).Dial(c.ctx, slot, with...)
	if err == nil {
		c.Cleanup(func() { w.Close() })
	}
	return w, err
}

// workers joins with one client for each slot.
func (c *cluster) workers(with ...func(*testcluster.DialConfig)) []*worker.Client {
	c.Helper()
	clients := make([]*worker.Client, c.job.Slots)
	for i := range clients {
		clients[i] = c.dial(fmt.Sprintf("worker:%d", i), perdure.Slot(i), with...)
	}
	return clients
}

const (
	rows = 11
	dim  = 3
)

// table opens the table used by the tests.
func (c *cluster) table(w *worker.Client, change ...func(*perdure.TableSpec)) *worker.Table {
	c.Helper()
	spec := perdure.TableSpec{Name: "t", Rows: rows, Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
	for _, f := range change {
		f(&spec)
	}
	t, err := w.Table(c.ctx, spec)
	if err != nil {
		c.Fatal(err)
	}
	return t
}

func (c *cluster) tables(ws []*worker.Client) []*worker.Table {
	c.Helper()
	ts := make([]*worker.Table, len(ws))
	for i, w := range ws {
		ts[i] = c.table(w)
	}
	return ts
}

// clock ends a clock and checks the next one.
func (c *cluster) clock(w *worker.Client, want perdure.Clock) {
	c.Helper()
	if got, err := w.Clock(c.ctx); err != nil || got != want {
		c.Fatalf("slot %d: Clock gave %d, %v; want %d", w.Slot(), got, err, want)
	}
}

// inc adds v to every value of all rows.
func (c *cluster) inc(t *worker.Table, v float32) {
	c.Helper()
	delta := make([]float32, rows*dim)
	for i := range delta {
		delta[i] = v
	}
	if err := t.IncRun(0, delta); err != nil {
		c.Fatal(err)
	}
}

// get reads all rows, whose values must all be equal.
func (c *cluster) get(t *worker.Table) float32 {
	c.Helper()
	got := make([]float32, rows*dim)
	if err := t.GetRun(c.ctx, 0, got); err != nil {
		c.Fatal(err)
	}
	for _, v := range got {
		if v != got[0] {
			c.Fatalf("a clock was torn: %v", got)
		}
	}
	return got[0]
}

// within returns a context with a timeout.
func (c *cluster) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(c.ctx, d)
	c.Cleanup(cancel)
	return ctx
}

// pass lets virtual time pass.
func (c *cluster) pass(d time.Duration) { <-time.After(d) }

// go1 runs f concurrently and returns a channel for its result.
func go1[T any](f func() T) chan T {
	out := make(chan T, 1)
	go func() { out <- f() }()
	return out
}

// both runs f for all slots concurrently and waits for them.
func both(n int, f func(slot int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}
