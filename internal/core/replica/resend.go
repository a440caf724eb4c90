package replica

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
)

// endedReports records by slot how many clocks its process has reported as ended. The report of a slot's newest process
// replaces those of its predecessors. If losses are allowed, the new process may start below them, and then the
// predecessor's updates are never made again. A shard that waited for them would wait forever, and so would the new
// process.
type endedReports map[perdure.Slot]endedReport

type endedReport struct {
	incarnation perdure.Incarnation
	ended       perdure.Clock
}

// record records a process's report. Observers have no slot and make no updates.
func (p *endedReports) record(r *Reader, ended perdure.Clock) {
	if r.Slot < 0 {
		return
	}
	if *p == nil {
		*p = endedReports{}
	}
	switch said := (*p)[r.Slot]; {
	case r.Incarnation > said.incarnation:
		(*p)[r.Slot] = endedReport{r.Incarnation, ended}
	case r.Incarnation == said.incarnation:
		(*p)[r.Slot] = endedReport{r.Incarnation, max(said.ended, ended)}
	}
}

// of returns the report of a slot's newest process, capped at the job's end, and whether there is a report.
func (p endedReports) of(slot perdure.Slot, v *protocol.View) (ended perdure.Clock, sent bool) {
	said, sent := p[slot]
	ended = said.ended
	if end := v.EndClock(slot); end > 0 {
		ended = min(ended, end)
	}
	return ended, sent
}

// resendProgress tracks how far the workers have resent the updates of a restored shard. The shard starts with the rows
// of a cut and lacks everything after it, though readers of its former life may have seen more. So it withholds its
// rows until it has been sent everything that each slot had done when that slot learned of the new life.
type resendProgress struct {
	restored bool         // the epoch began with restored rows
	reported endedReports // reported when a process opens the shard
	done     bool         // everything has been resent
}

// isIncomplete reports whether the shard still lacks resent updates.
func (m *resendProgress) isIncomplete() bool { return m.restored && !m.done }

// complete reports whether all slots that participate in the view have resent their updates.
func (m *resendProgress) complete(v *protocol.View, in *consistency.Sequencer) bool {
	for i, sl := range v.Slots {
		if sl.Incarnation == 0 || !sl.Settled || sl.Left {
			continue // no process speaks for it: its updates are in the cut
		}
		slot := perdure.Slot(i)
		ended, sent := m.reported.of(slot, v)
		if !sent || i >= len(in.Applied()) {
			return false
		}
		n := in.Counts(slot)
		received := n.Ticked
		if in.Mode() == perdure.ClockAtomic { // its last clocks may not be ticked, and were then not shown either
			received = n.Staged
		}
		if received < ended {
			return false
		}
	}
	return true
}

// A shard that was unavailable catches up gradually: with its stream of the update log, or with the updates that
// workers have queued for it. Until then its rows are older than those of other shards. Training may read them as far
// as the staleness bound allows, but an evaluation of the model checks first.

// beyond reports whether some process has ended clocks that are not applied.
func (p endedReports) beyond(v *protocol.View, applied []perdure.Clock) bool {
	for slot := range p {
		if ended, _ := p.of(slot, v); consistency.AppliedCount(applied, slot) < ended {
			return true
		}
	}
	return false
}
