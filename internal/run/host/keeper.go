package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/metrics"
)

const (
	// leavePause is how long the next process waits at least after one that ended by itself: if that was since the job
	// is over, or was the last failure that is allowed, this will be known by then.
	leavePause = 250 * time.Millisecond
	// usageCode is how perdure's own processes end that say what is wrong with what was asked for: it would be
	// wrong again.
	usageCode = supervisor.ExitUsage
)

// keeper keeps the processes of a host alive.
type keeper struct {
	log    *slog.Logger
	group  *supervisor.Group
	own    bool              // workers are programs of the user's
	tell   func(wire.Exited) // the coordinator, of each end
	fatal  chan error        // capacity 1: why the host cannot go on
	idle   chan struct{}     // closed: all its processes were drained
	counts map[wire.Role]int

	mu       sync.Mutex // guards what follows
	last     bool       // who ends is not replaced
	why      string     // the host does not do its work; "": it does
	backoffs map[[2]string]*supervisor.Backoff
	restarts map[wire.Role]int
	drained  int // servers that somebody has had hand over: they are not started again
}

func newKeeper(h *Host, tell func(wire.Exited)) (k *keeper, err error) {
	k = &keeper{
		log: h.Log, tell: tell, own: len(h.Command) > 0, fatal: make(chan error, 1),
		idle:     make(chan struct{}),
		counts:   map[wire.Role]int{wire.RoleServer: h.Servers, wire.RoleWorker: h.Workers},
		backoffs: map[[2]string]*supervisor.Backoff{}, restarts: map[wire.Role]int{},
	}
	k.group, err = supervisor.NewGroup(supervisor.Options{OnExit: k.onExit})
	return k, err
}

// begin starts all processes.
func (k *keeper) begin(specs []supervisor.Spec) error {
	for _, s := range specs {
		if err := k.group.Start(s); err != nil {
			return fmt.Errorf("%w: %w", perdure.ErrUsage, err)
		}
	}
	return nil
}

// name is what people call one of the host's processes: its number is the host's, and not the job's.
func name(role wire.Role, index int) string { return fmt.Sprintf("%s-%d", role, index) }

// onExit is told of every process that ends, and says when the next one takes its place.
func (k *keeper) onExit(e supervisor.Exit) supervisor.Restart {
	k.mu.Lock()
	defer k.mu.Unlock()
	told := k.exited(&e)
	if e.PID != 0 {
		k.tell(told)
	}
	who := name(e.Role, e.Index)
	log := k.log.With("process", who, "pid", e.PID, "code", e.Code)
	if k.last {
		log.Info(fmt.Sprintf("%s %s", who, e.How))
		return supervisor.Never
	}
	if e.Role == wire.RoleServer && e.Code == supervisor.ExitDrained {
		log.Info(who + " was drained; it is not started again")
		if k.drained++; k.drained == k.counts[wire.RoleServer]+k.counts[wire.RoleWorker] {
			log.Info("all that was kept alive here was drained; there is nothing left to do")
			close(k.idle)
		}
		return supervisor.Never
	}
	own := k.own && e.Role == wire.RoleWorker
	if !own && e.Code == usageCode {
		said := cmp.Or(e.LastLine, e.How+", and has said why")
		k.why = fmt.Sprintf("%s: %s", who, strings.TrimPrefix(said, "perdure: "))
		select {
		case k.fatal <- errors.New(k.why):
		default: // another one was first
		}
		return supervisor.Never
	}
	at := [2]string{string(e.Role), fmt.Sprint(e.Index)}
	if k.backoffs[at] == nil {
		k.backoffs[at] = &supervisor.Backoff{}
	}
	pause := k.backoffs[at].Next(e.Lived)
	if e.Code == 0 || told.Failed {
		pause = max(pause, leavePause)
	}
	k.restarts[e.Role]++
	text := fmt.Sprintf("%s %s", who, e.How)
	if e.Code != 0 && e.Signal == "" && e.LastLine != "" {
		text += ": " + strings.TrimPrefix(e.LastLine, "perdure: ")
	}
	if text += "; the next one takes its place"; pause > 0 {
		text += fmt.Sprintf(" in %v", pause)
	}
	level := slog.LevelWarn
	if e.Code == 0 {
		level = slog.LevelInfo
	}
	log.Log(context.Background(), level, text)
	return supervisor.Restart(pause)
}

// exited is what the coordinator is told of a process that has ended. It needs k.mu.
func (k *keeper) exited(e *supervisor.Exit) wire.Exited {
	if e.Role != wire.RoleWorker || k.last || !k.own && e.Code == usageCode {
		return wire.Exited{Role: e.Role, PID: e.PID, How: e.How}
	}
	return e.Worker(k.own)
}

// look is how the processes are, for those who watch.
func (k *keeper) look() (all []metrics.Kept, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	why = k.why
	for _, role := range []wire.Role{wire.RoleServer, wire.RoleWorker} {
		kept := metrics.Kept{Role: string(role), Restarts: k.restarts[role]}
		for i := range k.counts[role] {
			if k.group.PID(role, i) != 0 {
				kept.Running++
			}
		}
		wanted := k.counts[role]
		if role == wire.RoleServer {
			wanted -= k.drained
		}
		if kept.Running < wanted && why == "" {
			why = fmt.Sprintf("%d of %d %ss run", kept.Running, wanted, role)
		}
		all = append(all, kept)
	}
	return all, why
}

// over says that who ends is not replaced any more.
func (k *keeper) over() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last = true
	k.group.NoMore()
}

// drain has all processes end in order: workers, and then servers, which others may need until then. Where time is
// short, all are told at once: a worker's clock may take longer than that.
func (k *keeper) drain(until context.Context, short bool) {
	k.over()
	roles := []wire.Role{wire.RoleWorker, wire.RoleServer}
	for _, role := range roles {
		k.each(role, k.group.Terminate)
		if !short {
			k.group.Await(until, role)
		}
	}
	for _, role := range roles {
		k.group.Await(until, role)
	}
}

// kill ends all that are left.
func (k *keeper) kill() {
	k.each(wire.RoleWorker, k.group.Kill)
	k.each(wire.RoleServer, k.group.Kill)
}

// each does something to all processes of a role. One that has ended: all the better.
func (k *keeper) each(role wire.Role, do func(wire.Role, int) error) {
	for i := range k.counts[role] {
		_ = do(role, i)
	}
}

// await waits until all processes of a role have ended, for a time at most.
func (k *keeper) await(ctx context.Context, role wire.Role, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	k.group.Await(ctx, role)
}

// stop ends all processes.
func (k *keeper) stop() {
	k.over()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := k.group.Stop(ctx); err != nil {
		k.log.Error("some processes do not end", "err", err)
	}
}
