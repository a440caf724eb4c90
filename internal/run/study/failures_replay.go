package study

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/supervisor"
)

// faultReplay has a job go through a window of a record, in less time.
//
// The machines of the job are the ones that were there when the window began, those that came first first; which
// of them is which server or worker is drawn. One that is taken away is killed; several at once are killed at once.
// The next machine that comes takes the place that has been empty longest, and the killed process is back; what is
// not filled when the window ends is back then. Machines beyond those that the job needs, their ends and comings
// while no place is empty mean nothing to it.
type faultReplay struct {
	Record       *machineRecord
	Name         string // of the record, for people
	From, Length time.Duration
	Into         time.Duration // the job's time for the window
	Boot         time.Duration // from a machine's coming to its work, of the record's time
	Who          string        // servers, workers or machines
	How          string        // kill, or term: with notice
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
		return fmt.Errorf("%w: how: freeze; a machine that is taken away is killed, or has notice: choose kill or term",
			perdure.ErrUsage)
	}
	there, err := r.check(len(targets))
	if err != nil {
		return err
	}
	draw := rand.New(rand.NewPCG(job.Seed, 0))
	draw.Shuffle(len(targets), func(a, b int) { targets[a], targets[b] = targets[b], targets[a] })
	p := replayPlaces{replay: r, kind: kind, targets: targets, holds: there, last: make([]int, len(targets))}
	for _, e := range r.Record.events {
		if e.at >= r.From && e.at < r.From+r.Length {
			p.take(&e)
		}
	}
	f.All = append(f.All, p.end()...)
	f.Notes = append(f.Notes, p.told())
	return nil
}

// check says what is wrong, and which machines the job has at first.
func (r *faultReplay) check(needed int) (there []string, err error) {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%w: replay of %s: "+format, append([]any{perdure.ErrUsage, r.Name}, args...)...)
	}
	switch {
	case r.Length <= 0 || r.Into <= 0:
		return nil, wrong("length, of the record's time, and into, of the job's, are times above 0, for example " +
			"length: 1h and into: 180s")
	case r.From < 0 || r.Boot < 0:
		return nil, wrong("from and boot are times of 0 or more")
	case r.From+r.Length > r.Record.end():
		return nil, wrong("the window ends at %v, and the record at %v; choose an earlier one", r.From+r.Length,
			r.Record.end())
	}
	there = r.Record.at(r.From)
	if len(there) >= needed {
		return there[:needed], nil
	}
	at, ever := r.Record.enough(needed)
	if !ever {
		return nil, wrong("it never has the %d machines that the job needs; choose a smaller job", needed)
	}
	return nil, wrong("at %v there are %d machines, and the job needs %d; the first moment with as many is %v", r.From,
		len(there), needed, at.Truncate(time.Second)+time.Second)
}

// replayPlaces are the job's, and who is in each.
type replayPlaces struct {
	replay  *faultReplay
	kind    supervisor.FaultKind
	targets []supervisor.Target
	holds   []string // the machine in each place; "": it was taken away
	empty   []int    // of faults: the places that wait for a machine, the longest first
	faults  []supervisor.Fault
	place   []int // of each fault

	last []int // of each place the number of its newest fault, from 1; 0: it had none

	elsewhere, early, back int // removals of machines that the job does not have, or not yet; places that were filled
}

// take takes over what happened.
func (p *replayPlaces) take(e *machineEvent) {
	at := slices.Index(p.holds, e.machine)
	switch {
	case !e.came && at < 0:
		p.elsewhere++
	case !e.came && p.boots(at, e.at):
		p.holds[at] = "" // the process has not been back since its last fault, which goes on
		p.empty = append(p.empty, p.last[at]-1)
		p.early++
	case !e.came:
		p.holds[at] = ""
		p.empty = append(p.empty, len(p.faults))
		p.faults = append(p.faults, supervisor.Fault{
			Kind: p.kind, Target: p.targets[at], When: supervisor.When{Since: p.scaled(e.at - p.replay.From)},
		})
		p.place = append(p.place, at)
		p.last[at] = len(p.faults)
	case len(p.empty) > 0:
		i := p.empty[0]
		p.empty = p.empty[1:]
		p.holds[p.place[i]] = e.machine
		p.fill(i, min(e.at-p.replay.From+p.replay.Boot, p.replay.Length))
		p.back++
	}
}

// boots reports whether the process in a place is not back yet from its last fault.
func (p *replayPlaces) boots(at int, when time.Duration) bool {
	if p.last[at] == 0 {
		return false
	}
	f := p.faults[p.last[at]-1]
	return f.When.Since+f.For > p.scaled(when-p.replay.From)
}

// fill ends a fault at a moment of the window.
func (p *replayPlaces) fill(i int, at time.Duration) {
	f := &p.faults[i]
	f.For = max(0, p.scaled(at)-f.When.Since)
}

// end returns the faults. Whoever is still missing is back when the window ends.
func (p *replayPlaces) end() []supervisor.Fault {
	for _, i := range p.empty {
		p.fill(i, p.replay.Length)
	}
	return p.faults
}

func (p *replayPlaces) told() string {
	r := p.replay
	text := fmt.Sprintf("%s from %v to %v, in %v: %d removals hit the job's %d machines, %d machines come for them",
		r.Name, r.From, r.From+r.Length, r.Into, len(p.faults)+p.early, len(p.targets), p.back)
	if p.early > 0 {
		text += fmt.Sprintf(" (taken away before they worked: %d)", p.early)
	}
	if p.elsewhere > 0 {
		text += fmt.Sprintf("; of machines that it does not have: %d, which mean nothing to it", p.elsewhere)
	}
	return text
}

// scaled is a time of the window in the job's time.
func (p *replayPlaces) scaled(t time.Duration) time.Duration {
	return wholeSeconds(t.Seconds() * p.replay.Into.Seconds() / p.replay.Length.Seconds())
}
