package perdure

import "fmt"

// MaxClock bounds the clocks of a job without an end: nobody comes so far, and sums of
// clocks cannot overflow.
const MaxClock = Clock(1) << 40

// Latest returns the highest count of clocks that any slot of the job may say it has.
func (v *View) Latest(job *JobSpec) Clock {
	if end := max(v.End, job.Clocks); end > 0 {
		return end
	}
	return MaxClock
}

// Validate reports what no worker that keeps the rules would say of itself in a job, if
// anything.
func (s *WorkerStatus) Validate(job *JobSpec, v *View) error {
	latest := v.Latest(job)
	if s.Clock < 0 || s.Clock > latest {
		return fmt.Errorf("%w: a worker at clock %d; the job's are 0 to %d", ErrRefused, s.Clock, latest)
	}
	if len(s.Acked) > job.Shards {
		return fmt.Errorf("%w: a worker that speaks of %d shards of %d", ErrRefused, len(s.Acked), job.Shards)
	}
	for _, a := range s.Acked {
		if a.Shard < 0 || int(a.Shard) >= job.Shards || a.Applied < 0 || a.Applied > latest {
			return fmt.Errorf("%w: a worker of whose clocks shard %d has applied %d; the job has %d shards and the "+
				"clocks 0 to %d", ErrRefused, a.Shard, a.Applied, job.Shards, latest)
		}
	}
	if o := s.Outage; o != nil && (len(o.Shards) > job.Shards || o.Seconds < 0 || o.Bytes < 0) {
		return fmt.Errorf("%w: a worker for which %d shards of %d have been out for %v s, with %d bytes queued",
			ErrRefused, len(o.Shards), job.Shards, o.Seconds, o.Bytes)
	}
	return nil
}
