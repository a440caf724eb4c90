package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/secrets"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/workload"
)

type upCmd struct {
	jobFlags
	Resume string `help:"Go on from the last checkpoint of that run of perdure up, with its settings; --clocks, --servers, --recovery, --mtbf, --fault, --delay, --bandwidth, --listen, --grace and --out may differ. Your programs begin at its clock." placeholder:"DIR" type:"existingdir"`
	From   string `help:"Begin again with that run.json, of a run of perdure up; --fault, --delay, --bandwidth, --listen, --grace and --out may differ." placeholder:"FILE" type:"existingfile"`
}

// settings turns the flags into what the run is to be, or says what is wrong.
func (u *upCmd) settings() (s settings.Run, err error) {
	switch {
	case u.From != "":
		if err := u.onlyTaken("up", "--from"); err != nil {
			return s, err
		}
		return u.repeat(u.From, true)
	case u.Resume != "":
		if err := u.onlyTaken("up", "--resume"); err != nil {
			return s, err
		}
		return u.goOn(u.Resume, true, func(*settings.Run) error { return nil })
	}
	job, err := u.job(settings.OwnWorkload)
	if err != nil {
		return s, err
	}
	zones, err := settings.ParseZones(u.Servers, u.Zones, u.Zone)
	if err != nil {
		return s, err
	}
	updates, err := u.log(&job)
	if err != nil {
		return s, err
	}
	s = settings.Run{
		Version: version, Job: job, Log: updates, Faults: u.Fault, Zones: zones, Distance: u.distance(),
		Params: workload.Params{Seed: u.Seed, Slots: u.Workers}, CacheMB: settings.DefaultCacheMB, RetainMB: settings.DefaultRetainMB,
	}
	if err := s.CheckFlags(); err != nil {
		return s, err
	}
	s.CacheMB, s.RetainMB = 0, 0 // its programs choose that themselves
	s.Job.Seal, err = s.Seal(nil, "")
	return s, err
}

func (u *upCmd) Run(ctx context.Context, k *kong.Context) error {
	u.given = given(k)
	s, err := u.settings()
	if err != nil {
		return err
	}
	if s.Grace, err = u.parseGrace(); err != nil {
		return err
	}
	s.Listen, s.Job.OwnWorkers = u.Listen, true
	if u.Out == "" {
		u.Out = filepath.Join("runs", "up-"+time.Now().Format("20060102-150405.000"))
	}
	v := newView(stdout, false)
	hard, cancel := untilToldTwice(ctx)
	defer cancel()
	j, err := startJob(ctx, s, u.Out, false, v)
	if j == nil || j.job == nil {
		return err
	}
	defer func() { _ = j.close() }()
	if err != nil {
		return err
	}
	v.begin(j)
	fmt.Fprintf(stdout, "the coordinator is at %s: start %d workers with PERDURE_COORDINATOR=%s PERDURE_SECRET_FILE=%s\n", j.addr, s.WorkersAtFirst(), j.addr, j.secrets.Path)
	ended := make(chan error, 1)
	go func() { ended <- j.job.Run() }()
	defer j.heed(ctx, hard)()
	select {
	case err := <-ended:
		if err = j.stopped(err); errors.Is(err, errStopped) {
			fmt.Fprintln(stdout, err)
			return nil
		}
		return err
	case <-j.complete:
		sum := j.summary(nil)
		j.job.End(errExported) // once the workers have heard that all are done
		<-ended
		fmt.Fprintf(stdout, "done: every worker has finished %d clocks; files in %s\n", j.clock(), j.dir.Path())
		j.safe = true
		return j.insist(hard, "summary.json", func() error { return j.dir.WriteSummary(sum) })
	}
}

// target is a running job, by its folder or address.
type target struct {
	Run     string `help:"The run's folder (default the newest in runs/)." placeholder:"DIR" type:"path"`
	Address string `help:"The address of the control API, instead of --run." placeholder:"HOST:PORT"`
	secretFlag
}

// mostAddress bounds what is read of a file that has an address, in bytes.
const mostAddress = 1 << 12

func (t *target) client() (*control.Client, error) {
	if t.Address != "" {
		k, err := secrets.Read(t.SecretFile, t.Run, wire.RoleWorker)
		return control.NewClient(t.Address, k.Job), err
	}
	if t.Run == "" {
		runs, _ := filepath.Glob("runs/*/control") // the pattern is right
		if len(runs) == 0 {
			return nil, fmt.Errorf("%w: there is no run in runs/; name one with --run DIR or --address HOST:PORT", perdure.ErrUsage)
		}
		newest := slices.MaxFunc(runs, func(a, b string) int { return modified(a).Compare(modified(b)) })
		t.Run = filepath.Dir(newest)
	}
	b, err := disk.ReadRegular(filepath.Join(t.Run, "control"), mostAddress)
	if err != nil {
		return nil, fmt.Errorf("%s is no run's folder: %w", t.Run, err)
	}
	k, err := secrets.ReadOf(t.SecretFile, t.Run)
	return control.NewClient(strings.TrimSpace(string(b)), k.Job), err
}

// ended adds to a client's error what it most often means.
func ended(err error) error {
	if errors.Is(err, control.ErrUnreachable) {
		return fmt.Errorf("%w; the run has ended, or its coordinator is just being replaced", err)
	}
	return err
}

func modified(path string) time.Time {
	if i, err := os.Stat(path); err == nil {
		return i.ModTime()
	}
	return time.Time{}
}

type statusCmd struct{ target }

func (c *statusCmd) Run(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	s, err := client.Status(ctx)
	if err != nil {
		return c.printEnded(stdout, err)
	}
	v, err := client.View(ctx)
	if err != nil {
		return ended(err)
	}
	fmt.Fprintf(stdout, "job %s (%s): %s, clock %d of %d, generation %d, folder %s\n", s.Job, s.Workload, s.State, s.Clock, s.End, s.Generation, s.RunDir)
	replaced := ""
	if s.NoReplace {
		replaced = ", servers that die are not replaced"
	}
	fmt.Fprintf(stdout, "recovery %s%s; to be joined at %s\n%s", s.Recovery, replaced, s.Coordinator, clocksPerSecond(s.ClocksPerSecond))
	if s.Loss != nil {
		fmt.Fprintf(stdout, ", loss %.4f", *s.Loss)
	}
	if s.Accuracy != nil {
		fmt.Fprintf(stdout, ", test accuracy %.4f", *s.Accuracy)
	}
	fmt.Fprintf(stdout, "\nlast: %s\npushed %.1f MB, pulled %.1f MB, updates lost %d\n", s.LastEvent, float64(s.BytesPushed)/1e6, float64(s.BytesPulled)/1e6, s.UpdatesLost)
	for _, p := range s.Processes {
		name := p.Role
		if p.Role != string(wire.RoleCoordinator) && p.Role != string(supervisor.RoleLog) {
			name = fmt.Sprintf("%s:%d", p.Role, p.Index)
		}
		condition := string(p.State)
		if p.Draining {
			condition = "draining"
		}
		if p.Role == string(supervisor.RoleLog) {
			fmt.Fprintf(stdout, "  %-12s pid %-8s incarnation %-3d %s\n", name, pidText(p.PID), p.Incarnation, condition)
			continue
		}
		fmt.Fprintf(stdout, "  %-12s pid %-8s incarnation %-3d %-9s clock %-8d %4d goroutines, heap %.1f MB%s\n",
			name, pidText(p.PID), p.Incarnation, condition, p.Clock, p.Resources.Goroutines, float64(p.Resources.HeapBytes)/1e6, spanLine(p.Role, p.Span)+heldLine(&p)+unreadLine(p.Unread))
	}
	if line := savedLine(&s, v.Durable); line != "" {
		fmt.Fprintln(stdout, "  "+line)
	}
	for _, line := range shardLines(&v) {
		fmt.Fprintln(stdout, "  "+line)
	}
	if line := logLine(ctx, s.RunDir); line != "" {
		fmt.Fprintln(stdout, "  "+line)
	}
	return nil
}

// pidText is "-" where there is no process.
func pidText(pid int) string {
	if pid == 0 {
		return "-"
	}
	return strconv.Itoa(pid)
}

type stopCmd struct{ target }

func (c *stopCmd) Run(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	return ended(client.Stop(ctx))
}

type faultCmd struct {
	target
	Spec string `arg:"" help:"KIND:TARGET@WHEN[+FOR], as for train --fault, for example kill:server:0@0s. A time or clock that is over means now."`
}

func (c *faultCmd) Run(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	accepted, err := client.Fault(ctx, c.Spec)
	if err == nil {
		fmt.Fprintln(stdout, accepted)
	}
	return ended(err)
}

// backend answers the control API in the coordinator's process.
type backend struct {
	co   *coordinator.Coordinator
	run  string
	log  bool   // a process of the job serves its update log
	addr string // where processes of the job connect

	began time.Time // this process
}

func (b *backend) Status(ctx context.Context) (s control.Status, err error) {
	b.settle(ctx)
	err = b.co.Ask(ctx, func(core *membership.Core, latest coordinator.Latest) {
		f := core.Facts()
		s = control.Status{
			Job: f.Job.ID, Workload: f.Job.Workload, RunDir: b.run, Generation: f.View.Generation,
			Clock: core.MinClock(), End: f.View.End, State: state(core),
			Loss: latest.TrainLoss, Accuracy: latest.TestAccuracy, ClocksPerSecond: latest.ClocksPerSecond,
			LastEvent: latest.Event, UpdatesLost: f.UpdatesLost,
			Recovery: f.Job.Recovery, NoReplace: f.Job.NoReplace, Coordinator: b.addr,
		}
		if saving := f.Saving; f.Job.Recovery.Auto {
			s.Saving = &saving
		}
		s.Processes = append(s.Processes, control.Process{
			Role: string(wire.RoleCoordinator), PID: os.Getpid(), State: control.ProcessLive, Clock: core.MinClock(), Resources: perdure.ReadResources(),
		})
		if log := latest.Log; log != nil {
			s.Processes = append(s.Processes, control.Process{
				Role: string(supervisor.RoleLog), PID: log.PID, Incarnation: log.Incarnation, State: processState(log.State),
			})
		}
		add := func(role wire.Role, k membership.Kind, n int) {
			for i := range n {
				d := core.Condition(k, i)
				p := control.Process{
					Role: string(role), Index: i, PID: d.PID, Incarnation: d.Incarnation, Clock: max(d.Clock, 0), State: processState(d.State),
				}
				if d.Server != nil {
					p.Resources, p.Draining = d.Server.Resources, d.Server.Draining
					if p.State == control.ProcessLive { // else it is not heard of
						p.Unread = d.Server.Unread()
					}
				}
				if k == membership.Worker {
					p.Span = f.View.Slots[i].Span
				}
				if d.Worker != nil {
					p.Resources, p.KeptBytes, p.Outage = d.Worker.Resources, d.Worker.KeptBytes, d.Worker.Outage
					s.BytesPushed += d.Worker.Counters.BytesPushed
					s.BytesPulled += d.Worker.Counters.BytesPulled
				}
				s.Processes = append(s.Processes, p)
			}
		}
		add(wire.RoleServer, membership.Server, len(f.Servers))
		add(wire.RoleWorker, membership.Worker, len(f.Slots))
	})
	return s, err
}

// settleFor is how long after its beginning a coordinator is asked again, before it is
// taken by its word: it knows the clocks of workers only once they have come back.
const settleFor = 2 * time.Second

// settle waits until a coordinator that has just begun has heard of all workers.
func (b *backend) settle(ctx context.Context) {
	ctx, cancel := context.WithDeadline(ctx, b.began.Add(settleFor))
	defer cancel()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for heard := false; ; {
		if b.co.Ask(ctx, func(core *membership.Core, _ coordinator.Latest) { heard = core.WorkersHeard() }) != nil || heard {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

func state(core *membership.Core) control.State {
	f := core.Facts()
	switch {
	case f.View.Done || core.Complete():
		return control.StateDone
	case core.Serving():
		return control.StateTraining
	case slices.ContainsFunc(f.Slots[:f.Job.Slots], func(p membership.Place) bool { return p.Incarnation == 0 }):
		return control.StateStarting
	}
	return control.StateRecovering
}

func processState(s string) control.ProcessState {
	switch s {
	case "alive":
		return control.ProcessLive
	case "dead":
		return control.ProcessDead
	case "silent":
		return control.ProcessSuspect
	case "left":
		return control.ProcessLeft
	}
	return control.ProcessStarting
}

func (b *backend) View(ctx context.Context) (v perdure.View, err error) {
	err = b.co.Ask(ctx, func(core *membership.Core, _ coordinator.Latest) { v = core.Facts().View.Clone() })
	return v, err
}

func (b *backend) Fault(ctx context.Context, spec string) (string, error) {
	f, err := supervisor.ParseFault(spec)
	if err != nil {
		return "", err
	}
	var refused error
	err = b.co.Ask(ctx, func(core *membership.Core, _ coordinator.Latest) {
		refused = f.Validate(len(core.Facts().Servers), len(core.Facts().Slots), b.log)
	})
	if err = errors.Join(err, refused); err != nil {
		return "", err
	}
	if err := b.order(ctx, wire.Order{Kind: "fault", Spec: f.String()}); err != nil {
		return "", err
	}
	return "planned: " + f.String(), nil
}

func (b *backend) Stop(ctx context.Context) error {
	return b.order(ctx, wire.Order{Kind: "stop"})
}

func (b *backend) order(ctx context.Context, o wire.Order) error {
	there, err := b.co.Order(ctx, o)
	if err == nil && !there {
		err = fmt.Errorf("the job's supervisor is not connected; try again")
	}
	return err
}

// logLine says how full the update log is of the run in a folder of this machine, and where
// if no process of the job serves it; "" if it has none.
func logLine(ctx context.Context, run string) string {
	s, err := settings.Read(filepath.Join(run, "run.json"))
	if err != nil || s.Log == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, logPatience)
	defer cancel()
	kept, streams, where, err := logKept(ctx, &s)
	if err != nil {
		return "update log: " + plain.Text(err)
	}
	line := fmt.Sprintf("update log: %.1f MB of at most %.1f, in %d streams", float64(kept)/1e6, float64(s.LogBytes())/1e6, streams)
	if !s.HasOwnLog() {
		line += ", at " + where
	}
	return line
}
