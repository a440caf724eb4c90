// Package rig runs the processes of a job inside a test: coordinators, servers and workers, the same code as real
// processes run, on a network, a disk and an update log in memory. It is for tests only; of what is no test, only
// package sim imports it. For tests of real processes it has a [LAN], hosts with addresses of their own on this
// machine, and messages that a process must not send.
//
// [Hosts] are what all processes share. A [Process] is one life of one host: its network,
// its disk and its log. Whoever kills it breaks its connections, makes its disk fail from
// then on, and ends its goroutines; its host's next process begins anew. What a test wants
// otherwise it says by functions that change the Config of the process.
//
// All is safe for concurrent use, but for Hosts' fields, which nobody changes once there is
// a process. Who makes Hosts by New waits for them by Wait, when their context has ended.
package rig

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/transport"
)

const (
	// CoordinatorHost is the coordinator's host, CoordinatorAddr where it listens in memory.
	CoordinatorHost = "coordinator"
	CoordinatorAddr = CoordinatorHost + "/1"

	newcomer = "newcomer" // begins the name of a host whose server has no place of its own
)

// Options say what hosts are like.
type Options struct {
	Seed    uint64 // of the network
	Network transport.MemoryOptions
	Sockets *transport.TCP       // the network that all use; nil: one in memory
	Keys    wire.Keys            // what everybody shows; none: nobody asks
	Sync    func() time.Duration // how long syncing a file takes; nil: no time
	Log     *slog.Logger         // nil: nothing is logged
	// Ended is told of each process that ends by itself. nil: in a test it is an error.
	Ended func(p *Process, err error)
}

// Hosts are what the processes of a job share.
type Hosts struct {
	Net  *transport.Memory
	Disk *disk.Memory
	Keys wire.Keys

	o   Options
	ctx context.Context // all processes'
	wg  sync.WaitGroup

	mu          sync.Mutex // guards what follows
	logs        *updatelog.Memory
	lives       int
	processes   map[string]*Process // the newest of each host
	coordinator string              // its address
	leader      *coordinator.Coordinator
}

// New makes hosts whose processes live as long as ctx at most.
func New(ctx context.Context, o Options) *Hosts {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	h := &Hosts{
		Net: transport.NewMemory(o.Seed, o.Network), Disk: disk.NewMemory(), Keys: o.Keys, o: o, ctx: ctx,
		logs: updatelog.NewMemory(), processes: map[string]*Process{}, coordinator: CoordinatorAddr,
	}
	if o.Sockets != nil {
		h.coordinator = anyPort
	}
	return h
}

// For makes hosts for a test. Their processes end with it, or after a while, which is an
// error only of what the test waits for then.
func For(t testing.TB, most time.Duration, o Options) (context.Context, *Hosts) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	if o.Ended == nil {
		o.Ended = func(p *Process, err error) { t.Errorf("%s ended: %v", p.Name, err) }
	}
	h := New(ctx, o)
	t.Cleanup(func() { cancel(); h.Wait() })
	return ctx, h
}

// In runs a test in virtual time, with hosts that live that long at most.
func In(t *testing.T, most time.Duration, o Options, test func(t *testing.T, ctx context.Context, h *Hosts)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, h := For(t, most, o)
		test(t, ctx, h)
	})
}

// Wait waits until all processes have ended, and what Go has begun.
func (h *Hosts) Wait() { h.wg.Wait() }

// Go runs what ends with the hosts' context.
func (h *Hosts) Go(f func()) { h.wg.Go(f) }

// Logs is the update log that all processes share.
func (h *Hosts) Logs() *updatelog.Memory {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.logs
}

// LoseLogs gives processes that begin from now on an empty log.
func (h *Hosts) LoseLogs() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.logs = updatelog.NewMemory()
}

// Leader is the coordinator that began last; nil: there was none.
func (h *Hosts) Leader() *coordinator.Coordinator {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leader
}

// Process is the newest process of a host; it panics where there was none.
func (h *Hosts) Process(host string) *Process {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.processes[host]
	if p == nil {
		panic(fmt.Sprintf("rig: %s has had no process", host))
	}
	return p
}

// Kill kills the process of a host, and waits until it has ended.
func (h *Hosts) Kill(host string) {
	p := h.Process(host)
	p.Kill()
	p.Wait()
}

// Stop tells the process of a host to end, as a signal does, and waits until it has.
func (h *Hosts) Stop(host string) {
	p := h.Process(host)
	p.Stop()
	p.Wait()
}

// Listen has a host be somebody whom the test plays: serve is called for each connection,
// beside the others, when its peer has said hello. The connection is closed when serve
// returns, and when the hosts end. The listener may be closed before.
func (h *Hosts) Listen(addr string, serve func(conn transport.Conn, hello wire.Hello)) transport.Listener {
	l, err := h.network(hostOf(addr)).Listen(addr)
	if err != nil {
		panic(fmt.Sprintf("rig: %v", err)) // of the test's own making
	}
	context.AfterFunc(h.ctx, func() { l.Close() })
	h.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			h.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(h.ctx, func() { conn.Close() })()
				if hello, err := transport.Greet(conn, time.Minute, h.Keys); err == nil {
					serve(conn, hello)
				}
			})
		}
	})
	return l
}

// Job makes a job of a model and a strategy as people write them.
func Job(model, recovery string, slots, servers, shards int) perdure.JobSpec {
	job := perdure.JobSpec{ID: "job-1", Seed: 1, Slots: slots, Servers: servers, Shards: shards}
	var err error
	if job.Consistency, job.TableConsistency,
		err = perdure.ParseModels(model, perdure.Consistency{Kind: perdure.BSP}); err == nil {
		job.Recovery, err = perdure.ParseRecovery(recovery)
	}
	if err != nil {
		panic(fmt.Sprintf("rig: %v", err)) // of the test's own making
	}
	return job
}
