package coordinator

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
)

// speakers says which roles may send the coordinator a kind of frame. No other kind may be
// sent.
var speakers = map[wire.Kind][]wire.Role{
	wire.KindStatus:       {wire.RoleServer},
	wire.KindWorkerStatus: {wire.RoleWorker},
	wire.KindTable:        {wire.RoleWorker},
	wire.KindReport:       {wire.RoleWorker},
	wire.KindExited:       {wire.RoleSupervisor, wire.RoleWorker}, // a worker of itself: it leaves
	wire.KindOrder:        {wire.RoleSupervisor},
}

// maySpeak refuses a frame of a kind that its sender's role may not send.
func maySpeak(role wire.Role, kind wire.Kind) error {
	if slices.Contains(speakers[kind], role) {
		return nil
	}
	return fmt.Errorf("a %s may not send a frame of kind %d to the coordinator", role, kind)
}

// fits refuses a dense table that the servers cannot have room for, of which each has as
// many bytes; 0: there is no bound.
func fits(facts *membership.Facts, serverBytes int64, spec *perdure.TableSpec) error {
	left := serverBytes * int64(len(facts.Servers)) / int64(recovery.Of(facts.Job.Recovery).Traits().Copies)
	if serverBytes == 0 || spec.Sparse || spec.Validate(facts.Job.Shards) != nil { // then it is refused anyway
		return nil
	}
	for i := range facts.View.Tables {
		t := &facts.View.Tables[i]
		if t.Name == spec.Name {
			return nil // it is there
		}
		left -= t.Rows * int64(t.Dim) * 4
	}
	if bytes := spec.Rows * int64(spec.Dim) * 4; bytes > left {
		return fmt.Errorf("table %s of %d rows × %d takes %d MiB; there is room for %d", spec.Name, spec.Rows,
			spec.Dim, bytes>>20, max(0, left)>>20)
	}
	return nil
}

// sensible refuses a report that no worker which keeps the rules would send: of another
// slot, of a clock that nobody can have come to, or of an end that the job may not have.
func sensible(facts *membership.Facts, slot int, r *wire.Report) error {
	v := &facts.View
	switch {
	case r.Slot != perdure.Slot(slot):
		return fmt.Errorf("worker:%d reports for slot %d", slot, r.Slot)
	case r.Clock < 0 || r.Clock > v.Latest(&facts.Job):
		return fmt.Errorf("worker:%d reports of clock %d; the job's are 0 to %d", slot, r.Clock, v.Latest(&facts.Job))
	case !r.EndAfter || r.Generation != v.Generation: // of a course of training that was abandoned
		return nil
	case facts.Job.FixedEnd:
		return fmt.Errorf("worker:%d asks for the job's end at clock %d; this job has no goal and ends at clock %d",
			slot, r.Clock, v.End)
	}
	return nil
}
