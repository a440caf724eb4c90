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
	// minRestartPause is the shortest time between a process that ended by itself and its replacement. If the process
	// ended because the job is over, or failed for the last permitted time, the host is notified within that time.
	minRestartPause = 250 * time.Millisecond
	// usageCode is the exit code of perdure's own processes that report an invalid request. A restart would fail again.
	usageCode = supervisor.ExitUsage
)

// keeper keeps the processes of a host alive.
type keeper struct {
	log          *slog.Logger
	group        *supervisor.Group
	userPrograms bool              // workers are the user's own programs
	report       func(wire.Exited) // reports each exit to the coordinator
	fatal        chan error        // capacity 1: why the host cannot continue
	idle         chan struct{}     // closed when all its processes were drained
	counts       map[wire.Role]int

	mu       sync.Mutex // guards the fields below
	stopping bool       // processes that end are not replaced
	problem  string     // why the host does not do its work; "": it does
	backoffs map[[2]string]*supervisor.Backoff
	restarts map[wire.Role]int
	drained  int // servers that an operator has drained, which are not restarted
}

func newKeeper(h *Host, tell func(wire.Exited)) (k *keeper, err error) {
	k = &keeper{
		log: h.Log, report: tell, userPrograms: len(h.Command) > 0, fatal: make(chan error, 1),
		idle:     make(chan struct{}),
		counts:   map[wire.Role]int{wire.RoleServer: h.Servers, wire.RoleWorker: h.Workers},
		backoffs: map[[2]string]*supervisor.Backoff{}, restarts: map[wire.Role]int{},
	}
	k.group, err = supervisor.NewGroup(supervisor.Options{OnExit: k.onExit})
	return k, err
}

// start starts all processes.
func (k *keeper) start(specs []supervisor.Spec) error {
	for _, s := range specs {
		if err := k.group.Start(s); err != nil {
			return perdure.Usagef("%w", err)
		}
	}
	return nil
}

// name returns the name of one of the host's processes in logs. The number is the host's, not the job's.
func name(role wire.Role, index int) string { return fmt.Sprintf("%s-%d", role, index) }

// onExit handles the exit of a process and returns when to start its replacement.
func (k *keeper) onExit(e supervisor.Exit) supervisor.Restart {
	k.mu.Lock()
	defer k.mu.Unlock()
	sent := k.exited(&e)
	if e.PID != 0 {
		k.report(sent)
	}
	who := name(e.Role, e.Index)
	log := k.log.With("process", who, "pid", e.PID, "code", e.Code)
	if k.stopping {
		log.Info(fmt.Sprintf("%s %s", who, e.Description))
		return supervisor.Never
	}
	if e.Role == wire.RoleServer && e.Code == supervisor.ExitDrained {
		log.Info(who + " was drained and is not started again")
		if k.drained++; k.drained == k.counts[wire.RoleServer]+k.counts[wire.RoleWorker] {
			log.Info("all processes on this host have been drained; there is nothing left to do")
			close(k.idle)
		}
		return supervisor.Never
	}
	own := k.userPrograms && e.Role == wire.RoleWorker
	if !own && e.Code == usageCode {
		said := cmp.Or(e.LastLine, e.Description+", and has printed the reason")
		k.problem = fmt.Sprintf("%s: %s", who, strings.TrimPrefix(said, "perdure: "))
		select {
		case k.fatal <- errors.New(k.problem):
		default: // another process was first
		}
		return supervisor.Never
	}
	at := [2]string{string(e.Role), fmt.Sprint(e.Index)}
	if k.backoffs[at] == nil {
		k.backoffs[at] = &supervisor.Backoff{}
	}
	pause := k.backoffs[at].Next(e.Uptime)
	if e.Code == 0 || sent.Failed {
		pause = max(pause, minRestartPause)
	}
	k.restarts[e.Role]++
	text := fmt.Sprintf("%s %s", who, e.Description)
	if e.Code != 0 && e.Signal == "" && e.LastLine != "" {
		text += ": " + strings.TrimPrefix(e.LastLine, "perdure: ")
	}
	if text += "; it is replaced"; pause > 0 {
		text += fmt.Sprintf(" in %v", pause)
	}
	level := slog.LevelWarn
	if e.Code == 0 {
		level = slog.LevelInfo
		text += ", unless the job is over" // workers are often notified before their host
	}
	log.Log(context.Background(), level, text)
	return supervisor.Restart(pause)
}

// exited returns the report about a process that has ended. The caller must hold k.mu.
func (k *keeper) exited(e *supervisor.Exit) wire.Exited {
	if e.Role == wire.RoleWorker && !k.stopping && (k.userPrograms || e.Code != usageCode) {
		return e.WorkerReport(k.userPrograms)
	}
	left := e.Role == wire.RoleWorker && k.stopping && e.Signal != "SIGKILL" // on this host's request
	return wire.Exited{Role: e.Role, PID: e.PID, How: e.Description, Vacated: left}
}

// state returns the state of the processes for metrics and health checks.
func (k *keeper) state() (all []metrics.RoleProcesses, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	why = k.problem
	for _, role := range []wire.Role{wire.RoleServer, wire.RoleWorker} {
		kept := metrics.RoleProcesses{Role: string(role), Restarts: k.restarts[role]}
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
			why = fmt.Sprintf("%d of %d %ss are running", kept.Running, wanted, role)
		}
		all = append(all, kept)
	}
	return all, why
}

// stopReplacing stops replacing processes.
func (k *keeper) stopReplacing() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopping = true
	k.group.DisableRestarts()
}

// drain ends all processes gracefully: first workers and then servers, which other processes may need until then. If
// time is short, all are asked at the same time, since a worker's clock may take longer than the notice.
func (k *keeper) drain(until context.Context, short bool) {
	k.stopReplacing()
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

// kill kills all remaining processes.
func (k *keeper) kill() {
	k.each(wire.RoleWorker, k.group.Kill)
	k.each(wire.RoleServer, k.group.Kill)
}

// each applies do to all processes of a role. Errors mean that a process has already ended.
func (k *keeper) each(role wire.Role, do func(wire.Role, int) error) {
	for i := range k.counts[role] {
		_ = do(role, i)
	}
}

// await waits until all processes of a role have ended, or for at most the given time.
func (k *keeper) await(ctx context.Context, role wire.Role, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	k.group.Await(ctx, role)
}

// stop ends all processes.
func (k *keeper) stop() {
	k.stopReplacing()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := k.group.Stop(ctx); err != nil {
		k.log.Error("some processes have not ended", "err", err)
	}
}
