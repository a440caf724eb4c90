package chain

import (
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// fromWorker reports whether an entry is a worker's update or tick, rather than a fact of the head.
func fromWorker(f *wire.Frame) bool { return f.Kind == wire.KindUpdate || f.Kind == wire.KindTick }

// backlog is, by slot, the size of the updates and ticks that are in the log and not yet in the replica.
type backlog []int64

// of returns the size for one slot.
func (b backlog) of(slot perdure.Slot) int64 {
	if int(slot) >= len(b) {
		return 0
	}
	return b[slot]
}

// count adds a worker's entry (sign 1) when it arrives, and removes it (sign -1) when the replica has it.
func (b *backlog) count(f *wire.Frame, sign int64) {
	if !fromWorker(f) {
		return
	}
	for int(f.Slot) >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[f.Slot] += sign * (consistency.PartCost + int64(len(f.Body)))
}

// Update converts an update from a reader's connection to an entry, at the head. An error rejects the update before any
// of it is taken in; it is replica.ErrEarly if the update becomes valid once the log has the given number of tables.
// most is the limit for the bytes of a slot's updates that are not applied.
func (l *Link) Update(from *replica.Reader, f *wire.Frame, st *replica.State, tables int,
	most int64,
) (e replica.Entry, err error) {
	switch {
	case from.Slot < 0:
		return e, errors.New("an observer cannot send updates")
	case f.Clock < 0 || f.Until() < 0 || f.Parts > 0 && f.Part >= f.Parts:
		return e, fmt.Errorf("invalid update: clock %d, part %d of %d", f.Clock, f.Part, f.Parts)
	}
	if n := st.PendingBytes(from.Slot) + l.backlog.of(from.Slot) + int64(len(f.Body)); n > most {
		return e, l.errBacklog(from, f, n, most)
	}
	if err := st.CheckUpdate(f.Body, tables); err != nil {
		return e, err
	}
	e = l.entry(from, f)
	e.Frame.Flags, e.Frame.Clocks, e.Frame.Part, e.Frame.Parts = f.Flags, f.Clocks, f.Part, f.Parts
	e.Frame.Body = f.Body
	return e, nil
}

// Tick converts a tick from a reader's connection to an entry, at the head. A tick says that an update is staged on all
// shards.
func (l *Link) Tick(from *replica.Reader, f *wire.Frame, most int64) (e replica.Entry, err error) {
	if from.Slot < 0 {
		return e, errors.New("an observer cannot send ticks")
	}
	// A ticked update may be as large as the limit itself.
	if n := l.backlog.of(from.Slot); n > 2*most {
		return e, l.errBacklog(from, f, n, most)
	}
	return l.entry(from, f), nil
}

func (l *Link) entry(from *replica.Reader, f *wire.Frame) replica.Entry {
	return replica.Entry{From: from, Frame: wire.Frame{Header: wire.Header{
		Kind: f.Kind, Generation: l.fence.Generation, Clock: f.Clock, Shard: l.fence.Shard,
		Slot: from.Slot, Incarnation: from.Incarnation,
	}}}
}

func (l *Link) errBacklog(from *replica.Reader, f *wire.Frame, n, most int64) error {
	return fmt.Errorf("shard %[3]d already holds %[2]d bytes of unapplied updates from slot %[1]d, up to clock %[4]d; "+
		"the limit is %[5]d bytes", from.Slot, n, l.fence.Shard, f.Clock, most)
}

// FromLog converts a record of an update log to an entry. An error means that a worker or a head violated the rules by
// appending it. The payload still belongs to the record.
func (l *Link) FromLog(f *wire.Frame, st *replica.State, tables int) (e replica.Entry, err error) {
	if f.Shard != l.fence.Shard || f.Generation != l.fence.Generation {
		return e, fmt.Errorf("%w: the record is for shard %d, generation %d, not for shard %d, generation %d",
			wire.ErrPayload, f.Shard, f.Generation, l.fence.Shard, l.fence.Generation)
	}
	if !fromWorker(f) {
		return replica.Entry{Frame: wire.Frame{Header: f.Header, Payload: f.Payload}}, nil
	}
	if n := len(st.Applied()); f.Slot < 0 || int(f.Slot) >= n || f.Clock < 0 || f.Until() < 0 ||
		f.Parts > 0 && f.Part >= f.Parts {
		return e, fmt.Errorf("%w: the record has an invalid position: slot %d of %d, clock %d, part %d of %d",
			wire.ErrPayload, f.Slot, n, f.Clock, f.Part, f.Parts)
	}
	e.Frame.Header = f.Header
	if f.Kind == wire.KindUpdate && !st.AlreadyApplied(f.Slot, f.Until()) {
		e.Frame.Body = f.Payload
		err = st.CheckUpdate(f.Payload, tables)
	}
	return e, err
}
