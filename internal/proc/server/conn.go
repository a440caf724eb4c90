package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// conn is a connection from a worker or an observer, or from another server.
type conn struct {
	replica.Reader
	tc  transport.Conn
	log *slog.Logger
	// Opens and Follows of lives of shards that are not here yet; guarded by Server.mu
	opens  map[perdure.ShardID]*waiting
	role   wire.Role        // of the peer
	server bool             // from another server
	index  int              // that one's number
	job    *perdure.JobSpec // which never changes
	batch  batch            // of the goroutine that receives from it
	taking *incomingCopy    // that goroutine's, too: the snapshot that it brings

	mu        sync.Mutex // guards what follows
	holding   bool
	held      []wire.Frame
	heldBytes int
	broken    bool
	asked     readBudget // that wait
	staged    round
}

// waits counts a read that waits from now on, unless there are too many.
func (c *conn) waits(rd *replica.Read) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked.Wait(rd)
}

// waited counts a read that waits no more, and reports whether others wait for the same MinClock.
func (c *conn) waited(rd *replica.Read) (others bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked.Done(rd)
}

// allStaged counts an acknowledgement that a clock is staged on one more shard, and
// reports whether it is most likely the last: who waits for it waits for all shards.
func (c *conn) allStaged(clock perdure.Clock) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.staged.complete(clock)
}

// beginRound forgets how many shards acknowledge on the connection: some come, or go.
func (c *conn) beginRound() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.staged = round{}
}

// round counts what comes once from each of several shards in each clock.
type round struct {
	clock       perdure.Clock
	here, whole int // how many have come, and came in the round before
}

// complete counts one of a clock, and reports whether as many have come as in the round
// before.
func (r *round) complete(clock perdure.Clock) bool {
	if clock != r.clock {
		r.clock, r.here, r.whole = clock, 0, r.here
	}
	r.here++
	return r.here >= r.whole
}

// mostHeld is how many bytes of answers are held back at most.
const mostHeld = 16 << 10

// send queues frames for the peer. It never waits: a peer that takes too little
// of what it asked for must not hold others up, and loses its connection.
func (c *conn) send(frames ...wire.Frame) {
	if len(frames) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.add(frames); !c.holding {
		c.flush()
	}
}

// queue is send for who will call sendHeld soon. It reports whether that is needed.
func (c *conn) queue(frames []wire.Frame) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(frames)
	return len(c.held) > 0
}

// add holds frames back, unless that must not be. It needs c.mu.
func (c *conn) add(frames []wire.Frame) {
	c.held = append(c.held, frames...)
	lent := false
	for i := range frames {
		c.heldBytes += wire.HeaderBytes + frames[i].PayloadBytes()
		lent = lent || frames[i].Lent
	}
	if lent || c.heldBytes > mostHeld {
		c.flush()
	}
}

// sendHeld sends what queue has held back.
func (c *conn) sendHeld() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.holding {
		c.flush()
	}
}

// hold keeps back what is sent until release, when all that has come is dealt
// with: the answers to frames that came together go out together.
func (c *conn) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holding = true
}

func (c *conn) release() {
	c.mu.Lock()
	c.holding = false
	c.flush()
	c.mu.Unlock()
	c.batch.flush()
}

// end closes the connection. Close lets go out what was sent, for a moment at most, and nobody waits
// for that who has a lock: the goroutine that receives ends with the connection.
func (c *conn) end() { go c.tc.Close() }

// flush sends what is held back. It needs c.mu.
func (c *conn) flush() {
	if len(c.held) == 0 {
		return
	}
	if err := c.tc.TrySend(c.held...); err != nil && !c.broken {
		c.broken = true
		c.log.Warn("closed a connection", "slot", c.Slot, "peer", c.tc.Peer(), "err", err)
		c.end()
	}
	clear(c.held) // lets the payloads go
	c.held, c.heldBytes = c.held[:0], 0
}

// connOf returns the connection that a reader is.
func connOf(r *replica.Reader) *conn { return r.Conn.(*conn) }

// serve handles one connection until it breaks.
func (s *Server) serve(tc transport.Conn) {
	defer tc.Close()
	defer context.AfterFunc(s.ctx, func() { tc.Close() })() // also while it has not said who it is
	hello, peer, err := s.door.Enter(tc)
	if err != nil {
		return // the log has it
	}
	defer peer.Leave()
	defer tc.Close() // what is queued counts until then
	c := &conn{
		Reader: replica.Reader{Slot: perdure.Slot(hello.Index), Incarnation: hello.Incarnation},
		tc:     tc, log: s.door.Connections(), opens: map[perdure.ShardID]*waiting{},
		asked: readBudget{All: peer.Waiting},
	}
	c.Conn = c
	if err := s.admit(c, hello); err != nil {
		c.log.Warn("refused a connection", "peer", tc.Peer(), "err", err)
		return
	}
	defer s.forget(c)
	defer c.release()
	tc.OnWait(c.release)
	var f wire.Frame
	land := func(f *wire.Frame, n int) []byte { return c.land(s, f, n) }
	for {
		if err := tc.RecvInto(&f, land); err != nil {
			c.log.Info("connection ended", "slot", c.Slot, "incarnation", c.Incarnation, "err", err)
			return
		}
		c.hold()
		err := s.handle(c, &f)
		if f.Body != nil {
			s.buffers.Keep(f.Body)
		}
		if err != nil {
			c.release()
			c.log.Warn("closed a connection", "slot", c.Slot, "peer", tc.Peer(), "err", err)
			_ = transport.Refuse(tc, wire.Refusal{Reason: err.Error(), Again: errors.Is(err, errRenamed)})
			return
		}
	}
}

// admit checks who wants to connect, and welcomes it.
func (s *Server) admit(c *conn, hello wire.Hello) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var r wire.Refusal
	switch {
	case s.job == nil || s.conns == nil:
		return fmt.Errorf("this server has not joined a job yet") // the peer tries again
	case hello.Job != s.job.ID:
		r.Reason = fmt.Sprintf("this server works for job %s, the peer for job %q", s.job.ID, hello.Job)
	case hello.Role == wire.RoleObserver:
		c.Slot = perdure.NoSlot
	case hello.Role == wire.RoleServer:
		c.Slot, c.server, c.index = perdure.NoSlot, true, hello.Index
	case hello.Role != wire.RoleWorker:
		r.Reason = fmt.Sprintf("a server talks to workers, observers and servers, not to a %q", hello.Role)
	case hello.Index < 0 || hello.Index >= perdure.MaxSlots:
		r.Reason = fmt.Sprintf("slot %d of a job of %d", hello.Index, len(s.view.Slots))
	case !s.cfg.Keys.Ticket(s.job.ID, perdure.Slot(hello.Index), hello.Incarnation, hello.Name()).Admits(hello.Ticket):
		r.Reason = fmt.Sprintf("the coordinator has not let this process speak for slot %d with incarnation %d",
			hello.Index, hello.Incarnation)
	case hello.Index >= s.job.Slots && hello.Index >= len(s.view.Slots):
		// The peer tries again.
		return fmt.Errorf("slot %d of a job of %d, as far as this server has heard", hello.Index, s.job.Slots)
	case len(s.view.Slots) > hello.Index && hello.Incarnation < s.view.Slots[hello.Index].Incarnation:
		r = wire.Refusal{Fenced: true, Reason: fmt.Sprintf("slot %d was taken by incarnation %d; this is %d",
			hello.Index, s.view.Slots[hello.Index].Incarnation, hello.Incarnation)}
	}
	if r.Reason != "" {
		_ = transport.Refuse(c.tc, r) // it is being closed anyway
		return fmt.Errorf("%s", r.Reason)
	}
	c.job, c.role = s.job, hello.Role
	s.conns[c] = struct{}{}
	return c.tc.Send(wire.Control(wire.KindWelcome,
		wire.Welcome{Job: *s.job, Index: hello.Index, Incarnation: hello.Incarnation}))
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	for _, w := range c.opens {
		w.over.Store(true)
	}
	s.mu.Unlock()
	for _, sh := range s.held() {
		sh.forget(c)
	}
}

// shard returns the shard that a frame is for, or nil if it is for another life
// of it than the one held here: such a frame is refused by being ignored, and
// its sender opens the shard again when it knows the newer view.
func (s *Server) shard(f *wire.Frame) *shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.shards[f.Shard]
	if sh == nil || (*sh.named.Load() != link.NameOf(&f.Header) && !s.cfg.weak.Generations) {
		return nil
	}
	return sh
}

// handle acts on one frame. An error ends the connection.
func (s *Server) handle(c *conn, f *wire.Frame) error {
	if err := c.speaks(f, c.job); err != nil {
		return err
	}
	switch {
	case f.Kind == wire.KindOpen && !c.server, f.Kind == wire.KindFollow && c.server:
		s.open(c, f)
		return nil
	case f.Kind == wire.KindEcho && f.Shard < 0:
		c.send(wire.Frame{Header: f.Header})
		return nil
	}
	sh := s.shard(f)
	if sh == nil && f.Kind == wire.KindSnapshot {
		f.Body = nil        // it may be memory of rows
		return errNotWanted // its sender must not wait for an answer
	}
	if sh == nil {
		return nil
	}
	if c.server {
		return s.fromServer(sh, c, f)
	}
	if f.Kind == wire.KindUpdate || f.Kind == wire.KindTick {
		return sh.takeIn(c, f)
	}
	return sh.ask(c, f)
}

// fromServer acts on a frame of another server.
func (s *Server) fromServer(sh *shard, c *conn, f *wire.Frame) error {
	switch f.Kind {
	case wire.KindUpdate, wire.KindTick, wire.KindFence, wire.KindDecide:
		if n := perdure.Slot(sh.slots.n.Load()); f.Slot < 0 || f.Slot >= n {
			return fmt.Errorf("an entry of kind %d is of slot %d; the job has %d", f.Kind, f.Slot, n)
		}
	case wire.KindRoster:
		if err := sh.slots.expect(f, sh.job.Slots); err != nil {
			return err
		}
	case wire.KindEnd, wire.KindAddTable, wire.KindBase, wire.KindCut, wire.KindPassCut, wire.KindLevel:
	case wire.KindSnapshot:
		return c.takePiece(s, sh, f)
	default:
		return fmt.Errorf("unexpected frame of kind %d from a server", f.Kind)
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.fromPredecessor(c, f, &c.batch)
	return nil
}

// open answers once the shard is ready in the life that the peer means.
func (s *Server) open(c *conn, f *wire.Frame) {
	if int(f.Shard) < 0 || int(f.Shard) >= c.job.Shards {
		return
	}
	w := &waiting{c: c, h: f.Header}
	s.mu.Lock()
	if before := c.opens[f.Shard]; before != nil {
		before.over.Store(true)
		delete(c.opens, f.Shard)
	}
	s.mu.Unlock()
	if sh := s.shard(f); sh != nil && w.enters(sh, &c.batch) {
		return
	}
	s.mu.Lock()
	c.opens[f.Shard] = w // the shard may be on its way to us, or the peer behind
	s.mu.Unlock()
	s.opened(f.Shard) // it may have come meanwhile
}

// waiting is an Open or a Follow that waits for a life of a shard.
type waiting struct {
	c     *conn
	h     wire.Header
	taken bool // a goroutine brings it to the shard; guarded by Server.mu
	// over: its connection has ended, or has said something newer since. Whoever sets it has the shard's lock later, so
	// that whoever finds it unset there comes first.
	over atomic.Bool
}

// enters brings a shard an Open or a Follow, unless it is not restored yet and cannot say what it has, or is in another
// life by now. For the batch see fromPredecessor.
func (w *waiting) enters(sh *shard, to *batch) (taken bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	f := wire.Frame{Header: w.h}
	switch {
	case w.over.Load():
		return true
	case w.c.server:
		return sh.fromPredecessor(w.c, &f, to)
	}
	return sh.open(w.c, &f)
}

// opened brings a shard the Opens and Follows that wait for its present life. Those that the shard cannot take yet keep
// waiting. If the shard changes meanwhile, the goroutine that changes it calls opened too. That call may find them
// taken by this one, so this one looks again.
func (s *Server) opened(id perdure.ShardID) {
	for again := true; again; {
		sh, look, found := s.takeWaiting(id)
		again = false
		for _, w := range found {
			entered := w.enters(sh, nil)
			s.mu.Lock()
			if w.taken = false; !entered {
				again = again || s.shards[id] != sh || sh.opening != look
			} else if w.c.opens[id] == w {
				delete(w.c.opens, id)
			}
			s.mu.Unlock()
		}
	}
}

// takeWaiting takes what waits for the present life of a shard, and returns how often that was done.
func (s *Server) takeWaiting(id perdure.ShardID) (sh *shard, look uint64, found []*waiting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh = s.shards[id]; sh == nil {
		return nil, 0, nil
	}
	sh.opening++
	for c := range s.conns {
		if w := c.opens[id]; w != nil && !w.taken && link.NameOf(&w.h) == *sh.named.Load() {
			w.taken = true
			found = append(found, w)
		}
	}
	return sh, sh.opening, found
}

// held returns the shards that this server has.
func (s *Server) held() []*shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.shards))
}
