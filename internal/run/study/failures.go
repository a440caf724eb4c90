package study

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

// The faults of one run of a study are given, drawn from a distribution, or replayed from a record of real machines
// that were taken away. They are a function of the plan, the job's machines and a seed, without time, files or
// processes. A faultPlan does not change once it was made, and any number of goroutines may use it.

// faultJob is what a plan must know of the job that it is for.
type faultJob struct {
	Workers, Servers int
	Time             time.Duration // that it runs, at most; 0: it is bounded by clocks only
	Clocks           perdure.Clock // that it runs, at most
	Seed             uint64
}

// faultPlan says how machines fail. Any of its parts may be there; the faults of all of them are carried out.
type faultPlan struct {
	Given  []string // as on the command line
	Draw   *faultDraw
	Replay *faultReplay
}

// faultList are those of one run, in the order of their times.
type faultList struct {
	All []supervisor.Fault
	// Notes say for people what a plan means for this job, where that is not to be seen from the faults.
	Notes []string
}

// Texts are the faults as on the command line.
func (f *faultList) Texts() (texts []string) {
	for _, fault := range f.All {
		texts = append(texts, fault.String())
	}
	return texts
}

// Of returns the faults of a job's run, or says why the plan does not go with the job.
func (p *faultPlan) Of(job faultJob) (f faultList, err error) {
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
	slices.SortStableFunc(f.All, func(a, b supervisor.Fault) int { // those at a time are before those at a clock
		return cmp.Or(cmp.Compare(a.When.Clock, b.When.Clock), cmp.Compare(a.When.Since, b.When.Since))
	})
	return f, nil
}

// targetsOf lists the machines of a job that may fail, servers first. Each server and each worker is a machine of its
// own.
func targetsOf(who string, job faultJob) (all []supervisor.Target, err error) {
	who = cmp.Or(who, "machines")
	if who != "servers" && who != "workers" && who != "machines" {
		return nil, fmt.Errorf("%w: who: %s; choose servers, workers or machines", perdure.ErrUsage, who)
	}
	add := func(role wire.Role, n int) {
		for i := range n {
			all = append(all, supervisor.Target{Role: role, Index: i})
		}
	}
	if who != "workers" {
		add(wire.RoleServer, job.Servers)
	}
	if who != "servers" {
		add(wire.RoleWorker, job.Workers)
	}
	return all, nil
}

// How a machine fails: without notice, or with one.
func failureKind(text string) (supervisor.FaultKind, error) {
	switch kind := supervisor.FaultKind(cmp.Or(text, string(supervisor.FaultKill))); kind {
	case supervisor.FaultKill, supervisor.FaultTerm, supervisor.FaultFreeze:
		return kind, nil
	}
	return "", fmt.Errorf("%w: how: %s; choose kill, term (with notice) or freeze", perdure.ErrUsage, text)
}

// wholeSeconds rounds to a millisecond, which is what people read, and never to 0 what is above it.
func wholeSeconds(seconds float64) time.Duration {
	ms := math.Round(seconds * 1000)
	if ms < 1 && seconds > 0 {
		ms = 1
	}
	return time.Duration(ms) * time.Millisecond
}
