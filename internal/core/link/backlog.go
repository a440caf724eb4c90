package link

import (
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// ofClock reports whether an entry is a worker's of a clock, and not the head's of the view.
func ofClock(f *wire.Frame) bool { return f.Kind == wire.KindUpdate || f.Kind == wire.KindTick }

// backlog is, by slot, what updates and ticks take that are in the log and not in the replica.
type backlog []int64

// of returns what a slot's take.
func (b backlog) of(slot perdure.Slot) int64 {
	if int(slot) >= len(b) {
		return 0
	}
	return b[slot]
}

// count counts a worker's entry: sign 1 when it comes, -1 when it has gone to the replica.
func (b *backlog) count(f *wire.Frame, sign int64) {
	if !ofClock(f) {
		return
	}
	for int(f.Slot) >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[f.Slot] += sign * (consistency.PartCost + int64(len(f.Body)))
}

// Update is the entry of an update that came on a reader's connection, at the head. An error
// refuses it before any of it is taken: ErrEarly of replica, if it could be applied once the log
// has as many tables as tables says. A slot may have most bytes of updates here that are not
// applied.
func (l *Link) Update(from *replica.Reader, f *wire.Frame, st *replica.State, tables int,
	most int64,
) (e replica.Entry, err error) {
	switch {
	case from.Slot < 0:
		return e, errors.New("an observer cannot update")
	case f.Clock < 0 || f.Until() < 0 || f.Parts > 0 && f.Part >= f.Parts:
		return e, fmt.Errorf("update of clock %d, part %d of %d", f.Clock, f.Part, f.Parts)
	}
	if n := st.PendingBytes(from.Slot) + l.backlog.of(from.Slot) + int64(len(f.Body)); n > most {
		return e, l.tooMuch(from, f, n, most)
	}
	if err := st.CheckUpdate(f.Body, tables); err != nil {
		return e, err
	}
	e = l.entry(from, f)
	e.Frame.Flags, e.Frame.Clocks, e.Frame.Part, e.Frame.Parts = f.Flags, f.Clocks, f.Part, f.Parts
	e.Frame.Body = f.Body
	return e, nil
}

// Tick is the entry of a tick that came on a reader's connection, at the head: the word that an
// update is staged on all shards.
func (l *Link) Tick(from *replica.Reader, f *wire.Frame, most int64) (e replica.Entry, err error) {
	if from.Slot < 0 {
		return e, errors.New("an observer cannot tick")
	}
	// An update that is ticked may be as large as what is kept.
	if n := l.backlog.of(from.Slot); n > 2*most {
		return e, l.tooMuch(from, f, n, most)
	}
	return l.entry(from, f), nil
}

func (l *Link) entry(from *replica.Reader, f *wire.Frame) replica.Entry {
	return replica.Entry{From: from, Frame: wire.Frame{Header: wire.Header{
		Kind: f.Kind, Generation: l.name.Generation, Clock: f.Clock, Shard: l.name.Shard,
		Slot: from.Slot, Incarnation: from.Incarnation,
	}}}
}

func (l *Link) tooMuch(from *replica.Reader, f *wire.Frame, n, most int64) error {
	return fmt.Errorf("slot %d has sent %d bytes of updates to shard %d that are not applied yet, "+
		"clock %d the last of them; at most %d are kept", from.Slot, n, l.name.Shard, f.Clock, most)
}

// FromLog is the entry that a record of an update log is, as a worker or a head has appended it. An
// error says why nobody keeps to the rules who appends that. The payload is the record's still.
func (l *Link) FromLog(f *wire.Frame, st *replica.State, tables int) (e replica.Entry, err error) {
	if f.Shard != l.name.Shard || f.Generation != l.name.Generation {
		return e, fmt.Errorf("%w: it is of shard %d, generation %d, not of shard %d, generation %d", wire.ErrPayload,
			f.Shard, f.Generation, l.name.Shard, l.name.Generation)
	}
	if !ofClock(f) {
		return replica.Entry{Frame: wire.Frame{Header: f.Header, Payload: f.Payload}}, nil
	}
	if n := len(st.Applied()); f.Slot < 0 || int(f.Slot) >= n || f.Clock < 0 || f.Until() < 0 ||
		f.Parts > 0 && f.Part >= f.Parts {
		return e, fmt.Errorf("%w: it is of slot %d of %d, clock %d, part %d of %d", wire.ErrPayload, f.Slot, n,
			f.Clock, f.Part, f.Parts)
	}
	e.Frame.Header = f.Header
	if f.Kind == wire.KindUpdate && !st.Counted(f.Slot, f.Until()) {
		e.Frame.Body = f.Payload
		err = st.CheckUpdate(f.Payload, tables)
	}
	return e, err
}
