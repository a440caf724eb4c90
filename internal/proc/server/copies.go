package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// copyPause is when a snapshot that could not be sent is tried again.
const copyPause = 100 * time.Millisecond

// errNotWanted ends the connection of a snapshot that is not of the shard's present
// life, or that another one has overtaken.
var errNotWanted = errors.New("server: the snapshot is not wanted")

// give connects to the peer, in its turn, and sends it a copy that begins once the connection is there.
// Copies go in the order in which they were asked for: else small ones could overtake a large one for ever.
func (p *peer) give(room int64, begin func() (*shardCopy, error)) (bytes int64, err error) {
	if err = p.copying.Acquire(p.s.ctx, room); err != nil {
		return 0, err
	}
	defer p.copying.Release(room)
	tc, err := transport.Call(p.ctx, p.s.cfg.Network, p.addr, p.s.hello())
	if err != nil {
		return 0, err
	}
	defer tc.Close()
	defer context.AfterFunc(p.ctx, func() { tc.Close() })()
	c, err := begin()
	if err != nil {
		return 0, err
	}
	return c.Send(tc)
}

// copyTo sends a peer a snapshot, in a goroutine of its own, if the shard is still in its present
// life when it is the snapshot's turn. It needs sh.mu.
func (sh *shard) copyTo(p *peer) {
	s, name, room := sh.s, sh.link.Name(), copyRoomOf(sh.rep.State.Bytes())
	s.wg.Go(func() {
		var begun time.Time
		bytes, err := p.give(room, func() (*shardCopy, error) {
			begun = time.Now()
			return sh.copy(name)
		})
		switch {
		case err == nil:
			s.cfg.Log.Info("sent a snapshot", "shard", sh.id, "to", p.addr, "bytes", bytes, "seconds",
				time.Since(begun).Seconds())
			return
		case errors.Is(err, errMoved), s.ctx.Err() != nil:
			return
		}
		s.cfg.Log.Warn("cannot send a snapshot now", "shard", sh.id, "to", p.addr, "err", err)
		select {
		case <-s.ctx.Done():
		case <-time.After(copyPause):
			sh.relink(p)
		}
	})
}

// copy begins a copy of the shard as it is, in the life of that name.
func (sh *shard) copy(name link.Name) (*shardCopy, error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	moved := func() bool { return sh.link.Name() != name || sh.retired() }
	if moved() {
		return nil, errMoved
	}
	from := copySource{Name: name, Lock: &sh.mu, Moved: moved, Buffers: &sh.s.buffers}
	return beginCopy(from, &sh.rep.State, sh.link.Applied()), nil
}

// land returns where the body of the connection's next frame is to lie.
func (c *conn) land(s *Server, f *wire.Frame, n int) []byte {
	if f.Kind == wire.KindSnapshot {
		if to := c.taking.Land(f, n); to != nil {
			return to
		}
	}
	if f.Kind == wire.KindUpdate || f.Kind == wire.KindSnapshot {
		return s.buffers.Payload(n) // to be kept as it is
	}
	return nil
}

// takePiece takes a piece of a shard's snapshot, and tells its sender.
func (c *conn) takePiece(s *Server, sh *shard, f *wire.Frame) error {
	body := f.Body
	f.Body = nil // it may be memory of rows
	if err := sh.expects(c, f); err != nil {
		return err
	}
	whole, err := c.taking.Take(f, body, &s.buffers)
	if err == nil && whole {
		err = sh.install(c.taking)
	}
	switch {
	case errors.Is(err, errNotWanted):
		return err
	case err != nil:
		return fmt.Errorf("a snapshot of shard %d: %w", sh.id, err)
	}
	s.throttle.Wait(s.ctx, len(body))
	have := wire.Frame{Header: f.Header}
	have.Kind, have.Flags = wire.KindHave, 0
	return c.tc.TrySend(have) // now: its sender waits for it
}

// expects refuses a piece that is not the next one of the snapshot that the connection is to bring,
// or that may begin.
func (sh *shard) expects(c *conn, f *wire.Frame) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	name := sh.link.Name()
	if !sh.link.Begun() || sh.retired() || sh.link.Place().Head || name != link.NameOf(&f.Header) ||
		!sh.link.PrecededBy(c.index, c.Incarnation) {
		return errNotWanted
	}
	if c.taking == nil && copyFirst(f) && sh.link.Wants(f.Request) {
		c.taking = receiveCopy(&sh.job, name, f)
		sh.incoming = c.taking // another one is not wanted any more
	}
	if c.taking == nil || c.taking != sh.incoming || !c.taking.Expects(f) {
		return errNotWanted
	}
	return nil
}

// install makes the shard what a snapshot says that is whole.
func (sh *shard) install(in *incomingCopy) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.incoming != in || sh.retired() || sh.link.Name() != in.Name || !sh.link.Wants(in.Pos) {
		return errNotWanted
	}
	sh.incoming = nil
	sh.rep.Adopt(in.Incoming)
	sh.slots.grow(len(sh.rep.State.Applied()))
	sh.link.Restored(in.Pos)
	sh.advance()
	sh.s.notify()
	return nil
}
