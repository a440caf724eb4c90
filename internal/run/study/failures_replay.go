package study

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/supervisor"
)

// faultReplay replays a window of a record, scaled to the time of a job.
//
// The machines of the job are those that were up when the window starts, in the order in which they were added. The
// seed assigns them to servers and workers. A removed machine kills its process; machines removed together are killed
// together. The next machine added takes over the slot that has been empty longest, and the killed process restarts
// there. Slots that are still empty at the end of the window are filled then. Machines that the job does not need are
// ignored, including their removal and their addition while no slot is empty.
type faultReplay struct {
	Trace        machineTrace
	Name         string // name of the trace, for messages
	From, Length time.Duration
	Into         time.Duration // the job's time for the window
	Boot         time.Duration // time from a machine's addition until it works, in the trace's time
	Who          string        // servers, workers or machines
	How          string        // kill, or term (with notice)
}

func (r *faultReplay) faults(job faultJob, f *faultList) error {
	targets, err := targetsOf(r.Who, job)
	if err != nil {
		return err
	}
	kind, err := failureKind(r.How)
	if err != nil {
		return err
	}
	if kind == supervisor.FaultFreeze {
		return perdure.Usagef("invalid how: freeze; a removed machine cannot be frozen; choose kill or term")
	}
	there, err := r.check(len(targets))
	if err != nil {
		return err
	}
	draw := rand.New(rand.NewPCG(job.Seed, 0))
	draw.Shuffle(len(targets), func(a, b int) { targets[a], targets[b] = targets[b], targets[a] })
	p := replayState{replay: r, kind: kind, targets: targets, machineIn: there, last: make([]int, len(targets))}
	for _, e := range r.Trace {
		if e.at >= r.From && e.at < r.From+r.Length {
			p.apply(&e)
		}
	}
	f.All = append(f.All, p.end()...)
	f.Notes = append(f.Notes, p.note())
	return nil
}

// check returns an error if the settings are invalid, and otherwise the machines that the job has at first.
func (r *faultReplay) check(needed int) (there []string, err error) {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%w: replay of %s: "+format, append([]any{perdure.ErrUsage, r.Name}, args...)...)
	}
	switch {
	case r.Length <= 0 || r.Into <= 0:
		return nil, wrong("length (of the trace) and into (of the job) must be above 0, for example length: 1h and " +
			"into: 180s")
	case r.From < 0 || r.Boot < 0:
		return nil, wrong("from and boot must not be negative")
	case r.From+r.Length > r.Trace.end():
		return nil, wrong("the window ends at %v, but the trace ends at %v; choose an earlier window", r.From+r.Length,
			r.Trace.end())
	}
	there = r.Trace.at(r.From)
	if len(there) >= needed {
		return there[:needed], nil
	}
	at, ever := r.Trace.firstTimeWith(needed)
	if !ever {
		return nil, wrong("the trace never has the %d machines that the job needs; use a smaller job", needed)
	}
	return nil, wrong("at %v there are %d machines, but the job needs %d; the first time with enough is %v", r.From,
		len(there), needed, at.Truncate(time.Second)+time.Second)
}

// replayState tracks which machine is in each of the job's slots.
type replayState struct {
	replay    *faultReplay
	kind      supervisor.FaultKind
	targets   []supervisor.Target
	machineIn []string // the machine in each slot; "" if it was removed
	empty     []int    // indexes of faults whose slots wait for a machine, oldest first
	faults    []supervisor.Fault
	slotOf    []int // the slot of each fault

	last []int // for each slot the number of its newest fault, from 1; 0 if none

	elsewhere, early, back int // removals of others, or before they worked; slots filled
}

// apply processes an event.
func (p *replayState) apply(e *machineEvent) {
	at := slices.Index(p.machineIn, e.machine)
	switch {
	case !e.added && at < 0:
		p.elsewhere++
	case !e.added && p.boots(at, e.at):
		p.machineIn[at] = "" // the process has not restarted since its last fault, which is extended
		p.empty = append(p.empty, p.last[at]-1)
		p.early++
	case !e.added:
		p.machineIn[at] = ""
		p.empty = append(p.empty, len(p.faults))
		p.faults = append(p.faults, supervisor.Fault{
			Kind: p.kind, Target: p.targets[at], When: supervisor.When{Since: p.scaled(e.at - p.replay.From)},
		})
		p.slotOf = append(p.slotOf, at)
		p.last[at] = len(p.faults)
	case len(p.empty) > 0:
		i := p.empty[0]
		p.empty = p.empty[1:]
		p.machineIn[p.slotOf[i]] = e.machine
		p.fill(i, min(e.at-p.replay.From+p.replay.Boot, p.replay.Length))
		p.back++
	}
}

// boots reports whether the process in a slot has not restarted yet after its last fault.
func (p *replayState) boots(at int, when time.Duration) bool {
	if p.last[at] == 0 {
		return false
	}
	f := p.faults[p.last[at]-1]
	return f.When.Since+f.For > p.scaled(when-p.replay.From)
}

// fill ends a fault at a time of the window.
func (p *replayState) fill(i int, at time.Duration) {
	f := &p.faults[i]
	f.For = max(0, p.scaled(at)-f.When.Since)
}

// end returns the faults. Slots still empty are filled when the window ends.
func (p *replayState) end() []supervisor.Fault {
	for _, i := range p.empty {
		p.fill(i, p.replay.Length)
	}
	return p.faults
}

func (p *replayState) note() string {
	r := p.replay
	text := fmt.Sprintf("%s from %v to %v, in %v: %d removals hit the job's %d machines, %d were replaced",
		r.Name, r.From, r.From+r.Length, r.Into, len(p.faults)+p.early, len(p.targets), p.back)
	if p.early > 0 {
		text += fmt.Sprintf(" (removed before they worked: %d)", p.early)
	}
	if p.elsewhere > 0 {
		text += fmt.Sprintf("; %d removals of other machines were ignored", p.elsewhere)
	}
	return text
}

// scaled converts a time of the window to the job's time.
func (p *replayState) scaled(t time.Duration) time.Duration {
	return wholeSeconds(t.Seconds() * p.replay.Into.Seconds() / p.replay.Length.Seconds())
}
