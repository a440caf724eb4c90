package coordinator

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
)

// claimAfter is how long a process may ask for a slot that another process of the same supervisor's slot has. Then it
// is refused permanently. A dead process is noticed sooner, after 6 s at most.
const claimAfter = 8 * time.Second

// claims are since when processes ask for slots that others have, by slot. A supervisor starts one process at a time
// for a slot, so two that live are parts of one program.
type claims map[int]claim

type claim struct {
	process, holder string
	since           time.Time
	refused         int           // how many, one after the other
	clock           perdure.Clock // of the slot, when the last one was
	text            string        // why
}

// twice returns why a slot's program cannot run: in two starts at one clock two of its processes claimed the slot. A
// start that was killed may leave a process, so one claim proves nothing. "": it can run.
func (cs claims) twice(slot int) string {
	if c := cs[slot]; c.refused > 1 {
		return c.text
	}
	return ""
}

// claim notes that a worker asks for a slot which is taken. It returns a permanent refusal, or nil where the worker
// may ask again.
func (cs claims) claim(m *member, c *Coordinator, now time.Time) *wire.Refusal {
	slots, i := c.core.Facts().Slots, m.hello.Index
	if m.hello.Role != wire.RoleWorker || i < 0 || i >= len(slots) {
		return nil
	}
	holder := &slots[i]
	if from := hostIn(m.hello.Process); from == "" || from != hostIn(holder.Process) ||
		c.core.Condition(membership.Worker, i).State != "alive" {
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
	text := fmt.Sprintf("processes %d and %d of one program both ask for worker:%d, and both live: a slot is one "+
		"process; join the job in one of them only, or give each a slot of its own", holder.PID, m.hello.PID, i)
	if clock := c.core.Condition(membership.Worker, i).Clock; clock > was.clock {
		was.refused, was.clock = 0, clock
	}
	was.refused, was.text, was.process = was.refused+1, text, ""
	cs[i] = was
	c.tell(membership.Event{Kind: "trouble", Target: fmt.Sprintf("worker:%d", i), Text: text})
	return &wire.Refusal{Reason: text}
}
