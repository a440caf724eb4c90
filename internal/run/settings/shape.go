package settings

import (
	"fmt"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
)

// Shape holds the settings that every job has, as a user writes them.
type Shape struct {
	Workers     int    `group:"job" main:"" default:"4" placeholder:"N"`
	Servers     int    `group:"job" main:"" default:"2" placeholder:"N"`
	Clocks      int64  `group:"job" main:"" default:"300" placeholder:"N"`
	Consistency string `group:"consistency" main:"" default:"bsp" placeholder:"MODEL"`
	Recovery    string `group:"recovery" main:"" default:"resend:auto" placeholder:"STRATEGY"`
	Seed        uint64 `group:"job" main:"" default:"1" placeholder:"N"`
	Shards      int    `group:"job" default:"16" placeholder:"N"`
}

// NoEnd is the number of clocks of a job that its programs end. The Python package sets it.
const NoEnd = 1_000_000_000

// OfClocks returns " of N" for a job of N clocks, and "" for a job that its programs end.
func OfClocks(n perdure.Clock) string {
	if n <= 0 || n >= NoEnd {
		return ""
	}
	return fmt.Sprintf(" of %d", n)
}

// Job makes a job with these settings and defaults for all others.
func (p Shape) Job(name string) (job perdure.JobSpec, err error) {
	if job, err = p.Parse(name); err != nil {
		return job, err
	}
	if job.SuspendMs, err = afterMs("suspend-after", "", job.TwoStep(nil)); err != nil {
		return job, err
	}
	if job.TakeOverMs, err = afterMs("take-over-after", "", job.NoReplace); err != nil {
		return job, err
	}
	return job, recovery.Check(&job)
}

// Parse makes a job from the settings. It does not check the job as a whole.
func (p Shape) Parse(name string) (job perdure.JobSpec, err error) {
	job = perdure.JobSpec{
		ID: NewJobID(), Workload: name, Seed: p.Seed, Slots: p.Workers, Servers: p.Servers, Shards: p.Shards,
	}
	if job.Clocks, err = parseClocks(p.Clocks); err != nil {
		return job, err
	}
	bsp := perdure.Consistency{Kind: perdure.BSP}
	if job.Consistency, job.TableConsistency, err = perdure.ParseModels(p.Consistency, bsp); err != nil {
		return job, err
	}
	job.Recovery, err = perdure.ParseRecovery(p.Recovery)
	return job, err
}

// parseClocks checks the number of clocks of a job.
func parseClocks(n int64) (perdure.Clock, error) {
	if n < 1 || n > math.MaxInt32 {
		return 0, perdure.Usagef("invalid --clocks %d; choose 1 to %d", n, math.MaxInt32)
	}
	return perdure.Clock(n), nil
}
