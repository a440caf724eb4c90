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

// outflows are the streams of rows that a shard pushes. shard.mu guards them.
type outflows struct {
	lock    sync.Locker // shard.mu
	ctx     context.Context
	to      []*outflow   // by slot; nil until the first push to it
	most    int          // maximum bytes of one push
	since   time.Time    // when the MinClock of the current pushes was reached
	scratch []wire.Frame // scratch space for the frames of one push
}

// outflow is the stream to one slot on its current connection.
type outflow struct {
	of   *service
	slot perdure.Slot
	flow uint64 // the replica's number for this stream

	last   *answerFrame // the memory of the last frame sent
	flying atomic.Bool  // last has not been written yet
	more   atomic.Bool  // a push must follow once last is written
}

// pushBytes limits what is handed to the transport before more is gathered. A slow reader has at most that much in
// flight, and later changes are merged. All shards of a server push over one connection, whose gate holds 64 MiB;
// together they use at most a quarter of it.
const (
	pushBytes      = 4 << 20
	pushBytesInAll = 16 << 20
)

func newOutflows(ctx context.Context, lock sync.Locker, shards int) outflows {
	return outflows{lock: lock, ctx: ctx, most: min(pushBytes, pushBytesInAll/shards)}
}

// get returns the stream to a slot.
func (o *outflows) get(of *service, slot perdure.Slot, flow uint64) *outflow {
	o.to = append(o.to, make([]*outflow, max(0, int(slot)+1-len(o.to)))...)
	if to := o.to[slot]; to != nil && to.flow == flow {
		return to
	}
	o.to[slot] = &outflow{of: of, slot: slot, flow: flow}
	return o.to[slot]
}

// removeRead returns the microseconds since the shard reached its MinClock.
func (o *outflows) waited() uint64 { return uint64(max(0, time.Since(o.since).Microseconds())) }

// push continues a slot's round or starts one. If the previous push is not written yet, resume continues it later.
func (sv *service) push(slot perdure.Slot) {
	st, audience, out := &sv.rep.State, &sv.rep.Readers, &sv.out
	reader, flow := audience.Flow(slot)
	to := out.get(sv, slot, flow)
	if to.flying.Load() {
		to.more.Store(true)
		if to.flying.Load() || !to.more.Swap(false) {
			return // resume continues it
		}
	}
	begun := audience.StartRound(slot, st)
	pushed, done := out.gather(slot, sv.rep, sv.link.Fence(), sv.buffers)
	state, minClock, more := audience.EndRound(slot, done)
	if n := len(pushed); done && n > 0 && begun {
		pushed[n-1].Flags |= wire.FlagLast
	} else if done {
		state.WaitedMicros = out.waited()
		f := sv.link.Fence().Frame(wire.KindPush)
		f.Clock, f.Flags = minClock, wire.FlagLast
		sv.buffers.End(&f, state)
		pushed = append(pushed, f)
		out.scratch = pushed
	}
	to.more.Store(more)
	to.flying.Store(true)
	last := &pushed[len(pushed)-1]
	to.last = last.Release.(*answerFrame)
	last.Release = to
	sv.to.send(connOf(reader), pushed...)
	clear(pushed) // releases the payloads
}

// gather builds frames of the next rows of a slot's round and reports whether they are the last ones.
func (o *outflows) gather(slot perdure.Slot, rep *replica.Replica, n chain.Fence, b *frameBuffers,
) (pushed []wire.Frame, done bool) {
	st := &rep.State
	left := o.most
	pushed = o.scratch[:0]
	defer func() { o.scratch = pushed }()
	for left > 0 {
		rows, p, bytes := rep.Readers.NextRows(slot, left, st)
		if rows.Count == 0 {
			return pushed, true
		}
		f := n.Frame(wire.KindPush)
		f.Clock = st.MinClock()
		b.Push(&f, &wire.State{Seq: st.Seq(), WaitedMicros: o.waited(), Applied: st.Applied()}, &rows, p)
		pushed = append(pushed, f)
		left -= bytes
	}
	return pushed, false
}

// Keep implements wire.Keeper.
func (to *outflow) Keep(body []byte) []byte { return to.last.Keep(body) }

// Release implements wire.Releaser. The last push has been written.
func (to *outflow) Release() {
	to.last.Release()
	to.flying.Store(false)
	if to.more.Swap(false) && to.of.out.ctx.Err() == nil {
		go to.resume() // Release must not block
	}
}

// resume sends the push that was delayed.
func (to *outflow) resume() {
	sv := to.of
	sv.out.lock.Lock()
	defer sv.out.lock.Unlock()
	if !sv.rep.Ready() {
		return
	}
	if reader, flow := sv.rep.Readers.Flow(to.slot); reader != nil && flow == to.flow {
		sv.push(to.slot)
	}
}
