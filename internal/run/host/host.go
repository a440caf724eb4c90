// Package host runs the processes of a job of many hosts: its coordinator (Coordinator), and the servers and
// workers of one machine (Host).
//
// A Host finds the job by the addresses of its coordinators, starts its processes once the job is there, starts
// each again when it ends, and ends them in order when it is asked to: workers first, which leave at a clock,
// then servers, which hand over what they hold.
//
//	err := (&host.Host{Join: "10.0.0.5:7000", Servers: 1, Workers: 2, Dir: dir, Log: log}).Run(ctx, atOnce)
//
// The processes are perdure's servers, and perdure's workers or a program of the user's. They join by
// themselves: the host tells them where, and is no part of the job. It only looks, to know when the job is
// over. A Host runs once.
package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/settings"
)

// Host is what one machine does for a job.
type Host struct {
	// Join are the addresses of its coordinators, with commas between them.
	Join string `help:"@host_join" placeholder:"HOST:PORT,…"`
	// KeysDir has the keys of servers and workers; "": the job has none.
	KeysDir string `name:"keys" env:"PERDURE_KEYS" help:"@keys" placeholder:"DIR" type:"path"`
	// SecretFile is, where it is "", that beside the keys, or in Dir.
	SecretFile string `name:"secret-file" env:"PERDURE_SECRET_FILE" help:"@secret" placeholder:"FILE" type:"path"`

	Servers int `help:"@host_servers (default ${default})." default:"1" placeholder:"N"` // how many are kept alive
	Workers int `help:"@host_workers (default ${default})." default:"0" placeholder:"N"`
	// Dir is the host's own, of one job: logs, and the job's name.
	Dir string `help:"@host_dir (default ${default})." default:"perdure-host" placeholder:"DIR" type:"path"`
	// Listen is where servers listen, see listens; "": where connections to the job go out.
	Listen    string `help:"@host_listen" placeholder:"HOST[:PORT]"`
	Advertise string `help:"@host_advertise" placeholder:"HOST[:PORT]"`
	Zone      string `help:"@host_zone" placeholder:"NAME"`
	Called    string `name:"name" help:"@host_name" placeholder:"NAME"`
	Notice    Notice `embed:""`

	Command []string `arg:"" optional:"" help:"@host_command"` // that is a worker; none: perdure's

	Output    *os.File         `kong:"-"` // what processes say goes there; nil: into files in Dir
	Program   string           `kong:"-"` // perdure itself
	Watch     role.Watched     `kong:"-"`
	LogFormat httpdebug.Format `kong:"-"` // of servers and perdure's workers
	Log       *slog.Logger     `kong:"-"`

	name   string // its own, which nobody guesses
	listed bool   // Prometheus was told of it and its processes
	taken  bool   // the command has said that the machine is to be taken
	secret string // the file
	keys   wire.Keys
	ring   *keys.Ring // nil: the job has no keys
}

// role is what the host calls itself in logs and metrics.
const hostRole = "host"

// programGrace is how long workers may go on when the job is over, to write what they have learned for example.
const programGrace = time.Minute

// Run keeps the processes alive until the job is over. When ctx ends they end in order, when atOnce ends at once.
func (h *Host) Run(ctx, atOnce context.Context) error {
	h.name = rand.Text()
	httpdebug.Name(h.Log, "", hostRole, -1)
	if err := h.ready(ctx); err != nil {
		return err
	}
	lock, err := h.hold()
	if err != nil {
		return err
	}
	defer lock()
	l := newLook(h)
	k, err := newKeeper(h, l.tell)
	if err != nil {
		return err
	}
	defer k.stop()
	eye, err := h.Watch.Open(atOnce, h.Log)
	if err != nil {
		return err
	}
	defer eye.Close()
	looks, cancel := context.WithCancel(atOnce)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- l.run(looks) }()
	noticed := h.watch(looks)
	select {
	case w := <-l.joined:
		if err := h.begin(k, &w); err != nil {
			return err
		}
		eye.Show(metrics.Host(k.look, h.Watch.Who(w.Job.ID, hostRole, -1)))
	case err := <-ended:
		return h.over(err)
	case <-ctx.Done():
		return nil
	case <-noticed:
		h.taken = true
		return nil
	}
	notice, why := h.Notice.For, "a signal"
	select {
	case err := <-ended:
		return h.jobEnds(ctx, atOnce, k, err)
	case err := <-k.fatal:
		return err
	case <-k.idle:
		return nil
	case <-ctx.Done():
	case <-noticed:
		why, h.taken = "the command of --notice-command has ended with 0", true
	case n := <-l.ordered:
		if why = "an operator"; n > 0 {
			notice = n
		}
	}
	go func() {
		if err := <-ended; err != nil && atOnce.Err() == nil {
			k.over() // who waits for others to take over waits no more: all hear it
		}
	}()
	h.handOver(ctx, atOnce, k, why, notice)
	return nil
}

// jobEnds ends the host's processes once the job is over, or goes on without this host.
func (h *Host) jobEnds(ctx, atOnce context.Context, k *keeper, why error) error {
	if errors.Is(why, perdure.ErrRefused) {
		h.handOver(ctx, atOnce, k, plain.Text(why), cmp.Or(h.Notice.For, programGrace)) // others may be no servers
		return why
	}
	k.over()
	k.await(atOnce, wire.RoleWorker, programGrace)
	return h.over(why)
}

// Taken reports, once Run has ended, whether it has since the command said that the machine is to be taken.
func (h *Host) Taken() bool { return h.taken }

// ready prepares what is needed before anything is started.
func (h *Host) ready(ctx context.Context) error {
	if err := h.check(); err != nil {
		return err
	}
	return h.identify(ctx)
}

// check refuses what cannot be, before anything is started.
func (h *Host) check() (err error) {
	switch {
	case h.Join == "":
		return fmt.Errorf("%w: which job? write --join HOST:PORT with the address that its coordinator has printed",
			perdure.ErrUsage)
	case h.Servers < 0 || h.Servers > perdure.MaxServers:
		return fmt.Errorf("%w: --servers %d; choose 0 to %d", perdure.ErrUsage, h.Servers, perdure.MaxServers)
	case h.Workers < 0 || h.Workers > perdure.MaxSlots:
		return fmt.Errorf("%w: --workers %d; choose 0 to %d", perdure.ErrUsage, h.Workers, perdure.MaxSlots)
	case h.Servers+h.Workers == 0:
		return fmt.Errorf("%w: a host of no servers and no workers has nothing to do; write --servers N or --workers N",
			perdure.ErrUsage)
	case len(h.Command) > 0 && h.Workers == 0:
		return fmt.Errorf("%w: %s is the command of a worker, and there are none; add --workers N", perdure.ErrUsage,
			h.Command[0])
	}
	if err := cmp.Or(transport.CheckAddress("--join", h.Join), checkName(h.Called), h.Notice.check()); err != nil {
		return err
	}
	if h.Zone != "" {
		if err := settings.CheckZone(h.Zone); err != nil {
			return fmt.Errorf("%w: --zone: %w", perdure.ErrUsage, err)
		}
	}
	if len(h.Command) > 0 {
		if _, err := exec.LookPath(h.Command[0]); err != nil {
			return fmt.Errorf("%w: %s cannot be run: %w", perdure.ErrUsage, h.Command[0], plain.Cause(err))
		}
	}
	return nil
}

// identify finds what the host and its processes show: keys, or a secret.
func (h *Host) identify(ctx context.Context) (err error) {
	needs := wire.RoleWorker
	if h.Servers > 0 {
		needs = wire.RoleServer
		if h.Workers > 0 && h.KeysDir != "" {
			if _, err := reach.OpenRing(h.KeysDir, wire.RoleWorker); err != nil {
				return err
			}
		}
	}
	if h.ring, err = reach.Ring(ctx, h.KeysDir, needs, h.Log); err != nil {
		return err
	}
	from := h.SecretFile
	if from == "" && h.ring != nil {
		from = h.ring.SecretFile()
	}
	if from == "" {
		from = filepath.Join(h.Dir, reach.SecretFile)
	}
	if h.secret = from; h.ring != nil && h.SecretFile == "" {
		h.secret = "" // its processes find theirs beside their keys
	}
	h.keys, err = reach.ReadSecrets(from, "", needs)
	return err
}

// hold makes the host's folder, and keeps others out of it. Who lets it go is listed there no more.
func (h *Host) hold() (release func(), err error) {
	if err := os.MkdirAll(filepath.Join(h.Dir, logsDir), 0o777); err != nil {
		return nil, fmt.Errorf("%w: cannot write into %s: %w; choose another --dir", perdure.ErrUsage, h.Dir,
			plain.Cause(err))
	}
	locker, ok := disk.OS().(disk.Locker)
	if !ok {
		return h.hideTargets, nil
	}
	who := fmt.Sprintf("pid %d since %s", os.Getpid(), time.Now().UTC().Format(time.RFC3339))
	lock, err := locker.Lock(filepath.ToSlash(filepath.Join(h.Dir, "lock")), who)
	if locked := (*disk.LockedError)(nil); errors.As(err, &locked) {
		return nil, fmt.Errorf("%w: another host has %s: %s; choose another --dir", perdure.ErrUsage, h.Dir,
			locked.Holder)
	}
	if err != nil {
		return nil, err
	}
	return func() {
		h.hideTargets()
		_ = lock.Close() // it ends with the process anyway
	}, nil
}

// begin starts the processes, of a job that has answered.
func (h *Host) begin(k *keeper, w *wire.Welcome) error {
	httpdebug.Name(h.Log, w.Job.ID, hostRole, -1)
	if h.Workers > 0 && len(h.Command) == 0 && w.Job.Workload == settings.OwnWorkload {
		return fmt.Errorf("%w: the workers of this job are programs of your own; write how one is started: "+
			"perdure host … -- COMMAND", perdure.ErrUsage)
	}
	if err := h.sameJob(w.Job.ID); err != nil {
		return err
	}
	specs, err := h.specs()
	if err != nil {
		return err
	}
	if err := h.showTargets(w.Job.ID); err != nil {
		return err
	}
	text := fmt.Sprintf("job %s answers: %d servers and %d workers are kept alive here", w.Job.ID, h.Servers, h.Workers)
	if h.Output == nil {
		text += "; their logs are in " + filepath.Join(h.Dir, logsDir)
	}
	h.Log.Info(text)
	return k.begin(specs)
}

// jobFile has the name of the job whose processes' logs are in the host's folder.
const jobFile = "job"

// sameJob refuses the folder of another job, and notes of which it is.
func (h *Host) sameJob(id string) error {
	path := filepath.Join(h.Dir, jobFile)
	if was, err := os.ReadFile(path); err == nil {
		if text := string(was); text != id+"\n" {
			return fmt.Errorf("%w: %s is of job %.40q; the job at %s is %s; choose another --dir", perdure.ErrUsage,
				h.Dir, text[:max(0, len(text)-1)], strings.Join(transport.Addresses(h.Join), ","), id)
		}
		return nil
	}
	if err := os.WriteFile(path, []byte(id+"\n"), 0o666); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, plain.Cause(err))
	}
	return nil
}

// over says how the job has ended, where that is why the host ends.
func (h *Host) over(err error) error {
	switch {
	case errors.Is(err, perdure.ErrDone):
		h.Log.Info("the job is done")
		return nil
	case errors.Is(err, perdure.ErrFailed):
		return err
	case errors.Is(err, perdure.ErrStopped):
		h.Log.Warn("the job is over", "why", plain.Text(err))
		return nil
	case errors.Is(err, context.Canceled):
		return nil
	}
	return err
}

// look is the host's own connection to the job. It says which of its processes have ended, and hears when the
// job is over.
type look struct {
	h       *Host
	joined  chan wire.Welcome  // capacity 1: the first answer
	ordered chan time.Duration // capacity 1: an operator has told the host to end, with that notice
	job     string             // once there was one
	lost    bool               // nobody answers, and that was told

	mu     sync.Mutex     // guards what follows
	conn   transport.Conn // nil while there is none
	untold []wire.Frame   // until there is one
}

// mostUntold bounds what is kept for a coordinator that is away. It finds out by itself what it is not told.
const mostUntold = 1024

// tell tells the coordinator that a process has ended, now or when it is back.
func (l *look) tell(e wire.Exited) {
	e.Host = l.h.name
	f := wire.Control(wire.KindExited, e)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil && transport.Tell(l.conn, f) == nil {
		return
	}
	if len(l.untold) < mostUntold {
		l.untold = append(l.untold, f)
	}
}

// connect notes the present connection; nil: there is none.
func (l *look) connect(c transport.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn = c; c != nil && len(l.untold) > 0 && transport.Tell(c, l.untold...) == nil {
		l.untold = nil
	}
}

func newLook(h *Host) *look {
	return &look{h: h, joined: make(chan wire.Welcome, 1), ordered: make(chan time.Duration, 1)}
}

// run looks until the job is over, or ctx ends.
func (l *look) run(ctx context.Context) error {
	link := transport.Link{
		Network: transport.TCP{Keys: l.h.ring}, Addr: l.h.Join, Wants: keys.Coordinator,
		Hello: func() wire.Hello {
			hello := reach.Asking(l.h.keys.Job)
			hello.Job, hello.Process, hello.Called = l.job, l.h.name, l.h.Called
			return hello
		},
		Up: l.up, Frame: func(_ transport.Conn, f *wire.Frame) error { return l.order(f) },
		Down: func(_ transport.Conn, err error) {
			l.connect(nil)
			if errors.Is(err, perdure.ErrStopped) || errors.Is(err, perdure.ErrRefused) {
				return // it is told when the link ends
			}
			l.lost = true
			l.h.Log.Warn("the coordinator is away; servers and workers go on without it", "err", err)
		},
		Patient: func(attempts int, err error) bool {
			if !l.lost && attempts >= len(transport.Addresses(l.h.Join)) {
				l.lost = true
				l.h.Log.Warn("no coordinator answers; it is tried again", "addresses",
					strings.Join(transport.Addresses(l.h.Join), ","), "err", err)
			}
			return true
		},
	}
	return link.Run(ctx)
}

func (l *look) up(c transport.Conn, f *wire.Frame) {
	var w wire.Welcome
	if err := wire.ParseControl(f, &w); err != nil {
		l.h.Log.Error("the coordinator's answer", "err", err)
		c.Close()
		return
	}
	l.connect(c)
	if l.lost && l.job != "" {
		l.h.Log.Info("the coordinator is back")
	}
	if l.lost = false; l.job == "" {
		l.job = w.Job.ID
		l.joined <- w
	}
}
