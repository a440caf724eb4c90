//go:build linux

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// execute executes a call of a program that has joined, until ctx ends. life ends with the program.
func (a *Agent) execute(ctx, life context.Context, c *worker.Client, r *request) reply {
	switch r.op {
	case opTable:
		return a.table(ctx, c, r.text)
	case opGetRun, opGetRows, opIncRun, opIncRows, opPrefetch, opFlush, opForget, opWeigh, opStored, opDeltas,
		opRound:
		t := a.tableAt(r.table)
		if t == nil {
			return failed(usageErrorf("table %d does not exist", r.table))
		}
		return a.rows(ctx, c, t, r)
	case opClock:
		clock, err := c.Clock(ctx)
		return answer(err, int64(clock))
	case opNow:
		if m := r.args[0]; m&marks != 0 {
			worker.NewSharedState(c).Mark(m&savesOwn != 0)
		}
		return clockReply(c)
	case opSettle:
		return answer(c.Settle(ctx))
	case opAwaitSlots:
		return answer(c.AwaitSlots(ctx))
	case opSaveState, opLoadState, opFetch, opStreamState, opStatePiece, opCopied:
		return a.states(ctx, life, c, r)
	case opReport:
		if c.Slot() < 0 {
			return failed(usageErrorf("an observer has no slot to report for"))
		}
		var of worker.Report
		if err := json.Unmarshal(r.text, &of); err != nil {
			return failed(usageErrorf("cannot read the report: %v", err))
		}
		if of.Waited != nil && *of.Waited < 0 {
			return failed(usageErrorf("invalid waited_ns %d: it is negative", *of.Waited))
		}
		of.Clock = c.Now()
		c.AddSamples(int(r.args[0]))
		c.Report(of)
		return reply{}
	case opAt:
		if c.Slot() >= 0 {
			return failed(usageErrorf("slot %d reads at its own clock; only observers may pass the argument 'at'",
				c.Slot()))
		}
		if r.args[0] < 0 {
			return failed(usageErrorf("invalid clock %d; clocks start at 0", r.args[0]))
		}
		c.SetReadClock(perdure.Clock(r.args[0]))
		return reply{}
	case opEndJob:
		return answer(c.EndJob(ctx))
	case opFinish:
		return answer(c.Finish(ctx))
	}
	return failed(usageErrorf("unknown call %d", r.op))
}

// clockReply returns the clock, the end, the share of the slot and the generation, and whether a checkpoint follows the
// clock.
func clockReply(c *worker.Client) reply {
	rank, of := c.Share()
	r := answer(nil, int64(c.Now()), int64(c.End()), int64(rank)<<32|int64(of), int64(c.Generation()))
	shared := worker.NewSharedState(c)
	if c.Slot() >= 0 && shared.Left() {
		r.text = []byte("left")
	} else if c.SaveDue() {
		r.text = strconv.AppendInt(nil, int64(shared.Saver()), 10)
	}
	return r
}

// The flags of opNow: what the program has of the shared state.
const (
	marks    = 1 << iota // that of a clock's start
	savesOwn             // it saves its own state with each update
)

// table creates a table or attaches to it.
func (a *Agent) table(ctx context.Context, c *worker.Client, text []byte) reply {
	var spec perdure.TableSpec
	as := json.NewDecoder(bytes.NewReader(text))
	as.DisallowUnknownFields() // otherwise a misspelled setting would be ignored
	if err := as.Decode(&spec); err != nil {
		return failed(usageErrorf("cannot read the table: %v", err))
	}
	spec.Rule = spec.Rule.WithDefaults()
	t, err := c.Table(ctx, spec)
	if err != nil {
		return failed(err)
	}
	r := jsonReply(t.Spec())
	a.mu.Lock()
	defer a.mu.Unlock()
	at, known := a.names[spec.Name]
	if !known {
		at = len(a.tables)
		a.names[spec.Name], a.tables = at, append(a.tables, t)
	}
	r.args[0] = int64(at)
	return r
}

// tableAt returns the table with a number, or nil if it does not exist.
func (a *Agent) tableAt(table uint16) *worker.Table {
	a.mu.Lock()
	defer a.mu.Unlock()
	if int(table) >= len(a.tables) {
		return nil
	}
	return a.tables[table]
}

// rows executes a call on rows: on a run that starts with row args[1], or on the rows listed at address args[1].
// args[2] is their number, and their values are at address args[0].
func (a *Agent) rows(ctx context.Context, c *worker.Client, t *worker.Table, r *request) reply {
	switch r.op {
	case opFlush:
		return answer(t.Flush())
	case opForget:
		t.Forget()
		return reply{}
	case opWeigh:
		return answer(t.Weigh(math.Float64frombits(uint64(r.args[0]))))
	case opStored:
		return a.stored(ctx, t, r)
	case opDeltas:
		return a.deltas(t, r)
	}
	values, done, err := a.valuesOf(t, r)
	if err != nil {
		return failed(err)
	}
	defer done()
	first := perdure.RowID(r.args[1])
	switch r.op {
	case opGetRun:
		return a.getRun(ctx, c, t, first, values, r.args[3])
	case opRound:
		return answer(t.Round(values))
	case opIncRun:
		return answer(t.IncRun(first, values))
	}
	list, listed, err := acquireSlice[perdure.RowID](&a.arena, r.args[1], r.args[2])
	if err != nil {
		return failed(err)
	}
	defer listed()
	switch r.op {
	case opGetRows:
		oldest, newest, err := t.GetRowsAt(ctx, list, values)
		return answer(err, int64(oldest), int64(newest))
	case opIncRows:
		return answer(t.IncRows(list, values))
	}
	return answer(t.Prefetch(list))
}

// getRun reads a run of rows into values.
func (a *Agent) getRun(
	ctx context.Context, c *worker.Client, t *worker.Table, first perdure.RowID, values []float32, flags int64,
) reply {
	if flags&untilCopy != 0 {
		var end func()
		ctx, end = a.untilCopyWanted(ctx, c)
		defer end()
	}
	var oldest, newest perdure.Clock
	var err error
	switch {
	case flags&asBF16 != 0:
		oldest, newest, err = t.GetRunRounded(ctx, first, values, perdure.EncodingBF16)
	case flags&asInt8 != 0:
		oldest, newest, err = t.GetRunRounded(ctx, first, values, perdure.EncodingInt8)
	default:
		oldest, newest, err = t.GetRunAt(ctx, first, values)
	}
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), errCopyWanted) {
		err = errCopyWanted
	}
	return answer(err, int64(oldest), int64(newest))
}

// valuesOf returns the values that a call reads or writes.
func (a *Agent) valuesOf(t *worker.Table, r *request) (values []float32, done func(), err error) {
	dim := int64(t.Spec().Dim)
	switch {
	case r.op == opPrefetch:
		return nil, func() {}, nil
	case r.args[2] < 0 || r.args[2] > 1<<offsetBits/dim:
		return nil, nil, usageErrorf("invalid number of rows: %d", r.args[2])
	}
	return acquireSlice[float32](&a.arena, r.args[0], r.args[2]*dim)
}

// deltas lends memory for the deltas of args[2] rows from row args[1] on. It returns the position in the lender's file,
// the size of the whole piece, and the number of pieces returned so far.
func (a *Agent) deltas(t *worker.Table, r *request) reply {
	if r.args[2] < 0 || r.args[2] > 1<<offsetBits/int64(t.Spec().Dim) {
		return failed(usageErrorf("invalid number of rows: %d", r.args[2]))
	}
	values, err := t.Deltas(perdure.RowID(r.args[1]), int(r.args[2]))
	if err != nil {
		return failed(err)
	}
	at, err := a.lender.locate(values)
	return answer(err, at[:]...)
}

// untilCopyWanted returns a context that also ends, with errCopyWanted, when another process needs a copy of the shared
// state. The caller must call end.
func (a *Agent) untilCopyWanted(ctx context.Context, c *worker.Client) (until context.Context, end func()) {
	until, cancel := context.WithCancelCause(ctx)
	a.all.Go(func() {
		if worker.NewSharedState(c).AwaitRequest(until) == nil {
			cancel(errCopyWanted)
		}
	})
	return until, func() { cancel(nil) }
}

// stored writes the IDs of the rows that a sparse table stores to an address, up to the available space, and returns
// their number.
func (a *Agent) stored(ctx context.Context, t *worker.Table, r *request) reply {
	list, err := t.StoredRows(ctx)
	if err != nil {
		return failed(err)
	}
	room, done, err := acquireSlice[perdure.RowID](&a.arena, r.args[0], r.args[2])
	if err != nil {
		return failed(err)
	}
	defer done()
	copy(room, list)
	return answer(nil, int64(len(list)))
}

// states saves a slot state or loads the saved one.
func (a *Agent) states(ctx, life context.Context, c *worker.Client, r *request) reply {
	switch r.op {
	case opSaveState:
		b, done, err := a.arena.acquire(r.args[0], r.args[2], 1)
		if err != nil {
			return failed(err)
		}
		defer done()
		return answer(c.SaveState(b))
	case opStreamState:
		if r.args[0] == streamsDraft && r.args[2] == 0 {
			return answer(worker.NewSharedState(c).Draft().Delete(ctx))
		}
		s := newStateStream(r.args[2])
		a.mu.Lock()
		if r.args[0] == streamsDraft {
			a.draft = s
		} else {
			a.stream = s
		}
		a.mu.Unlock()
		switch r.args[0] {
		case streamsDraft:
			a.all.Go(func() {
				s.err = worker.NewSharedState(c).Draft().Save(life, s.size, s.write)
				close(s.ended)
			})
			return reply{}
		case 0:
			return answer(c.SaveStateFrom(s.size, s.write, func() { close(s.ended) }))
		}
		a.all.Go(func() {
			s.err = worker.NewSharedState(c).Save(life, s.size, s.write)
			close(s.ended)
		})
		return reply{}
	case opCopied:
		return a.copied(ctx, r.args[0])
	case opStatePiece:
		return a.statePiece(ctx, r)
	case opLoadState:
		shared := worker.NewSharedState(c)
		if r.args[0] == loadsCopy {
			size, err := shared.AwaitCopy(ctx)
			return answer(err, size)
		}
		var s worker.SavedState
		var err error
		switch r.args[0] {
		case loadsOther:
			s, err = shared.LoadFrom(ctx, perdure.Slot(r.args[1]))
		case loadsDraft:
			s.State, err = worker.NewSharedState(c).Draft().Load(ctx)
		default:
			s, err = c.LoadSaved(ctx)
		}
		if err != nil {
			return failed(err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.state = s.State
		size := int64(-1) // nothing was saved
		if s.State != nil {
			size = int64(len(s.State))
		}
		return answer(nil, size, int64(s.Clock), int64(s.Older))
	}
	return a.fetch(ctx, c, r)
}

// The kinds of states that opLoadState loads, besides the slot's own.
const (
	loadsCopy  = 1 // of the shared state, which another process saves for this one
	loadsOther = 2 // the state that another slot has saved
	loadsDraft = 3 // the slot's draft
)

// streamsDraft is the kind of opStreamState, opStatePiece and opCopied for the slot's draft. It may be sent while
// another state is.
const streamsDraft = 2

// copied waits until the draft, or the copy of the shared state, that the program sends is stored or not needed.
func (a *Agent) copied(ctx context.Context, kind int64) reply {
	s := a.sending(kind)
	if s == nil {
		return failed(usageErrorf("no copy is being saved"))
	}
	select {
	case <-s.ended:
		return answer(s.err)
	case <-ctx.Done():
		return failed(ctx.Err())
	}
}

// fetch writes a state to the program's memory: the loaded state of the slot, or a copy of the shared state.
func (a *Agent) fetch(ctx context.Context, c *worker.Client, r *request) reply {
	if r.args[2] != 0 {
		b, done, err := a.arena.acquire(r.args[0], r.args[2], 1)
		if err != nil {
			return failed(err)
		}
		defer done()
		return answer(worker.NewSharedState(c).TakeCopy(ctx, b))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b, done, err := a.arena.acquire(r.args[0], int64(len(a.state)), 1)
	if err != nil {
		return failed(err)
	}
	defer done()
	copy(b, a.state)
	a.state = nil
	return reply{}
}
