// Package failures says which faults one run of a study goes through: those that are given, times between
// failures that are drawn, or the record of real machines that were taken away.
//
// A plan, the machines of the job and a seed decide all of it: the same three give the same faults, on any
// machine. Nothing here has time, files or processes; a Plan is not changed once it was made, and any number of
// goroutines may ask it.
package failures

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
)

// Job is what a plan must know of the job that it is for.
type Job struct {
	Workers, Servers int
	Time             time.Duration // that it runs, at most; 0: it is bounded by clocks only
	Clocks           perdure.Clock // that it runs, at most
	Seed             uint64
}

// Plan says how machines fail. Any of its parts may be there; the faults of all of them are carried out.
type Plan struct {
	Given  []string // as on the command line
	Draw   *Draw
	Replay *Replay
}

// Faults are those of one run, in the order of their times.
type Faults struct {
	All []supervisor.Fault
	// Notes say for people what a plan means for this job, where that is not to be seen from the faults.
	Notes []string
}

// Texts are the faults as on the command line.
func (f *Faults) Texts() (texts []string) {
	for _, fault := range f.All {
		texts = append(texts, fault.String())
	}
	return texts
}

// Of returns the faults of a job's run, or says why the plan does not go with the job.
func (p *Plan) Of(job Job) (f Faults, err error) {
	for _, text := range p.Given {
		fault, err := supervisor.ParseFault(text)
		if err != nil {
			return f, err
		}
		f.All = append(f.All, fault)
	}
	if p.Draw != nil {
		drawn, err := p.Draw.faults(job)
		if err != nil {
			return f, err
		}
		f.All = append(f.All, drawn...)
	}
	if p.Replay != nil {
		if err := p.Replay.faults(job, &f); err != nil {
			return f, err
		}
	}
	slices.SortStableFunc(f.All, func(a, b supervisor.Fault) int {
		return cmp.Or(compareBool(a.When.ByClock, b.When.ByClock), cmp.Compare(a.When.Clock, b.When.Clock),
			cmp.Compare(a.When.Since, b.When.Since))
	})
	return f, nil
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// Who says which machines of a job may fail. Each server and each worker is a machine of its own.
type Who string

// The machines of a role, or of both.
const (
	Servers  Who = "servers"
	Workers  Who = "workers"
	Machines Who = "machines"
)

// targets lists the machines, servers first.
func (w Who) targets(job Job) (all []supervisor.Target, err error) {
	add := func(role wire.Role, n int) {
		for i := range n {
			all = append(all, supervisor.Target{Role: role, Index: i})
		}
	}
	switch w {
	case Servers:
		add(wire.RoleServer, job.Servers)
	case Workers:
		add(wire.RoleWorker, job.Workers)
	case Machines, "":
		add(wire.RoleServer, job.Servers)
		add(wire.RoleWorker, job.Workers)
	default:
		return nil, fmt.Errorf("%w: who: %s; choose servers, workers or machines", perdure.ErrUsage, w)
	}
	return all, nil
}

// How a machine fails: without notice, or with one.
func how(text string) (supervisor.FaultKind, error) {
	switch kind := supervisor.FaultKind(cmp.Or(text, string(supervisor.FaultKill))); kind {
	case supervisor.FaultKill, supervisor.FaultTerm, supervisor.FaultFreeze:
		return kind, nil
	}
	return "", fmt.Errorf("%w: how: %s; choose kill, term (with notice) or freeze", perdure.ErrUsage, text)
}

// whole rounds to a millisecond, which is what people read, and never to 0 what is above it.
func whole(seconds float64) time.Duration {
	ms := math.Round(seconds * 1000)
	if ms < 1 && seconds > 0 {
		ms = 1
	}
	return time.Duration(ms) * time.Millisecond
}
