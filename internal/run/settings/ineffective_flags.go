package settings

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
)

// flagConditions lists flags that have an effect only with certain other choices. Given without them, they would be
// ignored.
var flagConditions = []struct {
	flags []string
	used  func(job *perdure.JobSpec) bool
	says  string
}{
	{
		[]string{"outage-mb", "outage-rows"},
		func(job *perdure.JobSpec) bool { return job.OnOutage.Continue },
		"applies only to jobs that continue during an outage; leave it out, or add --on-outage continue",
	},
	{
		[]string{"stale-scale"},
		func(job *perdure.JobSpec) bool {
			return !job.TwoStep(nil) || job.StaleScale == "" || job.StaleScale == perdure.ScaleNone
		},
		"scales updates computed from stale rows, which do not occur under bsp; leave it out, or choose " +
			"another --consistency for all tables",
	},
	{
		[]string{"stale-scale"},
		func(job *perdure.JobSpec) bool {
			return job.OnOutage.Continue || job.StaleScale != perdure.ScaleAverage
		},
		"average applies only if workers continue while a shard is unavailable, but this job's workers wait; leave " +
			"it out, or add --on-outage continue",
	},
	{
		[]string{"retain-mb"},
		func(job *perdure.JobSpec) bool { return recovery.Of(job.Recovery).Traits().RetainsUpdates() },
		"limits the updates that workers keep for resending, which they do only with --recovery resend:C; leave it " +
			"out, or choose that strategy",
	},
	{
		[]string{"mtbf"},
		func(job *perdure.JobSpec) bool { return job.Recovery.Auto },
		"determines the automatic checkpoint interval, which only --recovery checkpoint:auto, resend:auto and " +
			"chain:N,checkpoint:auto use; leave it out, or choose one of them",
	},
	{
		[]string{"keep-checkpoints"},
		func(job *perdure.JobSpec) bool { return recovery.Of(job.Recovery).Traits().SavesAny() },
		"applies to checkpoints, but a job with this recovery strategy makes none; leave it out, or choose another " +
			"strategy, for example --recovery resend:auto",
	},
	{
		[]string{"store"},
		func(job *perdure.JobSpec) bool {
			t := recovery.Of(job.Recovery).Traits()
			return t.SavesAny() || t.UsesLog() || job.Workload == OwnWorkload // whose programs may save states
		},
		"applies to checkpoints and snapshots, but a job with this recovery strategy makes none; leave it out, or " +
			"choose another strategy, for example --recovery resend:auto",
	},
	{
		[]string{"log"},
		func(job *perdure.JobSpec) bool { return recovery.Of(job.Recovery).Traits().UsesLog() },
		"configures the update log, which only --recovery stateless uses; leave it out, or choose that strategy",
	},
}

// rejectIneffective returns an error for given flags that would be ignored, because another flag is missing or because
// they are empty.
func (a *Flags) rejectIneffective(job *perdure.JobSpec) error {
	for _, flag := range []struct{ name, value string }{
		{"on-outage", a.Outage.On},
		{"outage-rows", a.Outage.Rows},
		{"stale-scale", a.Outage.StaleScale},
		{"log", a.Log},
		{"init", a.Work.Init},
	} {
		if flag.value == "" && a.Given[flag.name] {
			return perdure.Usagef("--%s is empty; leave it out, or give it a value", flag.name)
		}
	}
	for _, rule := range flagConditions {
		i := slices.IndexFunc(rule.flags, func(name string) bool { return a.Given[name] })
		if i >= 0 && !rule.used(job) {
			return perdure.Usagef("--%s %s", rule.flags[i], rule.says)
		}
	}
	return nil
}

// services are commands that service units and charts start with variables. Some of these may be empty, for example a
// host's zone.
var services = []string{"agent", "coordinator", "host", "log", "server", "worker"}

// RejectEmpty returns an error for an argument without a value, for example from a shell variable that is not set.
// Without this check the flag would count as omitted. Arguments after -- belong to another program and are not checked.
func RejectEmpty(args []string) error {
	if len(args) > 0 && slices.Contains(services, args[0]) {
		return nil
	}
	after := "perdure"
	for _, arg := range args {
		switch name, value, assigned := strings.Cut(arg, "="); {
		case arg == "--":
			return nil
		case arg == "":
			return perdure.Usagef("the argument after %s is empty; write its value, or leave it out", after)
		case assigned && value == "" && strings.HasPrefix(arg, "-"):
			return perdure.Usagef("%s is empty; write its value, or leave it out", name)
		}
		after = arg
	}
	return nil
}
