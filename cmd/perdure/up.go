package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/reach"
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

// client finds the job's control API; of a run it then knows the folder.
func (t *target) client() (c *control.Client, err error) {
	c, t.Run, err = reach.Control(t.Address, t.Run, t.SecretFile)
	return c, err
}

// ended adds to a client's error what it most often means.
func ended(err error) error {
	if errors.Is(err, control.ErrUnreachable) {
		return fmt.Errorf("%w; the run has ended, or its coordinator is just being replaced", err)
	}
	return err
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
