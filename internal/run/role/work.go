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
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/worker"
)

// farewell says why a worker ends whose slot has left.
func farewell(out io.Writer, w *worker.Client) {
	if at, left := w.Left(); left {
		fmt.Fprintf(out, "worker:%d has left the job: clock %d was its last\n", w.Slot(), at-1)
	}
}

// Worker is the process of a worker that trains one of the workloads.
type Worker struct {
	Job    reach.Job `embed:""`
	Slot   int       `hidden:"" help:"The slot to take." default:"-1"` // below 0: one that the job chooses
	Beside int       `hidden:"" help:"How many workers this machine has."`
	// LostAfter is how long it may hear of no process of the job; 0: for ever.
	LostAfter time.Duration `help:"@worker_lost_after (default ${default})." default:"1m" placeholder:"TIME"`
	// OutageMB bounds the updates that it queues for shards that are out; 0: as the job says.
	OutageMB int  `name:"outage-mb" help:"@outage_mb (default ${default})." default:"0" placeholder:"N"`
	Waits    bool `hidden:"" help:"Wait for a free slot, and ask for no more."`

	Out   io.Writer    `kong:"-"` // what people are told
	Log   *slog.Logger `kong:"-"`
	Watch Watched      `kong:"-"`
}

// Run trains until the job ends. When ctx ends it finishes its clock, if it can, and leaves.
func (c *Worker) Run(ctx context.Context) error {
	if c.LostAfter < 0 {
		return fmt.Errorf("%w: --lost-after %v; choose a time, or 0s for never", perdure.ErrUsage, c.LostAfter)
	}
	httpdebug.Name(c.Log, "", string(wire.RoleWorker), c.Slot)
	eye, err := c.Watch.Open(ctx, c.Log)
	if err != nil {
		return err
	}
	defer eye.Close()
	s, err := c.Job.Find(ctx, wire.RoleWorker)
	if err != nil {
		return c.unlessDone(err)
	}
	if err := c.check(&s); err != nil {
		return err
	}
	httpdebug.Name(c.Log, s.Job.ID, string(wire.RoleWorker), c.Slot)
	here := cmp.Or(c.Beside, s.Job.Slots)
	machine.Garbage(here)
	machine.Cores(here)
	w, err := workload.New(s.Job.Workload, s.WorkParams())
	if err != nil {
		return err
	}
	faults, err := s.Network(wire.RoleWorker, c.Slot, c.Job.Ring)
	if err != nil {
		return err
	}
	p := &pacer{Least: time.Duration(s.ComputeMs) * time.Millisecond}
	client, err := worker.Dial(hooks.With(ctx, hooks.Worker{
		Network: faults, OpenLog: s.OpenLog(c.Job.Ring, true),
		OnOrder: func(o wire.Order) { Obey(o, faults, p, s.SeedOf(wire.RoleWorker, c.Slot)) },
	}), c.config(&s))
	if err != nil {
		return quiet(c.unlessDone(err))
	}
	defer client.Close()
	httpdebug.Name(c.Log, s.Job.ID, string(wire.RoleWorker), int(client.Slot()))
	eye.Show(metrics.Worker(client, c.Watch.Who(s.Job.ID, wire.RoleWorker, int(client.Slot()))))
	if err := s.CheckSameJob(filepath.Join(c.Job.Run, "run.json"), w, client.Job()); err != nil {
		return err
	}
	if c.Job.Join != "" {
		fmt.Fprintf(c.Out, "worker:%d joins the job; it takes part from clock %d on\n", client.Slot(), client.Now())
	}
	observer := func(ctx context.Context) (*worker.Client, error) {
		return reach.Observe(hooks.With(ctx, hooks.Worker{Network: faults}), worker.Config{
			Coordinator: c.Job.Coordinator, Secret: c.Job.Keys.Job, Log: c.Log,
		})
	}
	err = train(ctx, client, w, s, p, observer)
	farewell(c.Out, client)
	if ctx.Err() != nil {
		_ = client.Leave() // if it does not hear it, the coordinator notices by the silence
	}
	return quiet(err)
}

// check refuses a job that this process cannot work in.
func (c *Worker) check(s *settings.Run) error {
	if s.Job.Workload == settings.OwnWorkload {
		return errOwnWorkers
	}
	if c.OutageMB < 0 || c.OutageMB > settings.MaxOutageMB {
		return fmt.Errorf("%w: --outage-mb %d; choose 0 to %d MiB", perdure.ErrUsage, c.OutageMB, settings.MaxOutageMB)
	}
	if c.OutageMB > 0 && !s.Job.OnOutage.Continue {
		return fmt.Errorf("%w: --outage-mb is for jobs that go on in an outage, and this one waits; leave it out",
			perdure.ErrUsage)
	}
	if c.Job.Told {
		return nil
	}
	return c.Job.NeedsFolder("what its workers train is in its run.json")
}

// config is the worker's client. One that the run's parent or a host has started waits for a slot,
// which a worker that joined may have taken: then it stands by.
func (c *Worker) config(s *settings.Run) worker.Config {
	waits, patience := c.Waits || c.Job.Join == "", time.Duration(0)
	if waits {
		patience = math.MaxInt64
	}
	return worker.Config{
		Coordinator: c.Job.Coordinator, Secret: c.Job.Keys.Job, Slot: perdure.Slot(c.Slot).Exactly(),
		Process: reach.ProcessName(), PID: os.Getpid(), Log: c.Log,
		CacheBytes: s.CacheMB << 20, OutageBytes: int64(c.OutageMB) << 20, RetainBytes: int64(s.RetainMB) << 20,
		Patience: patience, LostAfter: cmp.Or(c.LostAfter, worker.NeverLost), Grow: !waits,
	}
}

// unlessDone returns nil, and says so, where err is that the job is done, or that nobody
// answers while the run's folder has how it ended.
func (c *Worker) unlessDone(err error) error {
	over := errors.Is(err, perdure.ErrDone)
	if !over && c.Job.Run != "" && !errors.Is(err, perdure.ErrUsage) {
		_, missing := os.Stat(filepath.Join(c.Job.Run, "summary.json"))
		over = missing == nil
	}
	if !over {
		return err
	}
	fmt.Fprintln(c.Out, "the job is done: there is nothing to work on any more")
	return nil
}

// errOwnWorkers is why perdure worker does not join every job.
var errOwnWorkers = errors.New("this job's workers are programs of its user's; start one of them with the job's " +
	"address instead")
