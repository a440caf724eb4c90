package role

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/worker"
)

// printLeft prints why a worker ends whose slot has left.
func printLeft(out io.Writer, w *worker.Client) {
	if at, left := w.Left(); left {
		fmt.Fprintf(out, "worker:%d has left the job: clock %d was its last\n", w.Slot(), at-1)
	}
}

// Worker is a worker process that trains one of the workloads.
type Worker struct {
	Job    locate.Job `embed:""`
	Slot   int        `hidden:"" help:"The slot to take." default:"-1"` // below 0: the job chooses one
	Beside int        `hidden:"" help:"The number of workers on this machine."`
	// LostAfter is how long the worker may receive nothing from any process of the job; 0: unlimited.
	LostAfter time.Duration `help:"@worker_lost_after (default ${default})." default:"1m" placeholder:"TIME"`
	// OutageMB limits the updates that it queues for unavailable shards; 0: the job's limit.
	OutageMB int  `name:"outage-mb" help:"@outage_mb (default ${default})." default:"0" placeholder:"N"`
	Waits    bool `hidden:"" help:"Wait for a free slot instead of adding one."`

	Out   io.Writer     `kong:"-"` // output for the user
	Log   *slog.Logger  `kong:"-"`
	Watch Observability `kong:"-"`
}

// Run trains until the job ends. When ctx ends, the worker finishes its clock if possible and leaves.
func (c *Worker) Run(ctx context.Context) error {
	if c.LostAfter < 0 {
		return perdure.Usagef("invalid --lost-after %v; choose a time, or 0s for never", c.LostAfter)
	}
	httpdebug.SetIdentity(c.Log, "", string(wire.RoleWorker), c.Slot)
	monitor, err := c.Watch.Open(ctx, c.Log)
	if err != nil {
		return err
	}
	defer monitor.Close()
	s, err := c.Job.Find(ctx, wire.RoleWorker)
	if err != nil {
		return c.unlessDone(err)
	}
	if err := c.check(&s); err != nil {
		return err
	}
	httpdebug.SetIdentity(c.Log, s.Job.ID, string(wire.RoleWorker), c.Slot)
	here := cmp.Or(c.Beside, s.Job.Slots)
	machine.LimitGarbage(here)
	machine.LimitCores(here)
	w, err := workload.New(s.Job.Workload, s.WorkParams())
	if err != nil {
		return err
	}
	faults, err := s.Network(wire.RoleWorker, c.Slot, c.Job.Ring)
	if err != nil {
		return err
	}
	p := &pacer{MinTime: time.Duration(s.ComputeMs) * time.Millisecond}
	client, err := worker.Dial(hooks.NewContext(ctx, hooks.Worker{
		Network: faults, OpenLog: s.OpenLog(c.Job.Ring, true), Version: c.Watch.Version,
		OnOrder: func(o wire.Order) { ApplyFault(o, faults, p, s.SeedOf(wire.RoleWorker, c.Slot)) },
	}), c.config(&s))
	if err != nil {
		return ignoreSignal(c.unlessDone(err))
	}
	defer client.Close()
	httpdebug.SetIdentity(c.Log, s.Job.ID, string(wire.RoleWorker), int(client.Slot()))
	monitor.SetProbe(metrics.Worker(client, c.Watch.Identity(s.Job.ID, wire.RoleWorker, int(client.Slot()))))
	if err := s.CheckSameJob(filepath.Join(c.Job.Run, "run.json"), w, client.Job()); err != nil {
		return err
	}
	if c.Job.Join != "" {
		fmt.Fprintf(c.Out, "worker:%d joins the job; it takes part from clock %d on\n", client.Slot(), client.Now())
	}
	observer := func(ctx context.Context) (*worker.Client, error) {
		return locate.Observe(hooks.NewContext(ctx, hooks.Worker{Network: faults}), worker.Config{
			Coordinator: c.Job.Coordinator, Secret: c.Job.Keys.Job, Log: c.Log,
		})
	}
	err = train(ctx, client, w, s, p, observer)
	printLeft(c.Out, client)
	if ctx.Err() != nil {
		_ = client.Leave() // if the message is lost, the failure detector notices
	}
	return ignoreSignal(err)
}

// check returns an error for a job that this process cannot work in.
func (c *Worker) check(s *settings.Run) error {
	if s.Job.Workload == settings.OwnWorkload {
		return errOwnWorkers
	}
	if c.OutageMB < 0 || c.OutageMB > settings.MaxOutageMB {
		return perdure.Usagef("invalid --outage-mb %d; choose 0 to %d MiB", c.OutageMB, settings.MaxOutageMB)
	}
	if c.OutageMB > 0 && !s.Job.OnOutage.Continue {
		return perdure.Usagef("--outage-mb applies only to jobs that continue during an outage, but this job waits; " +
			"remove it")
	}
	if c.Job.Remote {
		return nil
	}
	return c.Job.RequireDir("its run.json describes what to train")
}

// config returns the configuration of the worker's client. A worker that was started by the run's parent or by a host
// waits for a slot. If a worker that joined has taken the slot, it is on standby.
func (c *Worker) config(s *settings.Run) worker.Config {
	waits, patience := c.Waits || c.Job.Join == "", time.Duration(0)
	if waits {
		patience = math.MaxInt64
	}
	return worker.Config{
		Coordinator: c.Job.Coordinator, Secret: c.Job.Keys.Job, Slot: perdure.Slot(c.Slot).Exactly(),
		Process: locate.ProcessName(), PID: os.Getpid(), Log: c.Log,
		CacheBytes: s.CacheMB << 20, OutageBytes: int64(c.OutageMB) << 20, RetainBytes: int64(s.RetainMB) << 20,
		JoinTimeout: patience, LostAfter: cmp.Or(c.LostAfter, worker.NeverLost), Grow: !waits,
	}
}

// unlessDone returns nil and prints a line if err means that the job is done, or if no process answers and the run's
// directory has the result.
func (c *Worker) unlessDone(err error) error {
	over := errors.Is(err, perdure.ErrDone)
	if !over && c.Job.Run != "" && !errors.Is(err, perdure.ErrUsage) {
		_, missing := os.Stat(filepath.Join(c.Job.Run, "summary.json"))
		over = missing == nil
	}
	if !over {
		return err
	}
	fmt.Fprintln(c.Out, "the job is done: no work is left")
	return nil
}

// errOwnWorkers is why perdure worker cannot join a job whose workers are the user's own programs.
var errOwnWorkers = errors.New("this job's workers run the user's own program; start that program with the job's " +
	"address instead")
