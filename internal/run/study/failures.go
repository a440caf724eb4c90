package study

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
)

// The faults of a run are given explicitly, drawn from a distribution, or replayed from a record of preemptions of real
// machines. They depend only on the plan, the job's machines and the seed, not on time, files or processes. A faultPlan
// is immutable and safe for concurrent use.

// faultJob is the information about a job that a plan needs.
type faultJob struct {
	Workers, Servers int
	Time             time.Duration // maximum running time; 0 if only clocks limit the job
	Seed             uint64
}

// faultPlan defines how machines fail. All of its parts that are set apply.
type faultPlan struct {
	Given  []string // as on the command line
	Draw   *faultDraw
	Replay *faultReplay
}

// faultList holds the faults of one run in the order of their times.
type faultList struct {
	All []supervisor.Fault
	// Notes explain what a plan means for this job if the faults do not show it.
	Notes []string
}

// Texts returns the faults as on the command line.
func (f *faultList) Texts() (texts []string) {
	for _, fault := range f.All {
		texts = append(texts, fault.String())
	}
	return texts
}

// Of returns the faults for a run of a job. It returns an error if the plan does not suit the job.
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
	slices.SortStableFunc(f.All, func(a, b supervisor.Fault) int { // faults at a time come before those at a clock
		return cmp.Or(cmp.Compare(a.When.Clock, b.When.Clock), cmp.Compare(a.When.Since, b.When.Since))
	})
	return f, nil
}

// targetsOf lists the machines of a job that may fail, servers first. Each server and each worker is a machine of its
// own.
func targetsOf(who string, job faultJob) (all []supervisor.Target, err error) {
	who = cmp.Or(who, "machines")
	if who != "servers" && who != "workers" && who != "machines" {
		return nil, perdure.Usagef("invalid who: %s; choose servers, workers or machines", who)
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

// failureKind returns how a machine fails: kill, term or freeze. The default is kill.
func failureKind(text string) (supervisor.FaultKind, error) {
	switch kind := supervisor.FaultKind(cmp.Or(text, string(supervisor.FaultKill))); kind {
	case supervisor.FaultKill, supervisor.FaultTerm, supervisor.FaultFreeze:
		return kind, nil
	}
	return "", perdure.Usagef("invalid how: %s; choose kill, term (with notice) or freeze", text)
}

// wholeSeconds rounds to milliseconds for readability, but never rounds a positive time to 0.
func wholeSeconds(seconds float64) time.Duration {
	ms := math.Round(seconds * 1000)
	if ms < 1 && seconds > 0 {
		ms = 1
	}
	return time.Duration(ms) * time.Millisecond
}
