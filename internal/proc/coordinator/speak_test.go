package coordinator_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// keys are the secrets of a test run.
var keys = wire.Keys{Job: "the job's", Servers: "the servers'"}

// guarded is a coordinator that requires secrets.
type guarded struct {
	*testing.T
	*lone
}

// inGuarded runs a test with the coordinator of a job of two slots that ends at clock 100.
func inGuarded(t *testing.T, test func(g *guarded), change ...func(*coordinator.Config)) {
	t.Helper()
	job := testcluster.Job("bsp", "none", 2, 2, 4)
	job.Clocks, job.FixedEnd = 100, true
	guards := func(cfg *coordinator.Config) { cfg.Keys, cfg.TableBytes = keys, 1<<20 }
	inJob(t, job, func(t *testing.T, on *lone) { test(&guarded{t, on}) },
		append([]func(*coordinator.Config){guards}, change...)...)
}

// joins connects with the secret of the Hello's role.
func (g *guarded) joins(h wire.Hello) transport.Conn {
	g.Helper()
	h.Secret = keys.For(h.Role)
	return peer(g.T, g.Net, h)
}

// refused waits until a connection has been refused and closed.
func (g *guarded) refused(conn transport.Conn) (r wire.Refusal) {
	g.Helper()
	await(g.T, conn, wire.KindRefuse, &r)
	var f wire.Frame
	for conn.Recv(&f) == nil {
	}
	return r
}

// facts returns the facts of the job.
func (g *guarded) facts() (f membership.JobRecord) {
	g.Helper()
	if err := g.Ask(g.Context(), func(core *membership.Core,
		_ coordinator.Latest,
	) {
		f = core.Record().Clone()
	}); err != nil {
		g.Fatal(err)
	}
	return f
}

// TestSecretIsAskedFor checks that a peer without the secret of its role is rejected with a one-line explanation.
func TestSecretIsAskedFor(t *testing.T) {
	inGuarded(t, func(g *guarded) {
		t := g.T
		for _, h := range []wire.Hello{
			{Role: wire.RoleWorker, Index: -1},
			{Role: wire.RoleObserver},
			{Role: wire.RoleServer, Index: 0},
			{Role: wire.RoleSupervisor},
			{Role: "king"},
			{Role: wire.RoleWorker, Index: -1, Secret: "guess"},
			{Role: wire.RoleServer, Index: 0, Secret: keys.Job},
			{Role: wire.RoleSupervisor, Secret: keys.Job},
		} {
			h.Process = "stranger"
			if r := g.refused(peer(t, g.Net, h)); r.Temporary || !strings.Contains(r.Reason, "the secret of this ") ||
				strings.ContainsAny(r.Reason, "\n'") && strings.Contains(r.Reason, "the job's") {
				t.Errorf("a %s received %+v", h.Role, r)
			}
		}
		if f := g.facts(); f.Slots[0].Process != "" || f.Servers[0].Process != "" {
			t.Errorf("a process was admitted: %+v", f)
		}
	})
}

// TestLies checks that a worker's invalid message closes its connection and does not change the job.
func TestLies(t *testing.T) {
	for what, f := range testcluster.ForgedToCoordinator() {
		t.Run(what, func(t *testing.T) {
			inGuarded(t, func(g *guarded) {
				t := g.T
				parent := g.joins(wire.Hello{Role: wire.RoleSupervisor, Process: "parent"})
				await(t, parent, wire.KindWelcome, &wire.Welcome{})
				liar := g.joins(wire.Hello{Role: wire.RoleWorker, Index: 0, Process: "liar", Nonce: "drawn"})
				synctest.Wait()
				before := g.facts()
				if err := liar.Send(f); err != nil {
					t.Fatal(err)
				}
				if r := g.refused(liar); r.Reason == "" || r.Temporary || strings.Contains(r.Reason, "\n") {
					t.Errorf("it received %+v", r)
				}
				if after := g.facts(); after.View.End != 100 || after.View.Done || after.UpdatesLost != 0 ||
					after.EndRequested || len(after.View.Tables) != 0 || !same(&after.Slots[1], &before.Slots[1]) ||
					!same(&after.Servers[0], &before.Servers[0]) {
					t.Errorf("the job has changed from %+v to %+v", before, after)
				}
				if there, err := g.Order(t.Context(), wire.Order{Kind: "stop"}); !there || err != nil {
					t.Errorf("the supervisor is not attached: %v", err)
				}
				await(t, parent, wire.KindOrder, &wire.Order{})
			})
		})
	}
}

// TestOneSupervisor checks that a second supervisor is rejected while the first is connected. The first may reconnect
// even if the failure of its old connection was not noticed.
func TestOneSupervisor(t *testing.T) {
	inGuarded(t, func(g *guarded) {
		t := g.T
		first := g.joins(wire.Hello{Role: wire.RoleSupervisor, Process: "parent"})
		await(t, first, wire.KindWelcome, &wire.Welcome{})
		if r := g.refused(g.joins(wire.Hello{Role: wire.RoleSupervisor, Process: "another"})); !r.Temporary {
			t.Errorf("a second supervisor received %+v", r)
		}
		order := func(to transport.Conn) {
			t.Helper()
			if there, err := g.Order(t.Context(), wire.Order{Kind: "stop"}); !there || err != nil {
				t.Errorf("no supervisor is attached: %v", err)
			}
			await(t, to, wire.KindOrder, &wire.Order{})
		}
		order(first)
		again := g.joins(wire.Hello{Role: wire.RoleSupervisor, Process: "parent"})
		await(t, again, wire.KindWelcome, &wire.Welcome{})
		var f wire.Frame
		for first.Recv(&f) == nil { // until it is closed
		}
		order(again)
		again.Close()
		synctest.Wait()
		next := g.joins(wire.Hello{Role: wire.RoleSupervisor, Process: "another"})
		await(t, next, wire.KindWelcome, &wire.Welcome{})
		order(next)
	})
}

// TestGrowth checks that a worker cannot add a slot to a job in which all workers wait for each other, and that the
// name of a process does not suffice to take its slot.
func TestGrowth(t *testing.T) {
	inGuarded(t, func(g *guarded) {
		t := g.T
		for _, name := range []string{"a", "b"} {
			g.joins(wire.Hello{Role: wire.RoleWorker, Index: -1, Process: name, Nonce: perdure.Secret(name)})
		}
		synctest.Wait()
		if r := g.refused(g.joins(wire.Hello{
			Role: wire.RoleWorker, Index: -1, Process: "c", Nonce: "c",
			Grow: true,
		})); r.Temporary || !strings.Contains(r.Reason, "perdure scale 3") {
			t.Errorf("a new worker received %+v", r)
		}
		if r := g.refused(g.joins(wire.Hello{
			Role: wire.RoleWorker, Index: 0, Process: "a",
			Nonce: "guess",
		})); !r.Temporary || !strings.Contains(r.Reason, "already runs") {
			t.Errorf("a worker with the name of another received %+v", r)
		}
		name := (&wire.Hello{Process: "a", Nonce: "a"}).Name()
		if r := g.refused(g.joins(wire.Hello{Role: wire.RoleWorker, Index: 0, Process: name})); r.Temporary ||
			!strings.Contains(r.Reason, "nonce") {
			t.Errorf("a worker with the complete name of another received %+v", r)
		}
		if r := g.refused(g.joins(wire.Hello{Role: wire.RoleWorker, Index: -5, Process: "c"})); !strings.Contains(
			r.Reason, "-1 for any") {
			t.Errorf("a worker that asks for slot -5 received %+v", r)
		}
		if f := g.facts(); len(f.View.Slots) != 2 || f.Change != nil {
			t.Errorf("the job has %d slots and a pending change: %+v", len(f.View.Slots), f.Change)
		}
	})
}

// slowRegistry blocks saves once slow is closed.
type slowRegistry struct {
	registry.Registry
	slow chan struct{} // closed: saves block until the end
}

func (r slowRegistry) Acquire(ctx context.Context, o registry.Holder) (registry.Lease, error) {
	l, err := r.Registry.Acquire(ctx, o)
	return slowLease{l, r.slow}, err
}

type slowLease struct {
	registry.Lease
	slow chan struct{}
}

func (l slowLease) Save(ctx context.Context, doc []byte, revision uint64) (uint64, error) {
	select {
	case <-l.slow:
		<-ctx.Done()
		return 0, ctx.Err()
	default:
		return l.Lease.Save(ctx, doc, revision)
	}
}

// TestAlive checks that a coordinator is alive while its loop runs tasks or waits for its disk, but not if its loop is
// stuck, even if its other goroutines answer.
func TestAlive(t *testing.T) {
	slow := make(chan struct{})
	inGuarded(t, func(g *guarded) {
		t := g.T
		alive := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return g.Alive(ctx)
		}
		if err := alive(); err != nil {
			t.Errorf("busy: %v", err)
		}
		stand := make(chan struct{})
		go func() { _ = g.Ask(t.Context(), func(*membership.Core, coordinator.Latest) { <-stand }) }()
		synctest.Wait()
		if err := alive(); err == nil {
			t.Error("a stuck loop is reported as alive")
		}
		close(stand)
		if err := alive(); err != nil {
			t.Errorf("busy again: %v", err)
		}
		close(slow)
		g.joins(wire.Hello{Role: wire.RoleServer, Index: 0, Process: "s"})
		synctest.Wait()
		if err := alive(); err != nil {
			t.Errorf("while waiting for the disk: %v", err)
		}
	}, func(cfg *coordinator.Config) { cfg.Registry = slowRegistry{cfg.Registry, slow} })
}

func same(a, b *membership.Member) bool { return fmt.Sprint(*a) == fmt.Sprint(*b) }
