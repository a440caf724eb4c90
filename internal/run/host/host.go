// Package host runs the processes of a job on several hosts: its coordinator (Coordinator), and the servers and workers
// of one machine (Host).
//
// A Host finds the job by the addresses of its coordinators and starts its processes when the job answers. It restarts
// each process that ends. On request it ends them gracefully: first workers, which leave at a clock, then servers,
// which hand over their replicas.
//
//	err := (&host.Host{Join: "10.0.0.5:7000", Servers: 1, Workers: 2, Dir: dir, Log: log}).Run(ctx, atOnce)
//
// The processes are perdure's servers, and perdure's workers or a user's program. They join the job themselves, at the
// addresses that the host passes to them. The host is not a member of the job; its own connection only reports exits
// and shows when the job is over. A Host runs once.
package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
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
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/settings"
)

// Host runs one machine's processes of a job.
type Host struct {
	// Join holds the addresses of its coordinators, separated by commas.
	Join string `help:"@host_join" placeholder:"HOST:PORT,…"`
	// KeysDir has the keys of servers and workers; "": the job has no keys.
	KeysDir string `name:"keys" env:"PERDURE_KEYS" help:"@keys" placeholder:"DIR" type:"path"`
	// SecretFile defaults to the file next to the keys, or to the one in Dir.
	SecretFile string `name:"secret-file" env:"PERDURE_SECRET_FILE" help:"@secret" placeholder:"FILE" type:"path"`

	// number of servers to keep alive
	Servers int `help:"@host_servers (default ${default})." default:"1" placeholder:"N"`
	Workers int `help:"@host_workers (default ${default})." default:"0" placeholder:"N"`
	// Dir belongs to this host and one job. It contains logs and the job's ID.
	Dir string `help:"@host_dir (default ${default})." default:"perdure-host" placeholder:"DIR" type:"path"`
	// Listen is the address for servers, see listens; "": the address from which connections to the job go out.
	Listen    string `help:"@host_listen" placeholder:"HOST[:PORT]"`
	Advertise string `help:"@host_advertise" placeholder:"HOST[:PORT]"`
	Zone      string `help:"@host_zone" placeholder:"NAME"`
	Called    string `name:"name" help:"@host_name" placeholder:"NAME"`
	Notice    Notice `embed:""`

	Command []string `arg:"" optional:"" help:"@host_command"` // command of a worker; empty: perdure's worker

	Output    *os.File           `kong:"-"` // receives the output of the processes; nil: files in Dir
	Program   string             `kong:"-"` // the perdure executable
	Watch     role.Observability `kong:"-"`
	LogFormat httpdebug.Format   `kong:"-"` // for servers and perdure's workers
	Log       *slog.Logger       `kong:"-"`

	name      string // random name of this process
	listed    bool   // listed in the file that Prometheus reads
	preempted bool   // the command of --notice-command has announced the loss of the machine
	secret    string // path of the secret file
	keys      wire.Keys
	ring      *keys.Ring // nil: the job has no keys
}

// hostRole is the role of the host in logs and metrics.
const hostRole = "host"

// programGrace is how long workers may continue after the job is over, for example to write their results.
const programGrace = time.Minute

// Run keeps the processes alive until the job is over. When ctx ends, they end gracefully; when atOnce ends, they end
// immediately.
func (h *Host) Run(ctx, atOnce context.Context) error {
	h.name = rand.Text()
	httpdebug.SetIdentity(h.Log, "", hostRole, -1)
	if err := h.prepare(ctx); err != nil {
		return err
	}
	lock, err := h.lockDir()
	if err != nil {
		return err
	}
	defer lock()
	l := newJobConn(h)
	k, err := newKeeper(h, l.report)
	if err != nil {
		return err
	}
	defer k.stop()
	monitor, err := h.Watch.Open(atOnce, h.Log)
	if err != nil {
		return err
	}
	defer monitor.Close()
	looks, cancel := context.WithCancel(atOnce)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- l.run(looks) }()
	noticed := h.watch(looks)
	select {
	case w := <-l.joined:
		if err := h.startProcesses(k, &w); err != nil {
			return err
		}
		monitor.SetProbe(metrics.Host(k.state, h.Watch.Identity(w.Job.ID, hostRole, -1)))
	case err := <-ended:
		return h.logResult(err)
	case <-ctx.Done():
		return nil
	case <-noticed:
		h.preempted = true
		return nil
	}
	notice, why := h.Notice.For, "a signal"
	select {
	case err := <-ended:
		return h.endWithJob(ctx, atOnce, k, err)
	case err := <-k.fatal:
		return err
	case <-k.idle:
		return nil
	case <-ctx.Done():
	case <-noticed:
		why, h.preempted = "the command given with --notice-command exited with code 0", true
	case n := <-l.ordered:
		if why = "an operator"; n > 0 {
			notice = n
		}
	}
	go func() {
		if err := <-ended; err != nil && atOnce.Err() == nil {
			k.stopReplacing() // without the job, no process can take over, so do not wait
		}
	}()
	h.announceDrain(why, notice)
	h.handOver(ctx, atOnce, k, notice)
	return nil
}

// endWithJob ends the host's processes after the job is over or has rejected this host.
func (h *Host) endWithJob(ctx, atOnce context.Context, k *keeper, why error) error {
	if errors.Is(why, perdure.ErrRefused) {
		h.Log.Error(describeRejection(why), "why", humanize.ErrorText(why))
		// processes with other keys may still be members of the job
		h.handOver(ctx, atOnce, k, cmp.Or(h.Notice.For, programGrace))
		return why
	}
	err := h.logResult(why) // first, because programs may take a while to end
	k.stopReplacing()
	k.await(atOnce, wire.RoleWorker, programGrace)
	return err
}

// describeRejection describes for users that a job which has admitted this host now rejects it.
func describeRejection(why error) string {
	const service = ", so its processes end; stop its service, which would start it again"
	var alert *net.OpError
	switch {
	case errors.Is(why, keys.ErrRevoked):
		return "this host's keys are revoked" + service
	case errors.As(why, &alert) && alert.Op == "remote error": // accepted before, and they have not expired
		return "the job no longer accepts this host's keys, which are probably revoked" + service
	}
	return "the job rejects this host, so its processes end"
}

// Preempted reports, after Run has returned, whether it returned because the notice command announced the loss of the
// machine.
func (h *Host) Preempted() bool { return h.preempted }

// prepare prepares everything that is needed before any process starts.
func (h *Host) prepare(ctx context.Context) error {
	if err := h.check(); err != nil {
		return err
	}
	return h.loadCredentials(ctx)
}

// check returns an error for invalid settings before anything is started.
func (h *Host) check() (err error) {
	switch {
	case h.Join == "":
		return perdure.Usagef("no job given; add --join HOST:PORT with the address that the job's coordinator printed")
	case h.Servers < 0 || h.Servers > perdure.MaxServers:
		return perdure.Usagef("invalid --servers %d; choose 0 to %d", h.Servers, perdure.MaxServers)
	case h.Workers < 0 || h.Workers > perdure.MaxSlots:
		return perdure.Usagef("invalid --workers %d; choose 0 to %d", h.Workers, perdure.MaxSlots)
	case h.Servers+h.Workers == 0:
		return perdure.Usagef("a host without servers or workers has nothing to do; add --servers N or --workers N")
	case len(h.Command) > 0 && h.Workers == 0:
		return perdure.Usagef("the worker command %s was given, but the host has no workers; add --workers N",
			h.Command[0])
	}
	if err := cmp.Or(transport.CheckAddress("--join", h.Join), checkName(h.Called), h.Notice.check()); err != nil {
		return err
	}
	if h.Zone != "" {
		if err := settings.CheckZone(h.Zone); err != nil {
			return perdure.Usagef("--zone: %w", err)
		}
	}
	if len(h.Command) > 0 {
		if _, err := exec.LookPath(h.Command[0]); err != nil {
			return perdure.Usagef("cannot run %s: %w", h.Command[0], humanize.Cause(err))
		}
	}
	return nil
}

// loadCredentials finds the credentials of the host and its processes: keys or a secret.
func (h *Host) loadCredentials(ctx context.Context) (err error) {
	needs := wire.RoleWorker
	if h.Servers > 0 {
		needs = wire.RoleServer
		if h.Workers > 0 && h.KeysDir != "" {
			if _, err := locate.OpenRing(h.KeysDir, wire.RoleWorker); err != nil {
				return err
			}
		}
	}
	if h.ring, err = locate.OpenWatchedRing(ctx, h.KeysDir, needs, h.Log); err != nil {
		return err
	}
	from := h.SecretFile
	if from == "" && h.ring != nil {
		from = h.ring.SecretFile()
	}
	if from == "" {
		from = filepath.Join(h.Dir, locate.SecretFile)
	}
	if h.secret = from; h.ring != nil && h.SecretFile == "" {
		h.secret = "" // its processes find theirs next to their keys
	}
	h.keys, err = locate.ReadSecrets(from, "", needs)
	if h.ring == nil && h.SecretFile == "" && errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; if the job has keys, name their directory with --keys", err)
	}
	return err
}

// lockDir creates the host's directory and locks it against other hosts. release also removes the host from the list
// for Prometheus.
func (h *Host) lockDir() (release func(), err error) {
	if err := os.MkdirAll(filepath.Join(h.Dir, logsDir), 0o777); err != nil {
		return nil, perdure.Usagef("cannot write to %s: %w; choose another --dir", h.Dir, humanize.Cause(err))
	}
	locker, ok := disk.OS().(disk.Locker)
	if !ok {
		return h.hideTargets, nil
	}
	who := fmt.Sprintf("pid %d since %s", os.Getpid(), time.Now().UTC().Format(time.RFC3339))
	lock, err := locker.Lock(filepath.ToSlash(filepath.Join(h.Dir, "lock")), who)
	if locked, is := errors.AsType[*disk.LockedError](err); is {
		return nil, perdure.Usagef("another host uses %s: %s; choose another --dir", h.Dir, locked.Holder)
	}
	if err != nil {
		return nil, err
	}
	return func() {
		h.hideTargets()
		_ = lock.Close() // the lock ends with the process anyway
	}, nil
}

// startProcesses starts the processes after the job has answered.
func (h *Host) startProcesses(k *keeper, w *wire.Welcome) error {
	httpdebug.SetIdentity(h.Log, w.Job.ID, hostRole, -1)
	if h.Workers > 0 && len(h.Command) == 0 && w.Job.Workload == settings.OwnWorkload {
		return perdure.Usagef("this job's workers run your own program; add the command that starts it: perdure host " +
			"… -- COMMAND")
	}
	if err := h.checkSameJob(w.Job.ID); err != nil {
		return err
	}
	specs, err := h.specs()
	if err != nil {
		return err
	}
	if err := h.showTargets(w.Job.ID); err != nil {
		return err
	}
	text := fmt.Sprintf("job %s answers: this host keeps %d servers and %d workers alive", w.Job.ID, h.Servers,
		h.Workers)
	if h.Output == nil {
		text += "; their logs are in " + filepath.Join(h.Dir, logsDir)
	}
	h.Log.Info(text)
	return k.start(specs)
}

// jobFile contains the ID of the job whose logs are in the host's directory.
const jobFile = "job"

// checkSameJob returns an error if the directory belongs to another job. Otherwise it records the job's ID.
func (h *Host) checkSameJob(id string) error {
	path := filepath.Join(h.Dir, jobFile)
	if was, err := os.ReadFile(path); err == nil {
		if text := string(was); text != id+"\n" {
			return perdure.Usagef("%s belongs to job %.40q, but the job at %s is %s; choose another --dir", h.Dir,
				text[:max(0, len(text)-1)], strings.Join(transport.ParseAddresses(h.Join), ","), id)
		}
		return nil
	}
	if err := os.WriteFile(path, []byte(id+"\n"), 0o666); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, humanize.Cause(err))
	}
	return nil
}

// logResult reports how the job ended, if that is why the host ends.
func (h *Host) logResult(err error) error {
	switch {
	case errors.Is(err, perdure.ErrDone):
		h.Log.Info("the job is done")
		return nil
	case errors.Is(err, perdure.ErrFailed):
		return err
	case errors.Is(err, perdure.ErrStopped):
		h.Log.Warn("the job is over", "why", humanize.ErrorText(err))
		return nil
	case errors.Is(err, context.Canceled):
		return nil
	}
	return err
}

// jobConn is the host's own connection to the job. It reports which processes have ended, and receives orders and the
// end of the job.
type jobConn struct {
	h       *Host
	joined  chan wire.Welcome  // capacity 1: the first answer
	ordered chan time.Duration // capacity 1: an operator's order to end, with its notice
	job     string             // ID of the job once it has answered
	lost    bool               // no coordinator answers, and a warning was logged

	mu      sync.Mutex     // guards the fields below
	conn    transport.Conn // nil while not connected
	pending []wire.Frame   // waiting for a connection
}

// maxPending limits the reports that are kept for an unavailable coordinator. It detects dead processes itself if a
// report is dropped.
const maxPending = 1024

// report notifies the coordinator that a process has ended, now or when it is available again.
func (l *jobConn) report(e wire.Exited) {
	e.Host = l.h.name
	f := wire.Control(wire.KindExited, e)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil && transport.SendOrClose(l.conn, f) == nil {
		return
	}
	if len(l.pending) < maxPending {
		l.pending = append(l.pending, f)
	}
}

// connect sets the current connection; nil while not connected.
func (l *jobConn) connect(c transport.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn = c; c != nil && len(l.pending) > 0 && transport.SendOrClose(c, l.pending...) == nil {
		l.pending = nil
	}
}

func newJobConn(h *Host) *jobConn {
	return &jobConn{h: h, joined: make(chan wire.Welcome, 1), ordered: make(chan time.Duration, 1)}
}

// run keeps the connection until the job is over or ctx ends.
func (l *jobConn) run(ctx context.Context) error {
	link := transport.Link{
		Network: transport.TCP{Keys: l.h.ring}, Addr: l.h.Join, PeerRole: keys.Coordinator,
		Hello: func() wire.Hello {
			hello := locate.QueryHello(l.h.keys.Job)
			hello.Job, hello.Process, hello.DisplayName = l.job, l.h.name, l.h.Called
			return hello
		},
		Up: l.onConnect, Frame: func(_ transport.Conn, f *wire.Frame) error { return l.order(f) },
		Down: func(transport.Conn, error) { l.connect(nil) },
		ShouldRetry: func(attempts int, err error) bool {
			switch {
			case l.lost || attempts == 0: // just broken: if the job rejects this host, the next attempt ends the link
			case l.job != "":
				l.lost = true
				l.h.Log.Warn("the coordinator is unavailable; servers and workers continue without it", "err", err)
			case attempts >= len(transport.ParseAddresses(l.h.Join)):
				l.lost = true
				l.h.Log.Warn("no coordinator answers; trying again", "addresses",
					strings.Join(transport.ParseAddresses(l.h.Join), ","), "err", err)
			}
			return true
		},
	}
	return link.Run(ctx)
}

func (l *jobConn) onConnect(c transport.Conn, f *wire.Frame) {
	var w wire.Welcome
	if err := wire.ParseControl(f, &w); err != nil {
		l.h.Log.Error("invalid answer from the coordinator", "err", err)
		c.Close()
		return
	}
	l.connect(c)
	if l.lost && l.job != "" {
		l.h.Log.Info("the coordinator is available again")
	}
	if l.lost = false; l.job == "" {
		l.job = w.Job.ID
		l.joined <- w
	}
}
