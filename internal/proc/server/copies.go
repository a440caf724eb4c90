package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// copyPause is the delay before a failed snapshot transfer is retried.
const copyPause = 100 * time.Millisecond

// errNotWanted ends the connection of a snapshot that belongs to an older epoch of the shard or was superseded by
// another snapshot.
var errNotWanted = errors.New("server: unexpected snapshot")

// sendCopy waits for its turn, connects to the peer, and sends the copy that begin starts once the connection is
// established. Copies are sent in the order of the requests; otherwise small ones could overtake a large one forever.
func (p *peer) sendCopy(room int64, start func() (*shardCopy, error)) (bytes int64, err error) {
	if err = p.copySem.Acquire(p.s.ctx, room); err != nil {
		return 0, err
	}
	defer p.copySem.Release(room)
	tc, err := transport.DialServer(p.ctx, p.s.cfg.Network, p.addr, p.s.hello())
	if err != nil {
		return 0, err
	}
	defer tc.Close()
	defer context.AfterFunc(p.ctx, func() { tc.Close() })()
	c, err := start()
	if err != nil {
		return 0, err
	}
	return c.Send(tc)
}

// startCopyToLocked sends a peer a snapshot in a new goroutine. It does nothing if the shard's epoch has changed when
// its turn comes. The caller must hold sh.mu.
func (sh *shard) startCopyToLocked(p *peer) {
	s, name, room := sh.s, sh.link.Fence(), copyShareOf(sh.rep.State.Bytes())
	s.wg.Go(func() {
		var started time.Time
		bytes, err := p.sendCopy(room, func() (*shardCopy, error) {
			started = time.Now()
			return sh.startCopy(name)
		})
		switch {
		case err == nil:
			s.cfg.Log.Info("sent a snapshot", "shard", sh.id, "to", p.addr, "bytes", bytes, "seconds",
				time.Since(started).Seconds())
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

// startCopy starts a snapshot of the shard if it still has the given generation and epoch.
func (sh *shard) startCopy(name chain.Fence) (*shardCopy, error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	moved := func() bool { return sh.link.Fence() != name || sh.retired() }
	if moved() {
		return nil, errMoved
	}
	from := copySource{Name: name, Lock: &sh.mu, Moved: moved, Buffers: &sh.s.buffers}
	return newShardCopyLocked(from, &sh.rep.State, sh.link.Applied()), nil
}

// payloadBuffer returns the memory for the body of the connection's next frame.
func (c *conn) payloadBuffer(s *Server, f *wire.Frame, n int) []byte {
	if f.Kind == wire.KindSnapshot {
		if to := c.taking.Buffer(f, n); to != nil {
			return to
		}
	}
	if f.Kind == wire.KindUpdate || f.Kind == wire.KindSnapshot {
		return s.buffers.Payload(n) // the body is kept without a copy
	}
	return nil
}

// receivePiece processes a piece of a shard's snapshot and acknowledges it to the sender.
func (c *conn) receivePiece(s *Server, sh *shard, f *wire.Frame) error {
	body := f.Body
	f.Body = nil // it may be memory of rows
	if err := sh.checkPiece(c, f); err != nil {
		return err
	}
	whole, err := c.taking.AddPiece(f, body, &s.buffers)
	if err == nil && whole {
		err = sh.install(c.taking)
	}
	switch {
	case errors.Is(err, errNotWanted):
		return err
	case err != nil:
		return fmt.Errorf("cannot send a snapshot of shard %d: %w", sh.id, err)
	}
	s.throttle.Wait(s.ctx, len(body))
	have := wire.Frame{Header: f.Header}
	have.Kind, have.Flags = wire.KindHave, 0
	return c.tc.TrySend(have) // immediately, because the sender waits for it
}

// checkPiece rejects a piece unless it is the next one of the connection's snapshot, or the first one of a snapshot
// that is wanted.
func (sh *shard) checkPiece(c *conn, f *wire.Frame) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	name := sh.link.Fence()
	if !sh.link.Started() || sh.retired() || sh.link.Role().Head || name != chain.FenceOf(&f.Header) ||
		!sh.link.PrecededBy(c.index, c.Incarnation) {
		return errNotWanted
	}
	if c.taking == nil && isFirstPiece(f) && sh.link.NeedsSnapshot(f.Request) {
		c.taking = newIncomingCopy(&sh.job, name, f)
		sh.incoming = c.taking // supersedes any other snapshot
	}
	if c.taking == nil || c.taking != sh.incoming || !c.taking.AcceptNext(f) {
		return errNotWanted
	}
	return nil
}

// install replaces the shard's state with a complete snapshot.
func (sh *shard) install(in *incomingCopy) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.incoming != in || sh.retired() || sh.link.Fence() != in.Name || !sh.link.NeedsSnapshot(in.Pos) {
		return errNotWanted
	}
	sh.incoming = nil
	sh.rep.InstallSnapshot(in.IncomingSnapshot)
	sh.slots.grow(len(sh.rep.State.Applied()))
	sh.link.Restored(in.Pos)
	sh.advanceLocked()
	sh.s.notify()
	return nil
}
