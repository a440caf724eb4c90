package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// injectDue injects the faults that are due.
func (j *Job) injectDue() {
	j.mu.Lock()
	if !j.started || j.done {
		j.mu.Unlock()
		return
	}
	now := time.Now()
	clock := j.lastProgress.Clock
	due := j.schedule.Due(j.sinceLocked(now), clock)
	var targets [][]memberID
	for _, f := range due {
		ps := j.targetsLocked(f.Target)
		targets = append(targets, ps)
		for _, p := range ps {
			j.timeline.addFault(f, targetName(p), now, j.sinceLocked(now), j.lastProgress)
			if f.Kind == FaultKill || f.Kind == FaultTerm {
				j.plannedPause[p] = f.For
			}
		}
	}
	j.mu.Unlock()
	for i, f := range due {
		if j.cfg.Watch.Event != nil {
			j.cfg.Watch.Event(wire.Event{
				Kind: "fault", Target: f.Target.String(), Clock: clock, UnixNs: now.UnixNano(),
				Text: "fault: " + f.String(),
			})
		}
		for _, p := range targets[i] {
			if err := j.inject(f, p); err != nil && !errors.Is(err, ErrNotRunning) {
				j.cfg.Log.Error("cannot inject a fault", "fault", f.String(), "err", err)
			}
		}
	}
}

func targetName(p memberID) string {
	if p.role == wire.RoleCoordinator || p.role == RoleShards || p.role == RoleLog {
		return string(p.role)
	}
	return p.String()
}

// targetsLocked returns the places that a target includes. The caller must hold j.mu.
func (j *Job) targetsLocked(t Target) (ps []memberID) {
	if t.Role == RoleShards {
		return []memberID{{role: RoleShards}}
	}
	j.group.mu.Lock()
	defer j.group.mu.Unlock()
	for p := range j.group.children {
		if t.Matches(p.role, p.index) {
			ps = append(ps, p)
		}
	}
	slices.SortFunc(ps, func(a, b memberID) int { return a.index - b.index })
	return ps
}

// inject injects a fault into one process.
func (j *Job) inject(f Fault, p memberID) error {
	switch f.Kind {
	case FaultKill:
		if p.role == RoleShards {
			j.sendOrder(wire.Order{Kind: wire.OrderDrop, Spec: fmt.Sprintf("%g %d", f.Target.Fraction, j.cfg.Seed)})
			return nil
		}
		return j.group.Kill(p.role, p.index)
	case FaultTerm:
		return j.group.Terminate(p.role, p.index)
	case FaultFreeze:
		pid := j.group.PID(p.role, p.index)
		if f.For > 0 {
			time.AfterFunc(f.For, func() {
				if j.group.PID(p.role, p.index) == pid { // otherwise the process was replaced
					_ = j.group.Thaw(p.role, p.index) // the process may have ended
				}
			})
		}
		return j.group.Freeze(p.role, p.index)
	}
	// The process's own fault layer handles the other kinds.
	spec := fmt.Sprintf("%s %g %s", f.Kind, f.Factor, f.For)
	j.sendOrder(wire.Order{Kind: wire.OrderForward, Target: targetName(p), Spec: spec})
	return nil
}

// EndSoon asks worker 0 to end the job at its next clock, as if it had reached the goal. The request is not
// acknowledged and may be lost if a process dies.
func (j *Job) EndSoon() {
	j.sendOrder(
		wire.Order{Kind: wire.OrderForward, Target: targetName(memberID{role: wire.RoleWorker}), Spec: "end 0 0s"})
}

// sendOrder sends an order to the coordinator.
func (j *Job) sendOrder(o wire.Order) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.coordinator.send(wire.Control(wire.KindOrder, o))
}

// Failure is a fault or a death, with its consequences.
type Failure struct {
	Kind         string
	Target       string
	At           time.Duration // since the first clock started
	AtClock      int64
	Detected     *time.Duration // after At
	Serving      *time.Duration
	UpdatesLost  int64
	ClocksRedone int64

	at      time.Time
	planned bool
	died    bool
	pid     int // of the dead process
	before  wire.Progress
}

// timeline matches faults with later reports about their targets.
type timeline struct{ failures []*Failure }

func (t *timeline) addFault(f Fault, target string, now time.Time, since time.Duration, p wire.Progress) {
	t.failures = append(t.failures, &Failure{
		Kind: string(f.Kind), Target: target, At: since, AtClock: int64(p.Clock), at: now, planned: true, before: p,
	})
}

// find returns the oldest failure of a target for which ok is true.
func (t *timeline) find(target string, ok func(*Failure) bool) *Failure {
	for _, f := range t.failures {
		if f.Target == target && ok(f) {
			return f
		}
	}
	return nil
}

// died records an exit, either as part of a planned fault or as a separate failure.
func (t *timeline) died(target string, e Exit, since time.Duration, p wire.Progress) {
	if f := t.find(target, func(f *Failure) bool { return f.planned && !f.died && f.Serving == nil }); f != nil {
		f.died, f.pid = true, e.PID
		return
	}
	t.failures = append(t.failures, &Failure{
		Kind: "death", Target: target, At: since, AtClock: int64(p.Clock), at: e.At, died: true, pid: e.PID, before: p,
	})
}

// elapsed returns how long after the failure an event occurred. at is the wall-clock time that another process
// reported, and heard is when this process received the report. The wall clock may have jumped since the failure. If at
// is impossible, took uses heard instead.
func (f *Failure) elapsed(at, received time.Time) *time.Duration {
	took, most := at.Sub(f.at), received.Sub(f.at)
	if took < 0 || took > most {
		took = most
	}
	return &took
}

func (t *timeline) detected(target string, at, received time.Time) {
	if f := t.find(target, func(f *Failure) bool { return f.Detected == nil }); f != nil {
		f.Detected = f.elapsed(at, received)
	}
}

// serving records that a target works again, and what its failure cost.
func (t *timeline) serving(e wire.Event, received time.Time) {
	if f := t.find(e.Target, func(f *Failure) bool { return f.Serving == nil && f.Detected != nil }); f != nil {
		f.Serving = f.elapsed(time.Unix(0, e.UnixNs), received)
		f.UpdatesLost, f.ClocksRedone = e.UpdatesLost-f.before.UpdatesLost, e.ClocksRedone-f.before.ClocksRedone
	}
}

// settleTime is how long after a death the coordinator's reports are certain to reflect it.
const settleTime = time.Second

// settled records that replacements of dead processes work, once the whole job serves. A coordinator may die before it
// reports this itself.
func (t *timeline) settled(p *wire.Progress, now time.Time) {
	if !p.Serving {
		return
	}
	for _, d := range p.Members {
		target := targetName(memberID{d.Role, d.Index})
		f := t.find(target, func(f *Failure) bool { return f.died && f.Serving == nil })
		if f == nil || now.Sub(f.at) < settleTime || d.State != stateAlive || d.PID == f.pid || d.PID == 0 {
			continue
		}
		if f.Detected == nil {
			t.detected(target, now, now)
		}
		t.serving(wire.Event{
			Target: target, UnixNs: now.UnixNano(), UpdatesLost: p.UpdatesLost,
			ClocksRedone: p.ClocksRedone,
		}, now)
	}
}

func (t *timeline) list() []Failure {
	out := make([]Failure, len(t.failures))
	for i, f := range t.failures {
		out[i] = *f
	}
	return out
}
