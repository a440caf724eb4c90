package transport

import (
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
)

// instants is how many pipes can each have their own nanoseconds to deliver in.
const instants = 4096

// memLink is a connection of a Memory network: two ends, and a pipe in each direction. The network's lock guards it.
type memLink struct {
	mem   *Memory
	rng   *rand.Rand  // decides what happens when a cut is healed
	pipes [2]*pipe    // pipes[i] carries what ends[i] sends
	ends  [2]*memConn // the dialler's, then the listener's
	dead  bool        // an end is gone and sent frames are lost, though the other end may not know yet
}

// pipe carries frames in one direction.
type pipe struct {
	mem    *Memory
	way    direction
	rng    *rand.Rand
	number int64
	gate   sendGate // limits the bytes sent and not yet received
	frames []flight
	last   time.Time // time of the latest arrival

	cut   bool
	cutAt time.Time // during a cut, only frames that arrived before can be received

	end   error // the error after the last frame; nil while the pipe is open
	endAt time.Time
	wake  chan struct{} // makes the receiver check again
}

// flight is a frame in flight.
type flight struct {
	frame wire.Frame
	at    time.Time // time of arrival
}

// memConn is one end of a link.
type memConn struct {
	link    *memLink
	host    *memHost
	peer    string
	in, out *pipe
	err     error       // why this side ended the connection; guarded by the network's lock
	timer   *time.Timer // owned by the receiver
	onWait  func()      // owned by the receiver; called before waiting; may be nil
}

// newMemLinkLocked connects a host to a listener. The caller must hold the network's lock.
func newMemLinkLocked(h *memHost, to *memListener, rng *rand.Rand) (near, far *memConn) {
	m := h.mem
	l := &memLink{mem: m, rng: rng}
	for i, way := range []direction{{h.name, to.host.name}, {to.host.name, h.name}} {
		p := &pipe{
			mem:    m,
			way:    way,
			rng:    rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64())),
			number: m.pipes % instants,
			wake:   make(chan struct{}, 1),
		}
		p.gate.Init(&m.mu, m.options.MaxQueued)
		m.pipes++
		l.pipes[i] = p
	}
	near = &memConn{link: l, host: h, peer: to.addr, in: l.pipes[1], out: l.pipes[0]}
	far = &memConn{link: l, host: to.host, peer: h.name, in: l.pipes[0], out: l.pipes[1]}
	l.ends = [2]*memConn{near, far}
	m.links = append(m.links, l)
	return near, far
}

// arrival draws the arrival time of a frame sent now. It is later than all earlier ones and in a nanosecond that
// belongs to this pipe.
func (p *pipe) arrival() time.Time {
	at := time.Now().Add(p.mem.latency(p.rng))
	if !at.After(p.last) {
		at = p.last.Add(1)
	}
	late := (p.number - at.UnixNano()) % instants
	if late < 0 {
		late += instants
	}
	p.last = at.Add(time.Duration(late))
	return p.last
}

// arrived reports whether a frame with that arrival time can be received.
func (p *pipe) arrived(at time.Time) bool {
	return !at.After(time.Now()) && !(p.cut && at.After(p.cutAt))
}

func (p *pipe) wakeReceiver() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// finish ends pipe i after its frames. When the end arrives, the receiver's Sends also fail.
func (l *memLink) finish(i int, why error) {
	p := l.pipes[i]
	if p.end == nil {
		p.end, p.endAt = why, p.arrival()
		l.announce(i)
	}
	p.wakeReceiver()
}

// announce makes the Sends of pipe i's receiver fail when the pipe's end arrives.
func (l *memLink) announce(i int) {
	p := l.pipes[i]
	time.AfterFunc(time.Until(p.endAt), func() {
		l.mem.mu.Lock()
		defer l.mem.mu.Unlock()
		if p.arrived(p.endAt) {
			l.pipes[1-i].gate.Fail(p.end)
		}
	})
}

// fail breaks the link. Only a random part of the frames in flight arrives.
func (l *memLink) fail() {
	if !l.dead {
		l.dead = true
		for i, p := range l.pipes {
			here := 0
			for here < len(p.frames) && p.arrived(p.frames[here].at) {
				here++
			}
			keep := here + p.rng.IntN(len(p.frames)-here+1)
			for _, f := range p.frames[keep:] {
				p.gate.Leave(wire.HeaderBytes + f.frame.PayloadBytes())
			}
			p.frames = slices.Delete(p.frames, keep, len(p.frames))
			l.finish(i, brokenError(l.ends[1-i].peer, errReset))
		}
	}
	l.removeIfClosed()
}

// heal ends the cuts of the link.
func (l *memLink) heal() {
	held := false
	for i, p := range l.pipes {
		if !p.cut {
			continue
		}
		p.cut, p.last = false, time.Now()
		for k := range p.frames {
			if p.frames[k].at.After(p.cutAt) {
				p.frames[k].at = p.arrival()
				held = true
			}
		}
		if p.end != nil && p.endAt.After(p.cutAt) {
			p.endAt = p.arrival()
			l.announce(i)
		}
		p.wakeReceiver()
	}
	if held && l.rng.IntN(2) == 0 {
		l.fail()
	}
}

// removeIfClosed removes the link from the network when both sides have ended it.
func (l *memLink) removeIfClosed() {
	if l.ends[0].err == nil || l.ends[1].err == nil {
		return
	}
	if i := slices.Index(l.mem.links, l); i >= 0 {
		l.mem.links = slices.Delete(l.mem.links, i, i+1)
	}
}

// failLocked makes all operations of this side fail.
func (c *memConn) failLocked(err error) {
	if c.err == nil {
		c.err = err
		c.in.frames = nil
		c.out.gate.Fail(err)
		c.out.gate.ReleaseBudget() // frames in flight belong to the network
		c.in.wakeReceiver()
	}
}

// OnWait implements Conn.
func (c *memConn) OnWait(f func()) { c.onWait = f }

// Peer implements Conn.
func (c *memConn) Peer() string { return c.peer }

// Charge implements Conn. Frames are charged until the peer has received them.
func (c *memConn) Charge(b *Budget) {
	c.link.mem.mu.Lock()
	defer c.link.mem.mu.Unlock()
	if c.err == nil {
		c.out.gate.Charge(b)
	}
}

// PeerIdentity implements Conn.
func (c *memConn) PeerIdentity() keys.Identity { return keys.Identity{} }

// Close implements Conn. Frames sent before still arrive.
func (c *memConn) Close() error {
	c.end(ErrClosed)
	return nil
}

// end breaks the connection from this side.
func (c *memConn) end(err error) {
	l := c.link
	l.mem.mu.Lock()
	defer l.mem.mu.Unlock()
	c.failLocked(err)
	l.dead = true
	for i, end := range l.ends {
		if end == c {
			l.finish(i, brokenError(l.ends[1-i].peer, io.EOF))
		}
	}
	l.removeIfClosed()
}

// Send implements Conn. It copies the payloads.
func (c *memConn) Send(frames ...wire.Frame) error { return c.send(frames, true) }

// TrySend implements Conn.
func (c *memConn) TrySend(frames ...wire.Frame) error { return c.send(frames, false) }

func (c *memConn) send(frames []wire.Frame, wait bool) error {
	n, err := batchBytes(frames)
	if err != nil {
		releaseAll(frames)
		return err
	}
	flights := make([]flight, len(frames))
	for i, f := range frames {
		f.Payload = slices.Concat(f.Payload, f.Body)
		f.Body, f.Release, f.Lent = nil, nil, false
		flights[i].frame = f
	}
	releaseAll(frames)
	m, p := c.link.mem, c.out
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.gate.Enter(n, wait); err != nil {
		return err
	}
	for i := range flights {
		if !c.link.dead && p.rng.Float64() < m.options.Breaks {
			c.link.fail()
		}
		if c.link.dead { // neither end knows: this frame and the rest are lost
			lost, _ := batchBytes(frames[i:]) // checked above
			p.gate.Leave(lost)
			break
		}
		flights[i].at = p.arrival()
		p.frames = append(p.frames, flights[i])
	}
	p.wakeReceiver()
	return nil
}

// Recv implements Conn.
func (c *memConn) Recv(f *wire.Frame) error { return c.RecvInto(f, nil) }

// RecvInto implements Conn.
func (c *memConn) RecvInto(f *wire.Frame, place func(f *wire.Frame, n int) []byte) error {
	for {
		got, next, err := c.receiveNext()
		if err != nil {
			return err
		}
		if got != nil {
			return c.deliver(f, got, place)
		}
		if c.onWait != nil {
			c.onWait()
		}
		var timer <-chan time.Time
		if next > 0 {
			if c.timer == nil {
				c.timer = time.NewTimer(next)
			} else {
				c.timer.Reset(next)
			}
			timer = c.timer.C
		}
		select {
		case <-c.in.wake:
		case <-timer:
		}
	}
}

// deliver copies a frame that has arrived to f.
func (c *memConn) deliver(f, got *wire.Frame, place func(f *wire.Frame, n int) []byte) error {
	f.Header = got.Header
	b, err := payloadBuffer(f, len(got.Payload), place)
	if err != nil {
		err = brokenError(c.peer, err)
		c.end(err)
		return err
	}
	head := len(got.Payload) - len(b)
	f.Payload = append(f.Payload[:0], got.Payload[:head]...)
	f.Body = b
	copy(b, got.Payload[head:])
	return nil
}

// receiveNext returns the next frame if it has arrived. Otherwise it returns the time until the next arrival, or 0 if
// nothing is in flight.
func (c *memConn) receiveNext() (got *wire.Frame, next time.Duration, err error) {
	c.link.mem.mu.Lock()
	defer c.link.mem.mu.Unlock()
	p := c.in
	if c.err != nil {
		return nil, 0, c.err
	}
	var at time.Time
	switch {
	case len(p.frames) > 0:
		at = p.frames[0].at
	case p.end != nil:
		at = p.endAt
	default:
		return nil, 0, nil
	}
	if !p.arrived(at) {
		if p.cut && at.After(p.cutAt) {
			return nil, 0, nil // until the cut is healed
		}
		return nil, max(time.Until(at), 1), nil
	}
	if len(p.frames) == 0 {
		c.out.gate.Fail(p.end)
		return nil, 0, p.end
	}
	got = &p.frames[0].frame
	p.gate.Leave(wire.HeaderBytes + got.PayloadBytes())
	if p.frames = p.frames[1:]; len(p.frames) == 0 {
		p.frames = nil // releases the payloads
	}
	return got, 0, nil
}
