package coordinator

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
)

// claimAfter is how long a process may ask for a slot that is held by another process of the same supervisor's slot.
// After that it is rejected permanently. A dead process is detected sooner, within 6 s.
const claimAfter = 8 * time.Second

// claims records, by slot, since when processes have asked for slots of others. A supervisor starts one process at a
// time for a slot, so two live processes belong to one program.
type claims map[int]claim

type claim struct {
	process, holder string
	since           time.Time
	rejections      int           // number of successive rejections
	clock           perdure.Clock // the slot's clock at the last rejection
	text            string        // the reason
}

// claimConflict returns why a slot's program cannot run, or "". It fails if two of its processes claimed the slot in
// two starts at the same clock. A single claim proves nothing, since a killed start may leave a process behind.
func (cs claims) claimConflict(slot int) string {
	if c := cs[slot]; c.rejections > 1 {
		return c.text
	}
	return ""
}

// checkClaim records that a worker asks for an occupied slot. It returns a permanent refusal, or nil if the worker may
// ask again.
func (cs claims) checkClaim(m *member, c *Coordinator, now time.Time) *wire.Refusal {
	slots, i := c.core.Record().Slots, m.hello.Index
	if m.hello.Role != wire.RoleWorker || i < 0 || i >= len(slots) {
		return nil
	}
	holder := &slots[i]
	if from := hostSecret(m.hello.Process); from == "" || from != hostSecret(holder.Process) ||
		c.core.MemberStatus(membership.Worker, i).State != "alive" {
		delete(cs, i)
		return nil
	}
	was := cs[i]
	if was.process != m.hello.Process || was.holder != holder.Process {
		was.process, was.holder, was.since = m.hello.Process, holder.Process, now
		cs[i] = was
		return nil
	}
	if now.Sub(was.since) < claimAfter {
		return nil
	}
	text := fmt.Sprintf("processes %d and %d of one program both claim worker:%d, but a slot can have only one "+
		"process; join the job from one of them only, or give each its own slot", holder.PID, m.hello.PID, i)
	if clock := c.core.MemberStatus(membership.Worker, i).Clock; clock > was.clock {
		was.rejections, was.clock = 0, clock
	}
	was.rejections, was.text, was.process = was.rejections+1, text, ""
	cs[i] = was
	c.emit(membership.Event{Kind: "trouble", Target: fmt.Sprintf("worker:%d", i), Text: text})
	return &wire.Refusal{Reason: text}
}
