package coordinator

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// belief is a worker's word on its slot: how far it is, or that the job is to end there.
type belief struct {
	Slot       perdure.Slot
	Generation perdure.Generation
	Clock      perdure.Clock
	EndAfter   bool // the job is to end after the clock
}

// believe refuses a report that no worker which keeps the rules would send: of another slot
// than its own, of a clock that nobody can have come to, or of an end that the job may not
// have.
func believe(job *perdure.JobSpec, v *words.View, worker perdure.Slot, r belief) error {
	switch {
	case r.Slot != worker:
		return fmt.Errorf("worker:%d reports for slot %d", worker, r.Slot)
	case r.Clock < 0 || r.Clock > v.Latest(job):
		return fmt.Errorf("worker:%d reports of clock %d; the job's are 0 to %d", worker, r.Clock, v.Latest(job))
	case !r.EndAfter || r.Generation != v.Generation: // of a course of training that was abandoned
		return nil
	case job.FixedEnd:
		return fmt.Errorf("worker:%d asks for the job's end at clock %d; this job has no goal and ends at clock %d",
			worker, r.Clock, v.End)
	}
	return nil
}

// fits refuses a dense table that the servers cannot have room for, of which each has as many
// bytes; 0: there is no bound. Each shard is held that many times (copies), and a whole table is
// all on one server. A table that is there already fits.
func fits(
	job *perdure.JobSpec, tables []perdure.TableSpec, servers, copies int, bytes int64, spec *perdure.TableSpec,
) error {
	if bytes == 0 || spec.Sparse || spec.Validate(job.Shards) != nil { // then it is refused anyway
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
		return fmt.Errorf("table %s of %d rows × %d takes %d MiB; there is room for %d", spec.Name, spec.Rows,
			spec.Dim, needs>>20, max(0, left)>>20)
	}
	return nil
}
