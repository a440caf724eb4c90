package settings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
)

// onlyWith are flags that a job has use for under some choices only. Given without
// them they would be ignored.
var onlyWith = []struct {
	flags []string
	used  func(job *perdure.JobSpec) bool
	says  string
}{
	{
		[]string{"outage-mb", "outage-rows"},
		func(job *perdure.JobSpec) bool { return job.OnOutage.Continue },
		"is for jobs that go on in an outage; leave it out, or add --on-outage continue",
	},
	{
		[]string{"stale-scale"},
		func(job *perdure.JobSpec) bool {
			return !job.TwoStep(nil) || job.StaleScale == "" || job.StaleScale == perdure.ScaleNone
		},
		"is about updates from old rows, and under bsp there are none; leave it out, or choose another " +
			"--consistency for all tables",
	},
	{
		[]string{"stale-scale"},
		func(job *perdure.JobSpec) bool {
			return job.OnOutage.Continue || job.StaleScale != perdure.ScaleAverage
		},
		"average is about what workers do while a shard is out, and these wait; leave it out, or add --on-outage " +
			"continue",
	},
	{
		[]string{"retain-mb"},
		func(job *perdure.JobSpec) bool { return recovery.Of(job.Recovery).Traits().Retains() },
		"is about updates that workers keep to send them again, as only --recovery resend:C has them do; leave it " +
			"out, or choose it",
	},
	{
		[]string{"mtbf"},
		func(job *perdure.JobSpec) bool { return job.Recovery.Auto },
		"is what the interval between checkpoints is chosen by, which only --recovery checkpoint:auto, resend:auto " +
			"and chain:N,checkpoint:auto do; leave it out, or choose one",
	},
	{
		[]string{"keep-checkpoints"},
		func(job *perdure.JobSpec) bool { return recovery.Of(job.Recovery).Traits().Keeps() },
		"is about checkpoints, and a job under that strategy makes none; leave it out, or choose --recovery " +
			"resend:auto, say",
	},
	{
		[]string{"store"},
		func(job *perdure.JobSpec) bool {
			t := recovery.Of(job.Recovery).Traits()
			return t.Keeps() || t.Logged()
		},
		"is about checkpoints and snapshots, and a job under that strategy makes none; leave it out, or choose " +
			"--recovery resend:auto, say",
	},
	{
		[]string{"log"},
		func(job *perdure.JobSpec) bool { return recovery.Of(job.Recovery).Traits().Logged() },
		"is about the update log, which only --recovery stateless has; leave it out, or choose it",
	},
}

// refuseIdle refuses flags that were given and would be ignored: without another one, or
// since they are empty.
func (a *Asked) refuseIdle(job *perdure.JobSpec) error {
	for _, flag := range []struct{ name, value string }{
		{"on-outage", a.Outage.On},
		{"outage-rows", a.Outage.Rows},
		{"stale-scale", a.Outage.StaleScale},
		{"log", a.Log},
		{"init", a.Work.Init},
	} {
		if flag.value == "" && a.Given[flag.name] {
			return fmt.Errorf("%w: --%s is empty; leave it out, or say what it is to be", perdure.ErrUsage, flag.name)
		}
	}
	for _, rule := range onlyWith {
		i := slices.IndexFunc(rule.flags, func(name string) bool { return a.Given[name] })
		if i >= 0 && !rule.used(job) {
			return fmt.Errorf("%w: --%s %s", perdure.ErrUsage, rule.flags[i], rule.says)
		}
	}
	return nil
}

// services are commands that units and charts start with variables, some of which may be empty: a host's zone.
var services = []string{"agent", "coordinator", "host", "log", "server", "worker"}

// RefuseEmpty refuses an argument without a value: a shell variable that is not set, for example. Otherwise the flag
// would count as left out. Arguments after -- belong to another program.
func RefuseEmpty(args []string) error {
	if len(args) > 0 && slices.Contains(services, args[0]) {
		return nil
	}
	after := "perdure"
	for _, arg := range args {
		switch name, value, assigned := strings.Cut(arg, "="); {
		case arg == "--":
			return nil
		case arg == "":
			return fmt.Errorf("%w: the argument after %s is empty; write its value, or leave it out", perdure.ErrUsage,
				after)
		case assigned && value == "" && strings.HasPrefix(arg, "-"):
			return fmt.Errorf("%w: %s is empty; write its value, or leave it out", perdure.ErrUsage, name)
		}
		after = arg
	}
	return nil
}
