package server

import (
	"errors"
	"fmt"

	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// acceptsUpdates reports whether this replica is a serving head. The caller must hold sh.mu.
func (sh *shard) acceptsUpdates() bool {
	return sh.stream == nil && sh.rep.Ready() && !sh.retired() && sh.link.Role().Head && !sh.link.Retiring(sh.view)
}

// answers reports whether the shard serves its readers. The caller must hold sh.mu.
func (sh *shard) answers() bool { return sh.rep.Ready() && !sh.retired() }

// takeUpdate appends one part of an update, or a tick, to the log of the head.
func (sh *shard) takeUpdate(c *conn, f *wire.Frame) (err error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.acceptsUpdates() || !sh.means(f) || !sh.rep.Readers.KnowsSlot(&c.Reader) {
		return nil
	}
	var e replica.Entry
	if most := sh.s.cfg.PendingBytes; f.Kind == wire.KindTick {
		e, err = sh.link.Tick(&c.Reader, f, most)
	} else {
		e, err = sh.link.Update(&c.Reader, f, &sh.rep.State, len(sh.view.Tables), most)
	}
	if errors.Is(err, replica.ErrEarly) {
		sh.service.moved(c) // the answer to its next Open follows the table
		return nil
	} else if err != nil {
		return err
	}
	sh.to.batch = &c.batch
	sh.link.Append(e)
	sh.advance()
	sh.to.batch = nil
	f.Body = nil // the log owns it now
	return nil
}

// takeRequest processes a request from a process that has opened the shard.
func (sh *shard) takeRequest(c *conn, f *wire.Frame) (err error) {
	var rows wire.Rows
	switch f.Kind {
	case wire.KindGet, wire.KindScan, wire.KindUnsubscribe:
		rest, err := wire.ParseRows(f.Payload, &rows)
		if err != nil {
			return err
		}
		if len(rest) != 0 {
			return fmt.Errorf("%w: %d bytes after a read's rows", wire.ErrPayload, len(rest))
		}
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.answers() || !sh.means(f) {
		return nil
	}
	switch f.Kind {
	case wire.KindGet, wire.KindScan:
		sh.applyDue()
		return sh.service.get(c, f, &rows)
	case wire.KindLoad:
		return sh.service.load(c, f)
	case wire.KindEcho: // asks whether the shard is known to lack updates
		sh.applyDue()
		sh.service.echo(c, f, sh.rep.IsBehind() || sh.stream != nil && sh.stream.Behind())
		return nil
	case wire.KindSync: // acknowledge promptly until the clocks that the slot has finished are applied
		if sh.rep.Readers.IsCurrent(&c.Reader) {
			sh.applyDue()
			sh.rep.Prompt(&c.Reader, f.Clock)
		}
	case wire.KindUnsubscribe: // the reader no longer needs the rows
		err = sh.rep.Unsubscribe(&c.Reader, &rows)
	case wire.KindSeen: // the state of a slot's cached rows
		err = sh.rep.RecordSeen(&c.Reader, f.Request)
	default:
		return fmt.Errorf("unexpected frame of kind %d", f.Kind)
	}
	sh.carryOut()
	return err
}

// open answers an Open after all updates received before it are applied. It returns false if the shard's epoch has
// changed. The caller must hold sh.mu.
func (sh *shard) open(c *conn, f *wire.Frame) (taken bool) {
	if sh.retired() || !sh.means(f) {
		return false
	}
	sh.rep.Open(replica.Open{
		Reader: &c.Reader, Writes: f.Flags&wire.FlagWriteOnly != 0, EndedClocks: f.Clock, Pos: sh.link.End(),
	})
	sh.applyDue()
	if sh.link.Started() {
		sh.rep.AnswerOpens(sh.link.Applied())
		sh.carryOut()
	}
	sh.mend()
	return true
}
