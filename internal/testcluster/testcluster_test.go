package testcluster_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// train runs a job with one worker and two servers for some clocks, and calls between after each clock.
func train(
	t *testing.T,
	ctx context.Context,
	h *testcluster.Hosts,
	recovery string,
	between func(clock perdure.Clock),
) {
	t.Helper()
	if _, err := h.StartCoordinator(testcluster.Job("bsp", recovery, 1, 2, 4)); err != nil {
		t.Fatal(err)
	}
	h.StartServer("server:0")
	h.StartServer("server:1")
	w, err := h.NewProcess("worker:0").Dial(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	table, err := w.Table(ctx, perdure.TableSpec{Name: "t", Rows: 8, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}})
	if err != nil {
		t.Fatal(err)
	}
	for clock := range perdure.Clock(6) {
		got := make([]float32, 8)
		if err := table.GetRun(ctx, 0, got); err != nil || got[7] != float32(clock) {
			t.Fatalf("clock %d: the last row is %v: %v", clock, got[7], err)
		}
		if err := table.IncRun(0, []float32{1, 1, 1, 1, 1, 1, 1, 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Clock(ctx); err != nil {
			t.Fatal(err)
		}
		between(clock)
	}
}

// TestLives checks that after a process is killed, the next process of its host continues the job.
func TestLives(t *testing.T) {
	for _, recovery := range []string{"chain:2", "stateless"} {
		testcluster.RunVirtual(
			t,
			time.Minute,
			testcluster.Options{},
			func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
				train(t, ctx, h, recovery, func(clock perdure.Clock) {
					switch first := h.Process("server:0"); clock {
					case 1:
						h.Kill("server:0")
						// It may first notice the end of its context or the closed sockets of its host.
						if err := first.Wait(); !first.Dead() || err == nil {
							t.Errorf("%s was killed but ended with %v", first.Name, err)
						}
						h.StartServer("server:0")
					case 3:
						leader := h.Leader()
						h.Kill(testcluster.CoordinatorHost)
						if _, err := h.StartCoordinator(
							testcluster.Job("bsp", recovery, 1, 2, 4),
						); err != nil ||
							h.Leader() == leader {
							t.Errorf("no new coordinator was started: %v", err)
						}
					}
				})
			},
		)
	}
}

// TestSockets runs the same test over sockets.
func TestSockets(t *testing.T) {
	ctx, h := testcluster.NewForTest(t, time.Minute, testcluster.Options{Sockets: &transport.TCP{}})
	train(t, ctx, h, "none", func(perdure.Clock) {})
}

// TestDeadWritesNothing checks that a dead process cannot write, that the next one can, and that a sync takes the
// configured time.
func TestDeadWritesNothing(t *testing.T) {
	const long = 3 * time.Second
	o := testcluster.Options{Sync: func() time.Duration { return long }}
	testcluster.RunVirtual(t, time.Minute, o, func(t *testing.T, _ context.Context, h *testcluster.Hosts) {
		p := h.NewProcess("server:0")
		f, err := p.Disk.Create("a")
		if err != nil {
			t.Fatal(err)
		}
		p.Kill()
		_, creates := p.Disk.Create("b")
		_, writes := f.Write([]byte("x"))
		_, opens := p.Disk.Open("a")
		for what, err := range map[string]error{
			"create": creates, "write": writes, "open": opens, "sync": f.Sync(),
			"rename": p.Disk.Rename("a", "b"), "remove": p.Disk.Remove("a"),
		} {
			if !errors.Is(err, disk.ErrCrashed) {
				t.Errorf("%s: %v", what, err)
			}
		}
		began := time.Now()
		if f, err = h.NewProcess("server:0").Disk.Create("a"); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil || time.Since(began) != long {
			t.Errorf("a sync takes %v: %v", time.Since(began), err)
		}
	})
}

// TestEnded checks that Ended is called for processes that end by themselves, but not for stopped or killed ones.
func TestEnded(t *testing.T) {
	enough := errors.New("enough")
	var sent []string
	o := testcluster.Options{
		Ended: func(p *testcluster.Process, err error) { sent = append(sent, p.Host+": "+err.Error()) },
	}
	testcluster.RunVirtual(t, time.Minute, o, func(t *testing.T, _ context.Context, h *testcluster.Hosts) {
		waits := func(ctx context.Context, _ *testcluster.Process) error { <-ctx.Done(); return ctx.Err() }
		h.Start("a", waits)
		h.Start("b", waits)
		c := h.Start("c", func(context.Context, *testcluster.Process) error { return enough })
		h.Kill("a")
		h.Stop("b")
		if err := c.Wait(); err != enough {
			t.Errorf("process ended with %v", err)
		}
		synctest.Wait()
		if len(sent) != 1 || sent[0] != "c: enough" {
			t.Errorf("Ended calls: %q", sent)
		}
	})
}

// TestListen plays the coordinator. Processes authenticate with the secret of their role.
func TestListen(t *testing.T) {
	o := testcluster.Options{Keys: wire.Keys{Job: "the job's", Servers: "the servers'"}}
	testcluster.RunVirtual(t, time.Minute, o, func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
		came := make(chan wire.Hello, 2)
		h.Listen(testcluster.CoordinatorAddr, func(conn transport.Conn, hello wire.Hello) {
			came <- hello
			_ = transport.Refuse(conn, wire.Refusal{Reason: "not now", JobEnded: true}) // the peer may have ended
		})
		if _, err := h.NewProcess("worker:0").
			Dial(ctx, 0, func(cfg *testcluster.DialConfig) { cfg.Secret = "guess" }); err == nil ||
			len(came) > 0 {
			t.Errorf("a wrong secret was accepted: %v", err)
		}
		if _, err := h.NewProcess("worker:0").Dial(ctx, 0); err == nil {
			t.Error("a refused process has joined")
		}
		if hello := <-came; hello.Process != "worker:0#2" || hello.PID != 2 {
			t.Errorf("it says %+v", hello)
		}
	})
}

func TestPlace(t *testing.T) {
	for host, want := range map[string]struct {
		role  wire.Role
		index int
	}{
		"server:3": {wire.RoleServer, 3}, "worker:0": {wire.RoleWorker, 0}, "coordinator": {wire.RoleCoordinator, -1},
		testcluster.UnnumberedServer(2): {wire.RoleServer, -1}, "reader": {"reader", -1},
	} {
		if role, index := testcluster.ParseHost(host); role != want.role || index != want.index {
			t.Errorf("%s is %s %d", host, role, index)
		}
	}
}
