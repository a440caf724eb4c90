package coordinator

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
)

// problems tracks why programs cannot work. The loop owns it.
type problems struct {
	failures
	missingMembers
	claims
}

func newProblems(most int) problems {
	return problems{newFailures(most), newMissingMembers(), claims{}}
}

// failures counts how often the program of each slot fails at one clock, on any host. A program that reaches the job's
// limit ends the job. The loop owns the counts and does not save them, so a new coordinator counts from 0, which delays
// the end.
type failures struct {
	max      int
	slots    map[int]*streak
	arrivals map[int][2]arrival // by slot: its two newest processes, newest first
}

func newFailures(most int) failures {
	return failures{max: most, slots: map[int]*streak{}, arrivals: map[int][2]arrival{}}
}

// arrival is a process that was given a slot, with the slot's clock and the generation at that time.
type arrival struct {
	process    string
	clock      perdure.Clock
	generation perdure.Generation
}

// streak counts failures since the clock last advanced.
type streak struct {
	clock perdure.Clock // the highest clock at which a failure was counted
	n     int
	why   string // the reason of the failure whose output was last shown
}

// count counts a failure at a clock and returns the number of failures since the last progress. Reaching an old clock
// again is not progress, since clocks are repeated after a rollback.
func (s *streak) count(clock perdure.Clock) int {
	if clock > s.clock {
		s.n = 0
	}
	s.clock = max(s.clock, clock)
	s.n++
	return s.n
}

// show returns the output of a failure if it contains more than the reason, and if the reason is new or this is the
// last failure.
func (s *streak) show(e *wire.Exited, last bool) string {
	if !last && s.n > 1 && e.Detail == s.why || !strings.Contains(e.Output, "\n") {
		return ""
	}
	s.why = e.Detail
	return e.Output
}

// noteArrival records a process that was given a slot.
func (f *failures) noteArrival(slot int, a arrival) {
	if now := f.arrivals[slot]; now[0].process != a.process {
		f.arrivals[slot] = [2]arrival{a, now[0]}
	}
}

// slotOf returns the slot that a host's process holds or held. had is false if it never had one.
func (f *failures) slotOf(e *wire.Exited) (slot int, had bool) {
	name := wire.OfHost(e.Host, e.PID)
	for slot, all := range f.arrivals {
		for _, c := range all {
			if strings.HasPrefix(c.process, name) {
				return slot, true
			}
		}
	}
	return 0, false
}

// maxSaid is the maximum number of bytes of a program's output that are passed on.
const maxSaid = 16 << 10

// programFailed counts a worker's failure. It returns an error if the host must be rejected because its programs fail
// before they join the job. Programs on other machines may work.
func programFailed(m *member, c *Coordinator, e *wire.Exited) (err error) {
	f := c.core.Record()
	if !e.Failed || e.Role != wire.RoleWorker || m.hello.Role == wire.RoleWorker || f.IsOver() || c.core.Complete() ||
		c.shutdown.refusal != nil {
		return nil
	}
	e.How, e.Detail = e.How[:min(len(e.How), maxText)], e.Detail[:min(len(e.Detail), maxText)]
	e.Output = e.Output[max(0, len(e.Output)-maxSaid):]
	slot, had := e.Index, slotsOf(f, e.Index)
	if m.hello.Role == wire.RoleObserver {
		slot, had = c.problems.slotOf(e)
	}
	var said membership.Event
	end := ""
	switch {
	case had:
		said, end = c.problems.slotFailed(c.core, slot, e)
		end = cmp.Or(end, c.problems.claimConflict(slot))
	case m.hello.Role == wire.RoleObserver:
		said, err = c.problems.hostFailed(c.core, m, e)
	}
	if said.Kind != "" {
		c.emit(said)
	}
	if end != "" {
		membership.Fail(end, c.core)
	}
	return err
}

func slotsOf(f *membership.JobRecord, slot int) bool { return slot >= 0 && slot < len(f.Slots) }

// slotFailed counts a failure of a slot's program. It returns the event, and why the job ends, or "".
func (f *failures) slotFailed(core *membership.Core, slot int, e *wire.Exited) (said membership.Event, end string) {
	v, clock := &core.Record().View, core.MemberStatus(membership.Worker, slot).Clock
	sl := &v.Slots[slot]
	if sl.Left || e.Code == 0 && (sl.Until > 0 || v.End > 0 && clock >= v.End) {
		return said, "" // the program has finished its work
	}
	if e.Code == wire.ExitRolledBack && f.arrivals[slot][0].generation < v.Generation {
		return said, "" // the rollback ended it
	}
	s := f.slots[slot]
	if s == nil {
		s = &streak{}
		f.slots[slot] = s
	}
	n := s.count(clock)
	// A new process with a wrong command line must not end a job that is making progress.
	final := e.Final && (clock > f.arrivals[slot][0].clock || core.MinClock() == v.CutClocks.Least(v.Cut))
	switch {
	case final && e.Detail != "":
		end = fmt.Sprintf("worker:%d was rejected at clock %d: %s", slot, clock, e.Detail)
	case final || n >= f.max:
		end = fmt.Sprintf("worker:%d failed %d times at clock %d without progress; the last time it %s; correct the "+
			"program and start the job again", slot, n, clock, reasonOf(e))
	}
	return membership.Event{
		Kind: "failure", Target: fmt.Sprintf("worker:%d", slot), Output: s.show(e, end != ""),
		Text: fmt.Sprintf("worker:%d failed at clock %d (%d of %d): %s", slot, clock, n, f.max, reasonOf(e)),
	}, end
}

// hostFailed counts a failure of a host's program without a slot. It returns the event, and an error if the host must
// be rejected.
func (f *failures) hostFailed(core *membership.Core, m *member, e *wire.Exited) (said membership.Event, err error) {
	if e.Index < 0 || e.Index >= perdure.MaxSlots {
		return said, fmt.Errorf("a host reported a failure of worker %d, which is not a valid worker number", e.Index)
	}
	if m.joinFailures == nil {
		m.joinFailures = map[int]*streak{}
	}
	s := m.joinFailures[e.Index]
	if s == nil {
		s = &streak{}
		m.joinFailures[e.Index] = s
	}
	n, who := s.count(core.MinClock()), fmt.Sprintf("worker-%d of host %s", e.Index, m.hello.DisplayName)
	switch {
	case e.Final:
		err = fmt.Errorf("%s cannot run: %s", who, reasonOf(e))
	case n >= f.max:
		err = fmt.Errorf("%s failed %d times before it joined the job; the last time it %s", who, n,
			reasonOf(e))
	}
	return membership.Event{
		Kind: "failure", Output: s.show(e, err != nil),
		Text: fmt.Sprintf("%s failed before it joined (%d of %d): %s", who, n, f.max, reasonOf(e)),
	}, err
}

// reasonOf describes how a program ended, and why if its last output line is known. Code 0 is a failure only of a
// program that has not finished its work, and its last line does not say why.
func reasonOf(e *wire.Exited) string {
	if e.Code == 0 {
		return e.How + " before its work was finished: use the trainer or the job in a with block, or call finish"
	}
	if e.Detail == "" {
		return e.How
	}
	return e.How + ": " + e.Detail
}
