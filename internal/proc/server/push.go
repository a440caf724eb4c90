package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// pushStreams are the streams of rows that a shard pushes. shard.mu guards them.
type pushStreams struct {
	lock      sync.Locker // shard.mu
	ctx       context.Context
	to        []*pushStream // by slot; nil until the first push to it
	maxBytes  int           // maximum bytes of one push
	reachedAt time.Time     // when the MinClock of the current pushes was reached
	scratch   []wire.Frame  // scratch space for the frames of one push
}

// pushStream is the stream to one slot on its current connection.
type pushStream struct {
	of   *service
	slot perdure.Slot
	flow uint64 // the replica's number for this stream

	last     *answerFrame // the memory of the last frame sent
	inFlight atomic.Bool  // last has not been written yet
	more     atomic.Bool  // a push must follow once last is written
}

// pushBytes limits what is handed to the transport before more is gathered. A slow reader has at most that much in
// flight, and later changes are merged. All shards of a server push over one connection, whose gate holds 64 MiB;
// together they use at most a quarter of it.
const (
	pushBytes      = 4 << 20
	pushBytesInAll = 16 << 20
)

func newPushStreams(ctx context.Context, lock sync.Locker, shards int) pushStreams {
	return pushStreams{lock: lock, ctx: ctx, maxBytes: min(pushBytes, pushBytesInAll/shards)}
}

// get returns the stream to a slot.
func (o *pushStreams) get(of *service, slot perdure.Slot, flow uint64) *pushStream {
	o.to = append(o.to, make([]*pushStream, max(0, int(slot)+1-len(o.to)))...)
	if to := o.to[slot]; to != nil && to.flow == flow {
		return to
	}
	o.to[slot] = &pushStream{of: of, slot: slot, flow: flow}
	return o.to[slot]
}

// sinceReached returns the microseconds since the shard reached its MinClock.
func (o *pushStreams) sinceReached() uint64 {
	return uint64(max(0, time.Since(o.reachedAt).Microseconds()))
}

// push continues a slot's round or starts one. If the previous push is not written yet, resume continues it later.
func (sv *service) push(slot perdure.Slot) {
	st, audience, out := &sv.rep.State, &sv.rep.Readers, &sv.pushes
	reader, flow := audience.Flow(slot)
	to := out.get(sv, slot, flow)
	if to.inFlight.Load() {
		to.more.Store(true)
		if to.inFlight.Load() || !to.more.Swap(false) {
			return // resume continues it
		}
	}
	started := audience.StartRound(slot, st)
	pushed, done := out.gather(slot, sv.rep, sv.link.Fence(), sv.buffers)
	state, minClock, more := audience.EndRound(slot, done)
	if n := len(pushed); done && n > 0 && started {
		pushed[n-1].Flags |= wire.FlagLast
	} else if done {
		state.WaitedMicros = out.sinceReached()
		f := sv.link.Fence().Frame(wire.KindPush)
		f.Clock, f.Flags = minClock, wire.FlagLast
		sv.buffers.PushEnd(&f, state)
		pushed = append(pushed, f)
		out.scratch = pushed
	}
	to.more.Store(more)
	to.inFlight.Store(true)
	last := &pushed[len(pushed)-1]
	to.last = last.Release.(*answerFrame)
	last.Release = to
	sv.sender.send(connOf(reader), pushed...)
	clear(pushed) // releases the payloads
}

// gather builds frames of the next rows of a slot's round and reports whether they are the last ones.
func (o *pushStreams) gather(slot perdure.Slot, rep *replica.Replica, n chain.Fence, b *frameBuffers,
) (pushed []wire.Frame, done bool) {
	st := &rep.State
	left := o.maxBytes
	pushed = o.scratch[:0]
	defer func() { o.scratch = pushed }()
	for left > 0 {
		rows, p, bytes := rep.Readers.NextRows(slot, left, st)
		if rows.Count == 0 {
			return pushed, true
		}
		f := n.Frame(wire.KindPush)
		f.Clock = st.MinClock()
		b.Push(&f, &wire.State{Seq: st.Seq(), WaitedMicros: o.sinceReached(), Applied: st.Applied()}, &rows, p)
		pushed = append(pushed, f)
		left -= bytes
	}
	return pushed, false
}

// Keep implements wire.Keeper.
func (to *pushStream) Keep(body []byte) []byte { return to.last.Keep(body) }

// Release implements wire.Releaser. The last push has been written.
func (to *pushStream) Release() {
	to.last.Release()
	to.inFlight.Store(false)
	if to.more.Swap(false) && to.of.pushes.ctx.Err() == nil {
		go to.resume() // Release must not block
	}
}

// resume sends the push that was delayed.
func (to *pushStream) resume() {
	sv := to.of
	sv.pushes.lock.Lock()
	defer sv.pushes.lock.Unlock()
	if !sv.rep.Ready() {
		return
	}
	if reader, flow := sv.rep.Readers.Flow(to.slot); reader != nil && flow == to.flow {
		sv.push(to.slot)
	}
}
