package settings

import (
	"cmp"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/run/workload"
)

// Flags holds a user's request for a run, as the user wrote it. Its fields are flags of perdure train and perdure
// up. New, Repeat and Resume choose a value for empty fields: the default, the repeated run's value or the resumed
// run's value.
type Flags struct {
	Version  string `kong:"-"` // of Perdure
	Workload string `kong:"-"` // OwnWorkload: the workers are the user's own programs

	Shape  Shape    `embed:""`
	Faults []string `name:"fault" group:"faults" main:"" placeholder:"FAULT" sep:"none"`
	Store  string   `group:"recovery" main:"" placeholder:"URL"` // for checkpoints
	Reach  Reach    `embed:""`
	MTBF   string   `name:"mtbf" group:"recovery" placeholder:"TIME"` // expected time between two failures

	Keep      int    `name:"keep-checkpoints" group:"recovery" default:"1" placeholder:"K"`
	Grace     string `group:"recovery" default:"10s" placeholder:"TIME"`
	NoReplace bool   `group:"recovery"`
	// MaxFailures is how often a slot's program may fail at one clock; 0 means the default.
	MaxFailures int      `group:"recovery" default:"5" placeholder:"N"`
	TakeOver    string   `name:"take-over-after" group:"recovery" placeholder:"TIME"`
	Zones       []string `group:"recovery" placeholder:"NAME"` // of the servers, round-robin

	AtomicClocks bool `group:"consistency"`

	Log     string      `group:"recovery" placeholder:"URL"` // as ParseLog reads it; "" means the default
	Outage  OutageFlags `embed:""`
	Suspend string      `name:"suspend-after" group:"outages" placeholder:"TIME"`
	SimulatedNetwork

	Work  WorkloadFlags   `kong:"-"` // only for perdure train
	Given map[string]bool `kong:"-"` // flags on the command line; a flag that is given but empty is an error
}

// maxFailures is large enough to mean "no limit".
const maxFailures = 1_000_000

// OutageFlags holds a user's settings for the time when some shards of a job are unavailable.
type OutageFlags struct {
	On         string `name:"on-outage" group:"outages" default:"wait" placeholder:"POLICY"`
	Rows       string `name:"outage-rows" group:"outages" default:"apply" placeholder:"HOW"`
	MB         int    `name:"outage-mb" group:"outages" default:"2048" placeholder:"N"`
	StaleScale string `group:"consistency" placeholder:"HOW"`
}

// New makes the settings of a run that starts at clock 0, or returns an error that names the wrong setting.
func (a *Flags) New() (s Run, err error) {
	if s.Job, err = a.Job(); err != nil {
		return s, err
	}
	if s.Zones, err = parseZones(a.Shape.Servers, a.Zones); err != nil {
		return s, err
	}
	if s.Log, err = a.newLog(&s.Job); err != nil {
		return s, err
	}
	s.Faults, s.SimulatedNetwork, s.Checkpoints.Keep = a.Faults, a.SimulatedNetwork, a.Keep
	if err := a.applyStore(&s, ""); err != nil {
		return s, err
	}
	if a.Work.Init != "" {
		s.Checkpoints.Init = &Init{File: a.Work.Init, Read: true}
	}
	s.Params = workload.Params{Seed: a.Shape.Seed, Slots: a.Shape.Workers}
	if a.isOwnWorkload() {
		if err := s.checkFlags(); err != nil {
			return s, err
		}
		s.Job.Seal, err = s.Seal(nil, "")
	} else {
		if err := a.applyWorkload(&s); err != nil {
			return s, err
		}
		if err = s.checkFlags(); err == nil {
			err = s.open(!a.Given["shards"]) // open completes the settings
		}
	}
	if err != nil {
		return s, err
	}
	return s, a.CompletePerRun(&s)
}

func (a *Flags) isOwnWorkload() bool { return a.Workload == OwnWorkload }

// CompletePerRun completes settings with the values that are taken from the command line for every run, including a
// resumed one.
func (a *Flags) CompletePerRun(s *Run) (err error) {
	s.Version, s.Reach = a.Version, a.Reach
	s.Job.OwnWorkers = s.Job.OwnWorkers || a.isOwnWorkload()
	if a.MaxFailures < 0 || a.MaxFailures > maxFailures || a.MaxFailures == 0 && a.Given["max-failures"] {
		return perdure.Usagef("invalid --max-failures %d; choose 1 to %d", a.MaxFailures, maxFailures)
	}
	s.Checkpoints.MaxFailures = a.MaxFailures
	s.Checkpoints.Grace, err = parseGrace(a.Grace)
	return err
}

// Job makes the requested job.
func (a *Flags) Job() (job perdure.JobSpec, err error) {
	shape := a.Shape
	if shape.Clocks == 0 && !a.Given["clocks"] && !a.isOwnWorkload() {
		info, err := a.info()
		if err != nil {
			return job, err
		}
		shape.Clocks = info.Clocks
	}
	if job, err = shape.Parse(a.Workload); err != nil {
		return job, err
	}
	job.AtomicClocks = a.AtomicClocks
	job.NoReplace, job.StaleScale = a.NoReplace, perdure.StaleScale(a.Outage.StaleScale)
	if job.MTBF, err = a.mtbf(); err != nil {
		return job, err
	}
	if err := a.outage(&job); err != nil {
		return job, err
	}
	if job.SuspendMs, err = afterMs("suspend-after", a.Suspend, job.TwoStep(nil)); err != nil {
		return job, err
	}
	if job.TakeOverMs, err = afterMs("take-over-after", a.TakeOver, job.NoReplace); err != nil {
		return job, err
	}
	if job.TakeOverMs > 0 && job.NoReplace {
		return job, perdure.Usagef("--take-over-after has no effect with --no-replace, where other servers take over " +
			"immediately; remove one of them")
	}
	if err := a.rejectIneffective(&job); err != nil {
		return job, err
	}
	return job, recovery.Check(&job)
}

// outage completes a job with the requested behaviour during outages.
func (a *Flags) outage(job *perdure.JobSpec) (err error) {
	o := a.Outage
	if job.OnOutage, err = perdure.ParseOnOutage(cmp.Or(o.On, "wait")); err != nil || !job.OnOutage.Continue {
		return err
	}
	if o.MB < 0 || o.MB > MaxOutageMB || o.MB == 0 && a.Given["outage-mb"] {
		return perdure.Usagef("invalid --outage-mb %d; choose 1 to %d MiB", o.MB, MaxOutageMB)
	}
	job.OutageRows, job.OutageBytes = perdure.OutageRows(o.Rows), int64(o.MB)<<20
	job.StaleScale = cmp.Or(job.StaleScale, perdure.ScaleAverage)
	return nil
}

// newLog makes the settings of the job's update log. It returns nil for a job without a log.
func (a *Flags) newLog(job *perdure.JobSpec) (*Log, error) {
	l := LogFlags{}
	if a.Log != "" {
		var err error
		if l, err = ParseLog(a.Log); err != nil {
			return nil, err
		}
	}
	return NewLog(l, job)
}
