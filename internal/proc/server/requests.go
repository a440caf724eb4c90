package server

import (
	"errors"
	"fmt"

	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// acceptsUpdatesLocked reports whether this replica is a serving head. The caller must hold sh.mu.
func (sh *shard) acceptsUpdatesLocked() bool {
	return sh.stream == nil && sh.rep.Ready() && !sh.retired() && sh.link.Role().Head && !sh.link.Retiring(sh.view)
}

// servesLocked reports whether the shard serves its readers. The caller must hold sh.mu.
func (sh *shard) servesLocked() bool { return sh.rep.Ready() && !sh.retired() }

// handleUpdate appends one part of an update, or a tick, to the log of the head.
func (sh *shard) handleUpdate(c *conn, f *wire.Frame) (err error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.acceptsUpdatesLocked() || !sh.isCurrentLocked(f) || !sh.rep.Readers.KnowsSlot(&c.Reader) {
		return nil
	}
	var e replica.Entry
	if most := sh.s.cfg.PendingBytes; f.Kind == wire.KindTick {
		e, err = sh.link.Tick(&c.Reader, f, most)
	} else {
		e, err = sh.link.Update(&c.Reader, f, &sh.rep.State, len(sh.view.Tables), most)
	}
	if errors.Is(err, replica.ErrEarly) {
		sh.service.sendMoved(c) // the answer to its next Open follows the table
		return nil
	} else if err != nil {
		return err
	}
	sh.sender.batch = &c.batch
	sh.link.Append(e)
	sh.advanceLocked()
	sh.sender.batch = nil
	f.Body = nil // the log owns it now
	return nil
}

// handleRequest processes a request from a process that has opened the shard.
func (sh *shard) handleRequest(c *conn, f *wire.Frame) (err error) {
	var rows wire.Rows
	switch f.Kind {
	case wire.KindGet, wire.KindScan, wire.KindUnsubscribe:
		rest, err := wire.ParseRows(f.Payload, &rows)
		if err != nil {
			return err
		}
		if len(rest) != 0 {
			return fmt.Errorf("%w: %d extra bytes after a read's rows", wire.ErrPayload, len(rest))
		}
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.servesLocked() || !sh.isCurrentLocked(f) {
		return nil
	}
	switch f.Kind {
	case wire.KindGet, wire.KindScan:
		sh.applyScheduledLocked()
		return sh.service.get(c, f, &rows)
	case wire.KindLoad:
		return sh.service.load(c, f)
	case wire.KindEcho: // asks whether the shard is known to lack updates
		sh.applyScheduledLocked()
		sh.service.echo(c, f, sh.rep.IsBehind() || sh.stream != nil && sh.stream.BehindLocked())
		return nil
	case wire.KindSync: // acknowledge promptly until the clocks that the slot has finished are applied
		if sh.rep.Readers.IsCurrent(&c.Reader) {
			sh.applyScheduledLocked()
			sh.rep.Prompt(&c.Reader, f.Clock)
		}
	case wire.KindUnsubscribe: // the reader no longer needs the rows
		err = sh.rep.Unsubscribe(&c.Reader, &rows)
	case wire.KindSeen: // the state of a slot's cached rows
		err = sh.rep.RecordSeen(&c.Reader, f.Request)
	default:
		return fmt.Errorf("unexpected frame of kind %d", f.Kind)
	}
	sh.applyEffectsLocked()
	return err
}

// openLocked answers an Open after all updates received before it are applied. It returns false if the shard's epoch
// has changed. The caller must hold sh.mu.
func (sh *shard) openLocked(c *conn, f *wire.Frame) (taken bool) {
	if sh.retired() || !sh.isCurrentLocked(f) {
		return false
	}
	sh.rep.Open(replica.Open{
		Reader: &c.Reader, Writes: f.Flags&wire.FlagWriteOnly != 0, EndedClocks: f.Clock, Pos: sh.link.End(),
	})
	sh.applyScheduledLocked()
	if sh.link.Started() {
		sh.rep.AnswerOpens(sh.link.Applied())
		sh.applyEffectsLocked()
	}
	sh.endResendWaitLocked()
	return true
}
