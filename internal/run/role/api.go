package role

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/modelfile"
)

// Scale implements control.Backend. It returns after the request is saved: a caller that then sees a view without the
// request knows that the change was dropped.
func (b *backend) Scale(ctx context.Context, s control.Scale) (accepted string, err error) {
	var refused error
	err = coordinator.AskSaved(ctx, b.co, func(core *membership.Core, _ coordinator.Latest) {
		if slots := core.Record().Job.Slots; modelfile.HasFixedSlots(core.Record().View.Tables) {
			refused = fmt.Errorf("%w: the programs train asynchronously and have divided their data among all slots, "+
				"so their number is fixed at %d: start a new job with the exported model", perdure.ErrRefused, slots)
			return
		}
		ch := membership.Change{Leave: s.Leave, At: s.At}
		if s.Workers != 0 {
			ch, refused = core.Record().Scaled(s.Workers, s.At)
		}
		if refused != nil {
			return
		}
		if ch.Add == 0 && len(ch.Leave) == 0 {
			accepted = fmt.Sprintf("nothing changes: %d workers already take part", s.Workers)
		}
		refused = core.Scale(ch)
	})
	return accepted, errors.Join(err, refused)
}

// Drain implements control.Backend.
func (b *backend) Drain(ctx context.Context, d control.Drain) (ends control.DrainResult, err error) {
	if d.Notice < 0 || d.Notice > control.MaxNotice {
		return ends, perdure.Usagef("invalid notice of %v; choose 0 to %v", d.Notice, control.MaxNotice)
	}
	var all []coordinator.Drained
	var refused error
	err = b.co.Ask(ctx, func(core *membership.Core, latest coordinator.Latest) {
		all, refused = latest.Drain(core, d.Target, d.Notice)
	})
	for _, p := range all {
		ends.Places = append(ends.Places, control.DrainedProcess{
			Role: string(p.Kind), Index: p.Index, Incarnation: p.Incarnation,
		})
	}
	return ends, errors.Join(err, refused)
}

// backend implements the control API in the coordinator's process.
type backend struct {
	co   *coordinator.Coordinator
	run  string
	log  bool   // a process of the job serves its update log
	addr string // address for processes of the job
	// unsupervised means that the job's other processes were not started by this process's parent.
	unsupervised bool
	version      string // of Perdure

	began time.Time // start of this process
}

func (b *backend) Status(ctx context.Context) (s control.Status, err error) {
	b.settle(ctx)
	err = b.co.Inspect(ctx, func(seen *coordinator.Snapshot) {
		f, core, latest := seen.Facts, seen.Core, &seen.Latest
		s = control.Status{
			Job: f.Job.ID, Workload: f.Job.Workload, RunDir: b.run, Generation: f.View.Generation,
			Clock: latest.Clock, End: f.View.End, State: state(f, core),
			Loss: latest.TrainLoss, Accuracy: latest.TestAccuracy, ClocksPerSecond: latest.ClocksPerSecond,
			LastEvent: latest.Event, UpdatesLost: f.UpdatesLost,
			Recovery: f.Job.Recovery, NoReplace: f.Job.NoReplace, Coordinator: b.addr,
		}
		at := time.Now()
		if w := seen.RegistryWait; w != nil {
			s.RegistryAway = &control.RegistryWait{Seconds: w.Duration.Seconds(), Why: w.LastError}
			at = at.Add(-w.Duration)
		}
		for _, p := range latest.Standbys(at) {
			s.Standbys = append(s.Standbys, control.Standby{
				Role: string(p.Role), PID: p.PID, Host: latest.Host(p.Process), Version: p.Version,
			})
		}
		s.Saving = recovery.Saving(f.Job.Recovery, f.Saving, f.Running.Saving)
		s.Processes = append(s.Processes, control.Process{
			Role: string(wire.RoleCoordinator), PID: os.Getpid(), State: control.ProcessLive, Clock: latest.Clock,
			Resources: machine.ResourcesInUse(), Version: b.version,
		})
		if log := latest.Log; log != nil {
			s.Processes = append(s.Processes, control.Process{
				Role: string(supervisor.RoleLog), PID: log.PID, Incarnation: log.Incarnation,
				State: processState(log.State),
			})
		}
		add := func(role wire.Role, k membership.Kind, places []membership.Member) {
			for i := range places {
				d := core.MemberStatus(k, i)
				d.Member = places[i]
				p := control.Process{
					Role: string(role), Index: i, PID: d.PID, Incarnation: d.Incarnation, Clock: max(d.Clock, 0),
					State: processState(d.State),
				}
				if k == membership.Server {
					p.Shards, p.Drained = d.Held, d.Drained
				}
				p.Host, p.Version = latest.Host(d.Process), latest.Version(k, i, d.Process)
				if d.Server != nil {
					p.Bytes = d.Server.Bytes()
					p.Resources, p.Draining = d.Server.Resources, d.Server.Draining && d.State != "dead"
					if p.State == control.ProcessLive { // otherwise its state is unknown
						p.Unread = d.Server.Unread()
					}
				}
				if k == membership.Worker {
					p.Interval = f.View.Slots[i].Interval
				}
				if d.Worker != nil {
					p.Resources, p.KeptBytes, p.Outage = d.Worker.Resources, d.Worker.KeptBytes, d.Worker.Outage
					s.BytesPushed += d.Worker.Counters.BytesPushed
					s.BytesPulled += d.Worker.Counters.BytesPulled
				}
				s.Processes = append(s.Processes, p)
			}
		}
		add(wire.RoleServer, membership.Server, f.Servers)
		add(wire.RoleWorker, membership.Worker, f.Slots)
	})
	return s, err
}

// settleFor is how long after its start a coordinator is polled before its answer counts. It knows the clocks of
// workers only once they have reconnected.
const settleFor = 2 * time.Second

// settle waits until a new coordinator has received the clocks of all workers.
func (b *backend) settle(ctx context.Context) {
	ctx, cancel := context.WithDeadline(ctx, b.began.Add(settleFor))
	defer cancel()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for received := false; ; {
		if b.co.Ask(
			ctx,
			func(core *membership.Core, _ coordinator.Latest) { received = core.AllWorkersReported() },
		) != nil || received {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

func state(f *membership.JobRecord, core *membership.Core) control.State {
	switch {
	case f.View.Done || f == core.Record() && core.Complete():
		return control.StateDone
	case core.Serving():
		return control.StateTraining
	case slices.ContainsFunc(f.Slots[:f.Job.Slots], func(p membership.Member) bool { return p.Incarnation == 0 }):
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

func (b *backend) View(ctx context.Context) (v protocol.View, err error) {
	err = b.co.Inspect(ctx, func(s *coordinator.Snapshot) { v = s.Facts.View.Clone() })
	return v, err
}

func (b *backend) Fault(ctx context.Context, spec string) (string, error) {
	f, err := supervisor.ParseFault(spec)
	if err != nil {
		return "", err
	}
	if b.unsupervised && f.Target.Role != supervisor.RoleShards {
		return "", perdure.Usagef("faults cannot be injected into this job, because its processes run on several " +
			"hosts; stop processes on the hosts, or let shards fail with kill:shards:PART")
	}
	var refused error
	err = b.co.Ask(ctx, func(core *membership.Core, _ coordinator.Latest) {
		record := core.Record()
		refused = f.Validate(len(record.Servers), len(record.Slots), b.log, record.View.ClockLimit(&record.Job))
	})
	if err = errors.Join(err, refused); err != nil {
		return "", err
	}
	if err := b.sendOrder(ctx, wire.Order{Kind: wire.OrderFault, Spec: f.String()}); err != nil {
		return "", err
	}
	return "planned: " + f.String(), nil
}

func (b *backend) Stop(ctx context.Context) error {
	return b.sendOrder(ctx, wire.Order{Kind: wire.OrderStop})
}

func (b *backend) sendOrder(ctx context.Context, o wire.Order) error {
	there, err := b.co.Order(ctx, o)
	if err == nil && !there {
		err = fmt.Errorf("the job's supervisor is not connected; try again")
	}
	return err
}
