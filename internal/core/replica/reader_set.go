package replica

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// ReaderSet tracks the readers of a shard: their connections, their waiting reads and Opens, the rows pushed to them,
// and which counts they have not been sent. Methods that need the rows get the state as an argument.
type ReaderSet struct {
	readers
	pushes   pushes
	unstored int // as in Settings; never 0
	view     *protocol.View
	fx       Effects
}

// locallyAppliedBy returns the slot of an update if the slot's reader knows the update's effect on the rows itself.
// That is not the case for an update of an earlier process, so shows then returns NoSlot.
func (a *ReaderSet) locallyAppliedBy(u *consistency.Update) perdure.Slot {
	if c := a.slots[u.Slot].reader; c != nil && c.Incarnation == u.Incarnation {
		return u.Slot
	}
	return perdure.NoSlot
}

// renew starts a new epoch, in which readers must open the shard again.
func (a *ReaderSet) renew() {
	a.readers.renew(&a.fx)
	a.pushes.restart(len(a.slots))
}

// grow adds the slots that the state has and the audience lacks.
func (a *ReaderSet) grow(st *State) {
	if slots := len(st.Applied()); slots > len(a.slots) {
		a.readers.grow(slots)
		a.pushes.grow(slots, st.Applied(), st.Seq())
	}
}

// updateProcesses updates which process speaks for each slot. Updates queued by superseded processes will never arrive,
// so it deletes their reports from queued.
func (a *ReaderSet) updateProcesses(queued endedReports) {
	v := a.view
	for i, sl := range v.Slots[:min(len(v.Slots), len(a.slots))] {
		slot, s := perdure.Slot(i), &a.slots[i]
		if s.speaker > 0 && s.speaker < sl.Incarnation {
			a.pushes.opened(slot) // the former process's cache is gone
		}
		if s.speaker < sl.Incarnation {
			delete(queued, slot)
		}
		s.speaker = max(s.speaker, sl.Incarnation)
		if s.reader != nil && s.reader.Incarnation < sl.Incarnation {
			s.reader = nil
			a.pushes.stop(slot)
		}
		a.pushes.active(slot, a.hasProcess(slot))
	}
}

// hasProcess reports whether a slot has a process that may read, because the view says so or because the process has
// opened the shard. A server that gets the view late, for example while it is cut off from the coordinator, must not
// conclude that the slot has no reader.
func (a *ReaderSet) hasProcess(slot perdure.Slot) bool {
	var sl protocol.SlotView
	if int(slot) < len(a.view.Slots) {
		sl = a.view.Slots[slot]
	}
	switch opened := a.slots[slot].opened; {
	case opened > sl.Incarnation:
		return true
	case sl.Incarnation == 0 || sl.Left:
		return false
	default:
		return sl.Settled || opened == sl.Incarnation
	}
}

// AddWaiting keeps a read until it can be answered.
func (a *ReaderSet) AddWaiting(rd Read) { a.waiting = append(a.waiting, rd) }

// answer records that a read is answered with the current rows.
func (a *ReaderSet) answer(rd *Read, st *State) error {
	if err := st.rows.checkRead(rd, len(st.intake.Applied())); err != nil {
		return err
	}
	if !rd.Scan && rd.Subscribe && a.IsCurrent(rd.Reader) {
		p := st.rows.parts[rd.Rows.Table]
		n := a.pushes.subscribe(rd.Reader.Slot, &rd.Rows, p.Spec.Consistency.Kind == perdure.VAP, st.rows.seq)
		if n > p.Stored()+a.unstored {
			return fmt.Errorf("slot %d would subscribe to %d rows of table %s on shard %d, which stores %d rows; at "+
				"most %d more are allowed", rd.Reader.Slot, n, p.Spec.Name, st.rows.shard, p.Stored(),
				a.unstored)
		}
	}
	return nil
}

// answerWaiting answers the waiting reads that MinClock now allows. It skips the scan while nothing that this depends
// on has changed; otherwise the cost of each update would grow with the number of readers.
func (a *ReaderSet) answerWaiting(st *State, holds bool) {
	q := &a.readers
	now := allowance{st.MinClock(), len(st.rows.parts), holds}
	if len(q.waiting) == 0 || now == q.tried {
		return
	}
	q.tried = now
	q.waiting = slices.DeleteFunc(q.waiting, func(rd Read) bool {
		if !st.allows(&rd) || holds {
			return false
		}
		err := a.answer(&rd, st)
		a.fx.Answers = append(a.fx.Answers, Answer{Read: rd, Ack: err == nil && q.TakeAck(rd.Reader), Err: err})
		return true
	})
}

// HasPendingOpens reports whether Opens wait.
func (a *ReaderSet) HasPendingOpens() bool { return len(a.opening) > 0 }

// answerOpens answers the Opens that may be answered once the log is applied up to pos.
func (a *ReaderSet) answerOpens(pos uint64, st *State) {
	q := &a.readers
	q.opening = slices.DeleteFunc(q.opening, func(o Open) bool {
		if o.Pos > pos || !q.KnowsSlot(o.Reader) {
			return false
		}
		a.answerOpen(o.Reader, o.Writes, st)
		return true
	})
}

func (a *ReaderSet) answerOpen(c *Reader, writes bool, st *State) {
	if c.Slot >= 0 && c.Incarnation < st.intake.Incarnation(c.Slot) {
		return // its connection is being closed
	}
	opened := Opened{Reader: c}
	switch q := &a.readers; {
	case c.Slot >= 0 && !writes:
		s := &q.slots[c.Slot]
		if old := s.reader; old != nil && old != c && old.Incarnation == c.Incarnation {
			opened.Replaces = old
		}
		s.reader = c
		q.list(c.Slot)
		a.pushes.stop(c.Slot) // nothing is pushed until the slot reads
		s.speaker, s.opened = max(s.speaker, c.Incarnation), max(s.opened, c.Incarnation)
		a.pushes.opened(c.Slot)
		a.pushes.active(c.Slot, a.hasProcess(c.Slot))
	case q.IsCurrent(c): // it now reads from another replica
		q.slots[c.Slot].reader = nil
		a.pushes.stop(c.Slot)
	}
	a.fx.Opened = append(a.fx.Opened, opened)
	if a.pushes.seen != nil {
		a.acknowledge(st) // other slots need not wait for its former cache
	}
}

// Forget drops a connection that has ended.
func (a *ReaderSet) Forget(c *Reader) {
	q := &a.readers
	q.drop(&a.fx, func(rd *Read) bool { return rd.Reader == c })
	q.opening = slices.DeleteFunc(q.opening, func(o Open) bool { return o.Reader == c })
	if q.IsCurrent(c) {
		q.slots[c.Slot].reader = nil
		a.pushes.stop(c.Slot)
	}
}

// Retire drops all readers at the end of this life of the shard. They ask its successor.
func (a *ReaderSet) Retire() {
	a.opening = nil
	a.drop(&a.fx, func(*Read) bool { return true })
	for i := range a.slots {
		a.slots[i].reader = nil // nothing is pushed or acknowledged any more
	}
}

// acknowledge sends counts to the slots whose counts have changed.
func (a *ReaderSet) acknowledge(st *State) {
	seen := a.pushes.newlySeen(&a.readers)
	a.readers.acknowledge(st.intake, seen, &a.fx)
}

// prompt records that a slot waits until its clocks below ended are applied.
func (a *ReaderSet) prompt(c *Reader, ended perdure.Clock, st *State) {
	s := &a.slots[c.Slot]
	s.prompt = max(s.prompt, ended)
	a.acknowledge(st)
}

// saw records the state that a slot's cached rows have reached.
func (a *ReaderSet) saw(c *Reader, seq uint64, st *State) error {
	if !a.IsCurrent(c) || a.pushes.seen == nil {
		return nil
	}
	if seq > st.rows.seq {
		return fmt.Errorf("the client claims to have seen state %d of shard %d, which is at state %d",
			seq, st.rows.shard, st.rows.seq)
	}
	a.pushes.seen.RecordConfirmed(c.Slot, seq)
	a.acknowledge(st)
	return nil
}

// unsubscribe ends subscriptions to rows that the reader no longer uses.
func (a *ReaderSet) unsubscribe(c *Reader, rows *wire.Rows, st *State) error {
	if !a.IsCurrent(c) {
		return nil
	}
	if int(rows.Table) >= len(st.rows.parts) || a.pushes.subs[rows.Table] == nil {
		return fmt.Errorf("rows of table %d are not pushed", rows.Table)
	}
	p := st.rows.parts[rows.Table]
	if err := st.rows.check(p, rows, rows.Count*p.Spec.Dim); err != nil {
		return err
	}
	for i := range rows.Count {
		a.pushes.subs[rows.Table].Drop(c.Slot, rows.ID(i))
	}
	if a.pushes.seen != nil && !a.pushes.wanted(c.Slot) {
		a.pushes.opened(c.Slot) // it no longer reads from its cache
		a.acknowledge(st)
	}
	return nil
}

// TakeAcks takes all pending acknowledgements, and appends their readers to dst.
func (a *ReaderSet) TakeAcks(dst []*Reader) []*Reader {
	for _, slot := range a.pendingAcks() {
		if c := a.slots[slot].reader; a.TakeAck(c) {
			dst = append(dst, c)
		}
	}
	return dst
}

// counts returns how far the updates of a connection's slot have come.
func (a *ReaderSet) counts(c *Reader, st *State) (counts protocol.Counts) {
	if c.Slot < 0 {
		return counts
	}
	counts = st.intake.Counts(c.Slot)
	counts.Seen = counts.Applied
	if a.pushes.seen != nil {
		counts.Seen = min(counts.Applied, a.pushes.seen.Seen(c.Slot))
	}
	return counts
}

// addSubs adds the subscriptions of new tables that are pushed. A new generation starts with empty caches. If the rows
// were lost during a generation, slots may still have rows of the shard's former life.
func (a *ReaderSet) addSubs(st *State, lost, reads bool) {
	o, q := &a.pushes, &a.readers
	for id := len(o.subs); id < len(st.rows.parts); id++ {
		p := st.rows.parts[id]
		if m := p.Spec.Consistency; !m.Pushed() {
			o.subs = append(o.subs, nil)
			continue
		}
		o.subs = append(o.subs, consistency.NewSubscriptions(len(q.slots), p.First, p.Rows))
		if p.Spec.Consistency.Kind == perdure.VAP && o.seen == nil && reads {
			o.seen = consistency.NewVisibility(st.intake.Applied(), st.rows.seq)
			o.reportedSeen = make([]perdure.Clock, len(q.slots))
			for slot := range q.slots {
				// It opened the shard before there was anything to read.
				if q.slots[slot].reader != nil || !lost {
					o.seen.Opened(perdure.Slot(slot))
				}
			}
		}
	}
}

// push makes changed rows due to the slots that subscribe to them.
func (a *ReaderSet) push(st *State) {
	o, least := &a.pushes, st.intake.MinClock()
	if !o.any() || least == o.minClock && (o.seen == nil || st.rows.seq == o.seq) {
		return
	}
	if least != o.minClock {
		a.fx.Advanced = true
	}
	o.minClock, o.seq = least, st.rows.seq
	o.advance()
	for slot := range a.slots {
		if a.slots[slot].reader != nil && o.wanted(perdure.Slot(slot)) {
			o.rounds[slot].due = true
			a.fx.Pushes = append(a.fx.Pushes, perdure.Slot(slot))
		}
	}
}

// Flow returns the reader that a slot's rows are pushed to, or nil, and the number of that flow. A flow with another
// number has ended.
func (a *ReaderSet) Flow(slot perdure.Slot) (*Reader, uint64) {
	return a.slots[slot].reader, a.pushes.rounds[slot].flow
}

// StartRound resumes a slot's round, or starts one if none is in progress, and reports whether it started one.
func (a *ReaderSet) StartRound(slot perdure.Slot, st *State) (started bool) {
	o, to := &a.pushes, &a.pushes.rounds[slot]
	o.from = 0
	if to.begun {
		return false
	}
	if st.rows.seq != o.seq {
		o.advance() // the round had to wait: include the changes since
	}
	to.begun, to.due, to.minClock = true, false, o.minClock
	to.state = wire.State{Seq: st.rows.seq, Applied: append(to.state.Applied[:0], st.intake.Applied()...)}
	for _, sub := range o.subs {
		if sub != nil {
			sub.StartRound(slot)
		}
	}
	return true
}

// NextRows returns the next rows of a slot's round, up to about most bytes including the row numbers, and their size in
// bytes. No rows mean that the round is complete. The result is valid until the next call.
func (a *ReaderSet) NextRows(slot perdure.Slot, most int, st *State) (rows wire.Rows, p *table.Part, bytes int) {
	o := &a.pushes
	for ; o.from < len(o.subs); o.from++ {
		id, sub := o.from, o.subs[o.from]
		if sub == nil {
			continue
		}
		p = st.rows.parts[id]
		rowBytes := 4 * p.Spec.Dim
		long := max(2, runBytes/rowBytes)
		first, n, ids := sub.Next(slot, long, max(1, min(most, wire.PartBytes)/(rowBytes+8)), o.ids)
		if ids != nil {
			o.ids, n = ids, len(ids)
		}
		if n > 0 {
			return wire.Rows{Table: perdure.TableID(id), First: first, Count: n, IDs: ids}, p, n * (rowBytes + 8)
		}
	}
	return wire.Rows{}, nil, 0
}

// EndRound ends or suspends a slot's round; done means that the round is complete. It returns the state and the
// MinClock of the round, which are sent at its end, and whether more rounds or rows follow.
func (a *ReaderSet) EndRound(slot perdure.Slot, done bool) (state *wire.State, minClock perdure.Clock, more bool) {
	to := &a.pushes.rounds[slot]
	to.begun = !done
	return &to.state, to.minClock, !done || to.due
}
