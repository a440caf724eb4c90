package coordinator

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
)

// troubles are what keeps programs from working. The loop owns them.
type troubles struct {
	failures
	missing
	claims
}

func newTroubles(most int) troubles { return troubles{newFailures(most), newMissing(), claims{}} }

// failures counts how often the program of each slot fails at one clock, on whatever hosts it runs. A program that
// fails as often as the job allows ends the job. The counts are the loop's, and not recorded: a new coordinator counts
// from 0, which delays the end.
type failures struct {
	most  int
	slots map[int]*streak
	came  map[int][2]came // by slot: its newest processes, the last first
}

func newFailures(most int) failures {
	return failures{most: most, slots: map[int]*streak{}, came: map[int][2]came{}}
}

// came is a process that was given a slot, and the slot's clock then.
type came struct {
	process string
	clock   perdure.Clock
}

// streak counts failures since the clock last advanced.
type streak struct {
	clock perdure.Clock // the furthest at which one was counted
	n     int
	why   string // the last line of the failure whose lines were shown last
}

// count counts a failure at a clock, and returns how many there were at it. A clock that was reached before is no
// progress: it is repeated after a rollback.
func (s *streak) count(clock perdure.Clock) int {
	if clock > s.clock {
		s.n = 0
	}
	s.clock = max(s.clock, clock)
	s.n++
	return s.n
}

// show returns the last lines of a failure where they say more than its reason, and are news or the last ones.
func (s *streak) show(e *wire.Exited, last bool) string {
	if !last && s.n > 1 && e.Why == s.why || !strings.Contains(e.Said, "\n") {
		return ""
	}
	s.why = e.Why
	return e.Said
}

// comes notes a process that was given a slot.
func (f *failures) comes(slot int, process string, clock perdure.Clock) {
	if now := f.came[slot]; now[0].process != process {
		f.came[slot] = [2]came{{process, clock}, now[0]}
	}
}

// slotOf returns the slot that a process of a host has or had; false: it had none.
func (f *failures) slotOf(e *wire.Exited) (slot int, had bool) {
	name := wire.OfHost(e.Host, e.PID)
	for slot, all := range f.came {
		for _, c := range all {
			if strings.HasPrefix(c.process, name) {
				return slot, true
			}
		}
	}
	return 0, false
}

// mostSaid bounds the last lines of a program that are passed on, in bytes.
const mostSaid = 16 << 10

// programFailed counts a worker's end by its own fault. An error turns the host away whose programs fail before they
// have joined the job: those of another machine may be well.
func programFailed(m *member, c *Coordinator, e *wire.Exited) (err error) {
	f := c.core.Facts()
	if !e.Failed || e.Role != wire.RoleWorker || m.hello.Role == wire.RoleWorker || f.Over() || c.core.Complete() ||
		c.bye.why != nil {
		return nil
	}
	e.How, e.Why = e.How[:min(len(e.How), mostWords)], e.Why[:min(len(e.Why), mostWords)]
	e.Said = e.Said[max(0, len(e.Said)-mostSaid):]
	slot, had := e.Index, slotsOf(f, e.Index)
	if m.hello.Role == wire.RoleObserver {
		slot, had = c.troubles.slotOf(e)
	}
	var said membership.Event
	end := ""
	switch {
	case had:
		said, end = c.troubles.ofSlot(c.core, slot, e)
		end = cmp.Or(end, c.troubles.twice(slot))
	case m.hello.Role == wire.RoleObserver:
		said, err = c.troubles.ofHost(c.core, m, e)
	}
	if said.Kind != "" {
		c.tell(said)
	}
	if end != "" {
		membership.Fail(end, c.core)
	}
	return err
}

func slotsOf(f *membership.Facts, slot int) bool { return slot >= 0 && slot < len(f.Slots) }

// ofSlot counts a failure of a slot's program. It returns the event, and why the job ends; "": it continues.
func (f *failures) ofSlot(core *membership.Core, slot int, e *wire.Exited) (said membership.Event, end string) {
	v, clock := &core.Facts().View, core.Condition(membership.Worker, slot).Clock
	sl := &v.Slots[slot]
	if sl.Left || e.Code == 0 && (sl.Until > 0 || v.End > 0 && clock >= v.End) {
		return said, "" // it has done its work
	}
	s := f.slots[slot]
	if s == nil {
		s = &streak{}
		f.slots[slot] = s
	}
	n := s.count(clock)
	// A newcomer with another command line does not end a job that works.
	final := e.Final && (clock > f.came[slot][0].clock || core.MinClock() == v.Cut)
	switch {
	case final && e.Why != "":
		end = fmt.Sprintf("worker:%d was refused at clock %d: %s", slot, clock, e.Why)
	case final || n >= f.most:
		end = fmt.Sprintf("worker:%d failed %d times at clock %d, and would again; at last it %s; correct the program "+
			"and start the job again", slot, n, clock, reasonOf(e))
	}
	return membership.Event{
		Kind: "failure", Target: fmt.Sprintf("worker:%d", slot), Said: s.show(e, end != ""),
		Text: fmt.Sprintf("worker:%d failed at clock %d (%d of %d): %s", slot, clock, n, f.most, reasonOf(e)),
	}, end
}

// ofHost counts a failure of a host's program that had no slot. It returns the event, and why the host is turned away.
func (f *failures) ofHost(core *membership.Core, m *member, e *wire.Exited) (said membership.Event, err error) {
	if e.Index < 0 || e.Index >= perdure.MaxSlots {
		return said, fmt.Errorf("a host says that its worker %d has failed", e.Index)
	}
	if m.failing == nil {
		m.failing = map[int]*streak{}
	}
	s := m.failing[e.Index]
	if s == nil {
		s = &streak{}
		m.failing[e.Index] = s
	}
	n, who := s.count(core.MinClock()), fmt.Sprintf("worker-%d of host %s", e.Index, m.hello.Called)
	switch {
	case e.Final:
		err = fmt.Errorf("%s cannot run: %s", who, reasonOf(e))
	case n >= f.most:
		err = fmt.Errorf("%s failed %d times before it joined the job, and would again; at last it %s", who, n,
			reasonOf(e))
	}
	return membership.Event{
		Kind: "failure", Said: s.show(e, err != nil),
		Text: fmt.Sprintf("%s failed before it joined (%d of %d): %s", who, n, f.most, reasonOf(e)),
	}, err
}

// reasonOf says how a program ended, and why as far as its last line says it.
func reasonOf(e *wire.Exited) string {
	if e.Why == "" {
		return e.How
	}
	return e.How + ": " + e.Why
}
