// Package testcluster runs the processes of a job inside a test: coordinators, servers and workers. They run the
// production code on an in-memory network, disk and update log. Apart from tests, only package sim imports it. For
// tests of real processes, testcluster provides a [LAN] (hosts with their own addresses on this machine) and lists of
// messages that a process must not send.
//
// [Hosts] are the resources that all processes share. A [Process] is one incarnation of a host, with its own network,
// disk and log. Kill breaks its connections, makes its disk fail from then on and ends its goroutines. The host's next
// process starts from scratch. Tests customize a process with functions that change its Config.
//
// All types are safe for concurrent use, except that the fields of Hosts must not change once a process exists. The
// caller of New must call Wait after the context has ended.
package testcluster

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
	// CoordinatorHost is the coordinator's host; CoordinatorAddr is its address on the in-memory network.
	CoordinatorHost = "coordinator"
	CoordinatorAddr = CoordinatorHost + "/1"

	unnumberedServer = "newcomer" // prefix of hosts whose server has no fixed index
)

// Options configures Hosts.
type Options struct {
	Seed    uint64 // of the network
	Network transport.MemoryOptions
	Sockets *transport.TCP       // the network of all processes; nil: in memory
	Keys    wire.Keys            // keys of all processes; empty: no authentication
	Sync    func() time.Duration // duration of a file sync; nil: 0
	Log     *slog.Logger         // nil: no logs
	// Ended is called for each process that ends by itself. With nil, NewForTest treats this as a test error.
	Ended func(p *Process, err error)
}

// Hosts are the resources that the processes of a job share.
type Hosts struct {
	Net  *transport.Memory
	Disk *disk.Memory
	Keys wire.Keys

	o   Options
	ctx context.Context // of all processes
	wg  sync.WaitGroup

	mu           sync.Mutex // guards the fields below
	logs         *updatelog.Memory
	processCount int
	processes    map[string]*Process // the newest of each host
	coordinator  string              // the coordinator's address
	leader       *coordinator.Coordinator
}

// New returns Hosts whose processes end when ctx ends.
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

// NewForTest returns Hosts for a test. Their processes end with the test, or when the timeout most expires. The expiry
// itself is not an error, unless the test then still waits for something.
func NewForTest(t testing.TB, most time.Duration, o Options) (context.Context, *Hosts) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	if o.Ended == nil {
		o.Ended = func(p *Process, err error) { t.Errorf("%s ended: %v", p.Name, err) }
	}
	h := New(ctx, o)
	t.Cleanup(func() { cancel(); h.Wait() })
	return ctx, h
}

// RunVirtual runs a test in virtual time with Hosts that end after the timeout most.
func RunVirtual(t *testing.T, most time.Duration, o Options, test func(t *testing.T, ctx context.Context, h *Hosts)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, h := NewForTest(t, most, o)
		test(t, ctx, h)
	})
}

// Wait waits until all processes and all functions started by Go have ended.
func (h *Hosts) Wait() { h.wg.Wait() }

// Go runs f, which must return when the context of the Hosts ends.
func (h *Hosts) Go(f func()) { h.wg.Go(f) }

// Logs returns the update log that all processes share.
func (h *Hosts) Logs() *updatelog.Memory {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.logs
}

// ReplaceLogs gives an empty log to processes that start from now on.
func (h *Hosts) ReplaceLogs() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.logs = updatelog.NewMemory()
}

// Leader returns the coordinator that started last, or nil.
func (h *Hosts) Leader() *coordinator.Coordinator {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leader
}

// Process returns the newest process of a host. It panics if the host never had one.
func (h *Hosts) Process(host string) *Process {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.processes[host]
	if p == nil {
		panic(fmt.Sprintf("testcluster: host %s never had a process", host))
	}
	return p
}

// Kill kills the process of a host and waits until it has ended.
func (h *Hosts) Kill(host string) {
	p := h.Process(host)
	p.Kill()
	p.Wait()
}

// Stop asks the process of a host to end, as a signal does, and waits until it has ended.
func (h *Hosts) Stop(host string) {
	p := h.Process(host)
	p.Stop()
	p.Wait()
}

// Listen lets the test play a host. serve runs in its own goroutine for each connection whose peer has sent its hello.
// The connection is closed when serve returns or the Hosts end. The caller may close the listener earlier.
func (h *Hosts) Listen(addr string, serve func(conn transport.Conn, hello wire.Hello)) transport.Listener {
	l, err := h.network(hostOf(addr)).Listen(addr)
	if err != nil {
		panic(fmt.Sprintf("testcluster: %v", err)) // a bug in the test itself
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
				if hello, err := transport.ReceiveHello(conn, time.Minute, h.Keys); err == nil {
					serve(conn, hello)
				}
			})
		}
	})
	return l
}

// Job returns a job with a consistency model and a recovery strategy in flag syntax.
func Job(model, recovery string, slots, servers, shards int) perdure.JobSpec {
	job := perdure.JobSpec{ID: "job-1", Seed: 1, Slots: slots, Servers: servers, Shards: shards}
	var err error
	if job.Consistency, job.TableConsistency,
		err = perdure.ParseModels(model, perdure.Consistency{Kind: perdure.BSP}); err == nil {
		job.Recovery, err = perdure.ParseRecovery(recovery)
	}
	if err != nil {
		panic(fmt.Sprintf("testcluster: %v", err)) // a bug in the test itself
	}
	return job
}
