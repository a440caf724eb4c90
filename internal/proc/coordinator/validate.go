package coordinator

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// clockReport is a worker's report on its slot: its clock, or a request to end the job.
type clockReport struct {
	Slot       perdure.Slot
	Generation perdure.Generation
	Clock      perdure.Clock
	EndAfter   bool // the job should end after the clock
}

// validate rejects reports that no correct worker would send: for another slot than its own, of a clock outside of the
// job, or an end that the job does not permit.
func validate(job *perdure.JobSpec, v *protocol.View, worker perdure.Slot, r clockReport) error {
	switch {
	case r.Slot != worker:
		return fmt.Errorf("worker:%d sent a report for slot %d", worker, r.Slot)
	case r.Clock < 0 || r.Clock > v.ClockLimit(job):
		return fmt.Errorf("worker:%d reported clock %d; the job's clocks are 0 to %d", worker, r.Clock,
			v.ClockLimit(job))
	case !r.EndAfter || r.Generation != v.Generation: // of a generation that was rolled back
		return nil
	case job.FixedEnd:
		return fmt.Errorf("worker:%d asked to end the job at clock %d, but the job has no goal and ends at clock %d",
			worker, r.Clock, v.End)
	}
	return nil
}

// checkSize rejects a dense table that the servers have no capacity for. Each server may hold the given number of
// bytes; 0 means no limit. Each shard is stored copies times, and a whole table resides on one server. An existing
// table is always accepted.
func checkSize(
	job *perdure.JobSpec, tables []perdure.TableSpec, servers, copies int, bytes int64, spec *perdure.TableSpec,
) error {
	if bytes == 0 || spec.Sparse || spec.Validate(job.Shards) != nil { // an invalid table is rejected later
		return nil
	}
	left := bytes * int64(servers) / int64(copies)
	for i := range tables {
		t := &tables[i]
		if t.Name == spec.Name {
			return nil
		}
		left -= t.Rows * int64(t.Dim) * 4
	}
	if spec.Whole {
		left = min(left, bytes)
	}
	if needs := spec.Rows * int64(spec.Dim) * 4; needs > left {
		return fmt.Errorf("table %s of %d rows × %d takes %d MiB, but only %d MiB of capacity is left",
			spec.Name, spec.Rows,
			spec.Dim, needs>>20, max(0, left)>>20)
	}
	return nil
}
