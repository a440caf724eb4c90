package server

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure/consistency"
	"github.com/perdure/perdure/wire"
)

// update takes one part of an update.
func (sh *shard) update(c *conn, f *wire.Frame) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.ready || sh.retired() {
		return nil
	}
	if err := sh.check(c, f); err != nil {
		return err
	}
	verdict := sh.intake.Offer(consistency.Part{
		Slot: c.slot, Clock: f.Clock, Incarnation: c.incarnation,
		Index: int(f.Part), Of: int(f.Parts), Ticked: f.Flags&wire.FlagTicked != 0, Payload: f.Payload,
	})
	if verdict == consistency.Kept {
		f.Payload = nil // the intake has it now
		if n := len(sh.spare); n > 0 {
			f.Payload, sh.spare = sh.spare[n-1][:0], sh.spare[:n-1]
		}
	}
	sh.took(c, verdict, true)
	return nil
}

// tick takes the word that an update is staged on all shards.
func (sh *shard) tick(c *conn, f *wire.Frame) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.ready || sh.retired() {
		return nil
	}
	if c.slot < 0 {
		return fmt.Errorf("an observer cannot tick")
	}
	sh.took(c, sh.intake.Tick(c.slot, c.incarnation, f.Clock), false)
	return nil
}

// took follows up on what the intake made of a message. It needs sh.mu.
func (sh *shard) took(c *conn, verdict consistency.Verdict, ack bool) {
	switch verdict {
	case consistency.Gap:
		c.send(sh.frame(wire.KindMoved)) // it opens the shard anew and resends from what it is told
		return
	case consistency.Fenced:
		return // its connection is being closed
	}
	if ack {
		sh.dirty[c.slot] = true
	}
	sh.pump()
}

// check refuses an update that could not be applied, before any of it is. It
// needs sh.mu.
func (sh *shard) check(c *conn, f *wire.Frame) error {
	if c.slot < 0 {
		return fmt.Errorf("an observer cannot update")
	}
	if f.Clock < 0 || f.Parts == 0 || f.Part >= f.Parts {
		return fmt.Errorf("update of clock %d, part %d of %d", f.Clock, f.Part, f.Parts)
	}
	_, err := wire.ParseBlocks(f.Payload, func(b *wire.Block) error {
		if int(b.Table) >= len(sh.parts) {
			return fmt.Errorf("update of table %d; the job has %d tables", b.Table, len(sh.parts))
		}
		return sh.parts[b.Table].CheckRows(b.First, b.IDs, b.Count, len(b.Values))
	})
	return err
}

// get answers a read, now or when the shard's MinClock allows it.
func (sh *shard) get(c *conn, f *wire.Frame) error {
	w := waitingGet{c: c, request: f.Request, need: f.Clock}
	rest, err := wire.ParseRows(f.Payload, &w.rows)
	if err != nil {
		return err
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %d bytes after a read's rows", wire.ErrPayload, len(rest))
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.ready || sh.retired() {
		return nil
	}
	if sh.mayAnswer(&w) {
		return sh.answer(&w)
	}
	if len(sh.waiting) >= maxWaiting {
		return fmt.Errorf("more than %d reads wait on shard %d", maxWaiting, sh.id)
	}
	sh.waiting = append(sh.waiting, w)
	return nil
}

// mayAnswer needs sh.mu. A table that is not known here yet is on its way with
// the next view.
func (sh *shard) mayAnswer(w *waitingGet) bool {
	return int(w.rows.Table) < len(sh.parts) && sh.intake.MinClock() >= w.need
}

// answer sends a read's rows, copied at this moment. It needs sh.mu.
func (sh *shard) answer(w *waitingGet) error {
	p := sh.parts[w.rows.Table]
	if err := p.CheckRows(w.rows.First, w.rows.IDs, w.rows.Count, w.rows.Count*p.Spec.Dim); err != nil {
		return err
	}
	applied := sh.intake.Applied()
	size := 16 + 8*len(applied) + 4*w.rows.Count*p.Spec.Dim
	if size > wire.MaxPayload {
		return fmt.Errorf("%d rows of table %s asked for at once: the answer does not fit in %d bytes", w.rows.Count, p.Spec.Name, wire.MaxPayload)
	}
	payload := wire.AppendAnswerHeader(make([]byte, 0, size), sh.seq, applied)
	if w.rows.IDs == nil {
		run, _ := p.Run(w.rows.First, w.rows.Count)
		payload = wire.AppendFloats(payload, run)
	}
	for _, id := range w.rows.IDs {
		row, _ := p.Run(id, 1)
		payload = wire.AppendFloats(payload, row)
	}
	f := sh.frame(wire.KindRows)
	f.Request, f.Clock, f.Payload = w.request, sh.intake.MinClock(), payload
	w.c.send(append(sh.ack(w.c), f)...)
	return nil
}

// answerWaiting answers the reads that the MinClock now allows. It needs sh.mu.
func (sh *shard) answerWaiting() {
	sh.waiting = slices.DeleteFunc(sh.waiting, func(w waitingGet) bool {
		if !sh.mayAnswer(&w) {
			return false
		}
		if err := sh.answer(&w); err != nil {
			sh.s.cfg.Log.Warn("closed a connection", "slot", w.c.slot, "err", err)
			w.c.tc.Close()
		}
		return true
	})
}

// load answers with what the slot's program saved last before the clock it is
// to work on: with its newest update that counts, applied or not.
func (sh *shard) load(c *conn, f *wire.Frame) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.ready || sh.retired() {
		return nil
	}
	if f.Slot < 0 || int(f.Slot) >= len(sh.states) {
		return fmt.Errorf("saved state of slot %d of a job of %d", f.Slot, len(sh.states))
	}
	state := sh.states[f.Slot]
	for _, u := range sh.intake.Pending(f.Slot) {
		if !u.Ticked() || u.Clock >= f.Clock {
			break
		}
		for _, payload := range u.Parts {
			s, err := wire.ParseBlocks(payload, func(*wire.Block) error { return nil })
			if err == nil && s != nil {
				state = s
			}
		}
	}
	out := sh.frame(wire.KindState)
	out.Request, out.Slot, out.Payload = f.Request, f.Slot, slices.Clone(state)
	if state == nil {
		out.Flags = wire.FlagNone
	}
	c.send(out)
	return nil
}
