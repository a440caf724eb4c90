package localrun

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/dashboard"
	"github.com/perdure/perdure/internal/run/locate"
)

// LiveView configures the dashboard of a run.
type LiveView struct {
	Listen   string              // HOST:PORT; "": the run has no dashboard
	Captions []dashboard.Caption // sentences that its page shows
	ShowLink func(url string)    // shows the link to the user; it is a secret
	Framed   bool                // pages of this machine, such as notebooks, may embed the page
}

// ListenDashboard opens a dashboard's socket; keysDir is the directory of the job's keys, or "". It returns nil if the
// address is "".
func ListenDashboard(addr, keysDir string) (*dashboard.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	var ring *keys.Ring
	if keysDir != "" {
		var err error
		if ring, err = locate.OpenRing(keysDir, wire.RoleCoordinator); err != nil {
			return nil, err
		}
	}
	return dashboard.Listen(addr, ring)
}

// liveJob is the run as its live view sees it.
type liveJob struct{ *Run }

// serveStarted serves the live view of a run on this machine on a listener, which may be nil.
func (r liveJob) serveStarted(l *dashboard.Listener, v LiveView) error {
	if l == nil {
		return nil
	}
	d, err := r.serve(l, v)
	if err == nil {
		r.closers = append(r.closers, d)
	}
	return err
}

// serve serves the live view on a listener. The caller closes it.
func (r liveJob) serve(l *dashboard.Listener, v LiveView) (*dashboard.Dashboard, error) {
	d, err := dashboard.Open(l, dashboard.Config{
		Dir: r.dir.Path(), Run: &r.s, Job: r, Captions: v.Captions, Framed: v.Framed,
	})
	if err == nil {
		r.live.Store(d)
	}
	return d, err
}

// listenPause is the time between two attempts to listen on the dashboard's address.
const listenPause = 2 * time.Second

// serveOnHosts serves the live view of a job on several hosts. If the address is not available, it warns and tries
// again in the background: a job that continues after a crash must not depend on its live view.
func (r liveJob) serveOnHosts(addr string, ring *keys.Ring) error {
	try := func() (*dashboard.Dashboard, string, error) {
		l, err := dashboard.Listen(addr, ring)
		if err != nil {
			return nil, "", err
		}
		d, err := r.serve(l, LiveView{})
		if err != nil {
			return nil, "", err
		}
		return d, fmt.Sprintf("the dashboard is at %s; perdure dashboard %s prints a link", d.Address(),
			r.dir.Path()), nil
	}
	d, where, err := try()
	if err == nil {
		r.closers = append(r.closers, d)
		r.view.Message(where)
		return nil
	}
	if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
		return err
	}
	r.view.Message(fmt.Sprintf("%v; the job runs without a dashboard until the address is free", err))
	ctx, cancel := context.WithCancel(context.Background())
	late := &lateView{cancel: cancel, done: make(chan struct{})}
	r.closers = append(r.closers, late)
	go func() {
		defer close(late.done)
		again := time.NewTicker(listenPause)
		defer again.Stop()
		for late.d == nil {
			select {
			case <-again.C:
			case <-ctx.Done():
				return
			}
			if d, where, err := try(); err == nil {
				late.d = d
				r.showLine(where)
			}
		}
	}()
	return nil
}

// lateView is a live view that is served as soon as its address is available.
type lateView struct {
	cancel context.CancelFunc
	done   chan struct{}
	d      *dashboard.Dashboard // nil: not served; may be read once done is closed
}

// Close ends the attempts, or the live view.
func (v *lateView) Close() error {
	v.cancel()
	if <-v.done; v.d == nil {
		return nil
	}
	return v.d.Close()
}

// maxFailures limits how many failures a State has. It is sent twice a second.
const maxFailures = 50

// State implements dashboard.Job.
func (r liveJob) State() dashboard.State {
	p := r.stats.Progress()
	s := dashboard.State{
		Seconds: r.job.Since().Seconds(), Clock: p.Clock, End: p.End, Durable: p.Durable, Serving: p.Serving,
		Summary: r.stats.SoFar(finalValues{Since: r.job.Since(), LogBytes: r.logUsed(), Failures: r.job.Timeline()}),
	}
	// browsers keep those that they have received
	s.Summary.Failures = s.Summary.Failures[max(0, len(s.Summary.Failures)-maxFailures):]
	for _, role := range []wire.Role{wire.RoleCoordinator, supervisor.RoleLog} {
		if pid := r.job.Group().PID(role, 0); pid != 0 {
			s.Processes = append(s.Processes, dashboard.Process{
				Target: string(role), State: "alive", PID: pid, Clock: p.Clock, Local: true,
			})
		}
	}
	for _, d := range p.Members {
		if d.Role == wire.RoleWorker {
			d.Clock = max(d.Clock, p.Clock) // workers report their clocks once a second
		}
		s.Processes = append(s.Processes, dashboard.Process{
			Target: member{d.Role, d.Index}.String(), State: d.State, PID: d.PID, Clock: d.Clock,
			Incarnation: d.Incarnation, Problem: d.Problem, Local: r.job.Group().PID(d.Role, d.Index) != 0,
		})
	}
	return s
}

// Refuses implements dashboard.Job.
func (r liveJob) Refuses() string {
	if r.distributed {
		return "the processes of this job run on hosts, where this machine cannot act; use perdure scale and perdure " +
			"drain"
	}
	return ""
}

// Act implements dashboard.Job.
func (r liveJob) Act(ctx context.Context, a dashboard.Action) (accepted string, err error) {
	if why := r.Refuses(); why != "" {
		return "", fmt.Errorf("%w: %s", perdure.ErrRefused, why)
	}
	if a.Kind == dashboard.ActAdd || a.Kind == dashboard.ActRemove {
		return r.scaleByOne(ctx, a)
	}
	t, err := supervisor.ParseProcess(a.Target)
	if err != nil {
		return "", perdure.Usagef("%w", err)
	}
	if r.job.Group().PID(t.Role, t.Index) == 0 {
		return "", fmt.Errorf("%w: %s is not a running process that this machine's supervisor started",
			perdure.ErrRefused, t)
	}
	switch a.Kind {
	case dashboard.ActKill, dashboard.ActFreeze:
		r.job.AddFault(supervisor.Fault{
			Kind: supervisor.FaultKind(a.Kind), Target: t,
			When: supervisor.When{Since: r.job.Since().Truncate(time.Millisecond)},
		})
	case dashboard.ActResume:
		if err := r.job.Group().Thaw(t.Role, t.Index); err != nil {
			return "", fmt.Errorf("%w: %w", perdure.ErrRefused, err)
		}
		r.job.Emit("resumed", t.String(), time.Now(), t.String()+" may continue")
	default:
		return "", perdure.Usagef("unknown action %q; choose kill, freeze, resume, add or remove", a.Kind)
	}
	return fmt.Sprintf("%s %s", a.Kind, a.Target), nil
}

// scaleByOne lets one worker join or leave.
func (r liveJob) scaleByOne(ctx context.Context, a dashboard.Action) (accepted string, err error) {
	if !r.Run.workers && !r.ownPrograms {
		return "", fmt.Errorf("%w: the workers are programs that you start yourself; use perdure scale",
			perdure.ErrRefused)
	}
	if a.Kind == dashboard.ActAdd {
		workers := 1
		for _, d := range r.stats.Progress().Members {
			if d.Role == wire.RoleWorker && d.Until == 0 {
				workers++
			}
		}
		return r.Control().Scale(ctx, control.Scale{Workers: workers})
	}
	t, err := supervisor.ParseProcess(a.Target)
	if err != nil || t.Role != wire.RoleWorker {
		return "", perdure.Usagef("invalid target %q; only a worker can leave, for example worker:1", a.Target)
	}
	return r.Control().Scale(ctx, control.Scale{Leave: []perdure.Slot{perdure.Slot(t.Index)}})
}
