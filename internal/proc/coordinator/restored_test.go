package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/testcluster"
)

// backedUp is a bsp job of two servers and two workers whose files a test copies and restores.
type backedUp struct {
	*testing.T
	*testcluster.Hosts
	recovery string

	mu     sync.Mutex
	clock  map[perdure.Slot]perdure.Clock // the latest clock of each slot
	models map[perdure.Slot]string        // the rows at the end
}

const lastClock = 40

// runBackedUp runs a test with the job in virtual time. Coordinators may end by themselves.
func runBackedUp(t *testing.T, recovery string, test func(b *backedUp)) {
	t.Helper()
	o := testcluster.Options{Seed: 1, Ended: func(p *testcluster.Process, err error) {
		if err != nil && p.Host != testcluster.CoordinatorHost {
			t.Errorf("%s ended: %v", p.Name, err)
		}
	}}
	testcluster.RunVirtual(t, time.Hour, o, func(t *testing.T, _ context.Context, h *testcluster.Hosts) {
		b := &backedUp{T: t, Hosts: h, recovery: recovery, models: map[perdure.Slot]string{}}
		b.coordinate()
		b.startAll()
		test(b)
	})
}

func (b *backedUp) coordinate() *testcluster.Process {
	p, err := b.StartCoordinator(testcluster.Job("bsp", b.recovery, 2, 2, 4))
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func (b *backedUp) startAll() {
	b.mu.Lock()
	b.clock = map[perdure.Slot]perdure.Clock{}
	b.mu.Unlock()
	for i := range 2 {
		b.StartServer(fmt.Sprintf("server:%d", i))
		b.startWorker(perdure.Slot(i))
	}
}

func (b *backedUp) killAll() {
	for i := range 2 {
		b.Kill(fmt.Sprintf("server:%d", i))
		b.Kill(fmt.Sprintf("worker:%d", i))
	}
}

func (b *backedUp) startWorker(slot perdure.Slot) {
	b.Start(fmt.Sprintf("worker:%d", slot), func(ctx context.Context, p *testcluster.Process) error {
		return b.train(ctx, p, slot)
	})
}

// train runs a slot. Its deltas depend on slot, clock and rows.
func (b *backedUp) train(ctx context.Context, p *testcluster.Process, slot perdure.Slot) error {
	c, err := p.Dial(ctx, slot)
	if err != nil {
		return err
	}
	defer c.Close()
	table, err := c.Table(ctx, perdure.TableSpec{Name: "t", Rows: 8, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}})
	if err != nil {
		return err
	}
	rows := make([]float32, 8)
	for at := c.Now(); ; {
		if err = table.GetRun(ctx, 0, rows); err == nil && at >= lastClock {
			b.mu.Lock()
			b.models[slot] = fmt.Sprint(rows)
			b.mu.Unlock()
			return c.Finish(ctx)
		}
		if err == nil {
			for i := range rows {
				rows[i] = rows[i]*0.013 + float32(i+1)*float32(slot+1)*float32(at+1)
			}
			err = table.IncRun(0, rows)
		}
		<-time.After(50 * time.Millisecond)
		if err == nil || errors.Is(err, perdure.ErrRolledBack) {
			at, err = c.Clock(ctx)
		}
		if err != nil && !errors.Is(err, perdure.ErrRolledBack) {
			return err
		}
		b.mu.Lock()
		b.clock[slot] = at
		b.mu.Unlock()
	}
}

// until waits until both slots have reached a clock.
func (b *backedUp) until(clock perdure.Clock) {
	b.Helper()
	for range 1000 {
		b.mu.Lock()
		at := min(b.clock[0], b.clock[1])
		b.mu.Unlock()
		if at >= clock {
			return
		}
		<-time.After(20 * time.Millisecond)
	}
	b.Fatalf("clock %d was not reached", clock)
}

// model waits for the end of both slots and returns their rows.
func (b *backedUp) model() string {
	b.Helper()
	for range 1000 {
		b.mu.Lock()
		models := maps.Clone(b.models)
		b.mu.Unlock()
		if len(models) == 2 {
			if models[0] != models[1] {
				b.Errorf("the slots end with %v", models)
			}
			return models[0]
		}
		<-time.After(20 * time.Millisecond)
	}
	b.Fatal("the job does not end")
	return ""
}

// undisturbed returns the model of a run without failures.
func undisturbed(t *testing.T) (model string) {
	t.Helper()
	runBackedUp(t, "none", func(b *backedUp) { model = b.model() })
	return model
}

const (
	registryDir   = "registry"
	checkpointDir = "checkpoint"
)

// backUp returns the files of a directory.
func (b *backedUp) backUp(dir string) map[string][]byte {
	b.Helper()
	names, err := b.Disk.List(dir)
	if err != nil {
		b.Fatal(err)
	}
	files := map[string][]byte{}
	for _, name := range names {
		f, err := b.Disk.Open(path.Join(dir, name))
		if err == nil {
			files[name], err = io.ReadAll(f)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	return files
}

// restore replaces the files of a directory.
func (b *backedUp) restore(dir string, files map[string][]byte) {
	b.Helper()
	for name := range b.backUp(dir) {
		if err := b.Disk.Remove(path.Join(dir, name)); err != nil {
			b.Fatal(err)
		}
	}
	for name, text := range files {
		if err := disk.WriteFile(b.Disk, path.Join(dir, name), func(w io.Writer) error {
			_, err := w.Write(text)
			return err
		}); err != nil {
			b.Fatal(err)
		}
	}
}

// replaceAll replaces each process once, which increases revision, epochs and incarnations, and under some strategies
// the generation.
func (b *backedUp) replaceAll() {
	for i, host := range []string{"server:0", "worker:1", "server:1", "worker:0"} {
		b.Kill(host)
		if role, index := testcluster.ParseHost(host); role == wire.RoleServer {
			b.StartServer(host)
		} else {
			b.startWorker(perdure.Slot(index))
		}
		b.until(10 + perdure.Clock(4*i))
	}
}

// wantRefusal waits until a coordinator has ended because of its record.
func (b *backedUp) wantRefusal(p *testcluster.Process, want string) {
	b.Helper()
	select {
	case <-p.Ended():
	case <-time.After(time.Minute):
		b.Fatal("the coordinator works with an older record")
	}
	if err := p.Wait(); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) ||
		strings.Contains(err.Error(), "\n") {
		b.Errorf("the coordinator ended with %v; want %q", err, want)
	}
}

// TestOlderRecordWithLiveProcesses checks that a coordinator with an older copy of the record ends without any
// decision, and that the job continues with the newest record as if nothing had happened. Without the check, the
// coordinator gives out numbers a second time, and rolls back to checkpoints that no longer exist.
func TestOlderRecordWithLiveProcesses(t *testing.T) {
	want := undisturbed(t)
	for _, recovery := range []string{"none", "chain:2", "stateless", "checkpoint:5", "resend:5"} {
		for name, change := range map[string]func(b *backedUp){
			"one worker replaced": func(b *backedUp) {
				b.Kill("worker:1")
				b.startWorker(1)
				b.until(9)
			},
			"all replaced": func(b *backedUp) { b.replaceAll() },
		} {
			if recovery == "none" && name == "all replaced" {
				continue // updates are lost
			}
			t.Run(recovery+", "+name, func(t *testing.T) {
				runBackedUp(t, recovery, func(b *backedUp) {
					b.until(6)
					older := b.backUp(registryDir)
					change(b)
					b.Kill(testcluster.CoordinatorHost)
					newest := b.backUp(registryDir)
					b.restore(registryDir, older)
					b.wantRefusal(b.coordinate(), "older")
					b.restore(registryDir, newest)
					b.coordinate()
					b.Kill("server:1")
					if recovery != "none" {
						b.StartServer("server:1") // decisions are made again
						if got := b.model(); got != want {
							b.Errorf("the model is %s, want %s", got, want)
						}
					}
				})
			})
		}
	}
}

// TestRestoredBackup checks that a job whose processes have all ended continues from a record and checkpoints of the
// same backup, and ends with the same model.
func TestRestoredBackup(t *testing.T) {
	want := undisturbed(t)
	for _, recovery := range []string{"checkpoint:5", "resend:5", "chain:2,checkpoint:5"} {
		t.Run(recovery, func(t *testing.T) {
			runBackedUp(t, recovery, func(b *backedUp) {
				b.until(8)
				record, checkpoints := b.backUp(registryDir), b.backUp(checkpointDir)
				b.replaceAll()
				b.Kill(testcluster.CoordinatorHost)
				b.killAll()

				b.restore(registryDir, record)
				b.wantRefusal(b.coordinate(), "restore the checkpoints of the same backup as well")

				b.restore(registryDir, nil)
				b.wantRefusal(b.coordinate(), "according to the record the job has not started")

				b.restore(registryDir, record)
				b.restore(checkpointDir, checkpoints)
				b.coordinate()
				b.startAll()
				if got := b.model(); got != want {
					b.Errorf("the model is %s, want %s", got, want)
				}
			})
		})
	}
}

// TestNewestRecord checks that no coordinator with the newest record is refused, whenever its predecessor has died.
func TestNewestRecord(t *testing.T) {
	want := undisturbed(t)
	for _, recovery := range []string{"resend:5", "checkpoint:5", "chain:2", "stateless"} {
		t.Run(recovery, func(t *testing.T) {
			runBackedUp(t, recovery, func(b *backedUp) {
				for i := range perdure.Clock(12) {
					b.until(3 * i)
					if i%3 == 1 {
						b.Kill("server:0")
						b.StartServer("server:0")
					}
					<-time.After(time.Duration(i) * 7 * time.Millisecond)
					b.Kill(testcluster.CoordinatorHost)
					b.coordinate()
				}
				if got := b.model(); got != want {
					b.Errorf("the model is %s, want %s", got, want)
				}
			})
		})
	}
}

// TestClaimsNewerView checks that a server's newer view ends the coordinator, and that a worker's or an observer's does
// not: the coordinator turns it away for the time being. A process that this coordinator has answered may have a newer
// view.
func TestClaimsNewerView(t *testing.T) {
	inGuarded(t, func(g *guarded) {
		for _, role := range []wire.Role{wire.RoleWorker, wire.RoleObserver} {
			h := wire.Hello{Role: role, Index: 0, Process: "p" + string(role), Nonce: "drawn", Revision: 1 << 40}
			for range 2 {
				if r := g.refused(g.joins(h)); !r.Temporary || !strings.Contains(r.Reason, "older copy") {
					g.Errorf("a %s received %+v", role, r)
				}
			}
			h.Revision = 0
			g.joins(h)
			synctest.Wait()
		}
		if f := g.facts(); f.Slots[0].Process == "" {
			g.Error("the worker was not admitted")
		}
		known := wire.Hello{Role: wire.RoleServer, Index: 0, Process: "s0", Addr: "s0"}
		g.joins(known)
		synctest.Wait()
		known.Revision = g.facts().View.Revision + 1
		g.joins(known)
		synctest.Wait()
		select {
		case <-g.process.Ended():
			g.Fatalf("the coordinator ended: %v", g.process.Wait())
		default:
		}
		g.joins(wire.Hello{Role: wire.RoleServer, Index: 1, Process: "s1", Addr: "s1", Revision: known.Revision})
		if err := g.process.Wait(); !errors.Is(err, perdure.ErrUsage) ||
			!strings.Contains(err.Error(), "server:1 uses revision") {
			g.Errorf("the coordinator ended with %v", err)
		}
	})
}
