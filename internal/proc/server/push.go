package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// outflows are the ways on which a shard sends rows by itself. shard.mu guards them.
type outflows struct {
	lock  sync.Locker // shard.mu
	ctx   context.Context
	to    []*outflow   // by slot; nil: nothing was pushed to it yet
	most  int          // bytes of one push
	since time.Time    // when the MinClock was reached because of which rows are pushed
	room  []wire.Frame // for the frames of one push
}

// outflow is the way to one slot on its present connection.
type outflow struct {
	of   *service
	slot perdure.Slot
	flow uint64 // the replica's number for it

	last   *answerFrame // the memory of the last frame that was sent
	flying atomic.Bool  // that is not written yet
	more   atomic.Bool  // something is to follow once it is
}

// What is handed to the transport before more is gathered: a slow reader has so
// much under way, and the rest is merged. All shards on one server push over one
// connection, whose gate holds 64 MiB; together they use a quarter of it.
const (
	pushBytes      = 4 << 20
	pushBytesInAll = 16 << 20
)

func newOutflows(ctx context.Context, lock sync.Locker, shards int) outflows {
	return outflows{lock: lock, ctx: ctx, most: min(pushBytes, pushBytesInAll/shards)}
}

// get returns the way to a slot.
func (o *outflows) get(of *service, slot perdure.Slot, flow uint64) *outflow {
	o.to = append(o.to, make([]*outflow, max(0, int(slot)+1-len(o.to)))...)
	if to := o.to[slot]; to != nil && to.flow == flow {
		return to
	}
	o.to[slot] = &outflow{of: of, slot: slot, flow: flow}
	return o.to[slot]
}

// waited is how long ago the shard came to its MinClock, in microseconds.
func (o *outflows) waited() uint64 { return uint64(max(0, time.Since(o.since).Microseconds())) }

// push goes on with a slot's round, or begins one, unless what was sent before is still to be
// written: then it comes back.
func (sv *service) push(slot perdure.Slot) {
	st, audience, out := &sv.rep.State, &sv.rep.Audience, &sv.out
	reader, flow := audience.Flow(slot)
	to := out.get(sv, slot, flow)
	if to.flying.Load() {
		to.more.Store(true)
		if to.flying.Load() || !to.more.Swap(false) {
			return // goOn comes back to it
		}
	}
	begun := audience.BeginRound(slot, st)
	pushed, done := out.gather(slot, sv.rep, sv.link.Name(), sv.buffers)
	state, minClock, more := audience.EndRound(slot, done)
	if n := len(pushed); done && n > 0 && begun {
		pushed[n-1].Flags |= wire.FlagLast
	} else if done {
		state.Waited = out.waited()
		f := sv.link.Name().Frame(wire.KindPush)
		f.Clock, f.Flags = minClock, wire.FlagLast
		sv.buffers.End(&f, state)
		pushed = append(pushed, f)
		out.room = pushed
	}
	to.more.Store(more)
	to.flying.Store(true)
	last := &pushed[len(pushed)-1]
	to.last = last.Release.(*answerFrame)
	last.Release = to
	sv.to.send(connOf(reader), pushed...)
	clear(pushed) // lets the payloads go
}

// gather makes frames of the next rows of a slot's round, and reports whether those are its last.
func (o *outflows) gather(slot perdure.Slot, rep *replica.Replica, n link.Name, b *frameBuffers,
) (pushed []wire.Frame, done bool) {
	st := &rep.State
	left := o.most
	pushed = o.room[:0]
	defer func() { o.room = pushed }()
	for left > 0 {
		rows, p, bytes := rep.Audience.NextRows(slot, left, st)
		if rows.Count == 0 {
			return pushed, true
		}
		f := n.Frame(wire.KindPush)
		f.Clock = st.MinClock()
		b.Push(&f, &wire.State{Seq: st.Seq(), Waited: o.waited(), Applied: st.Applied()}, &rows, p)
		pushed = append(pushed, f)
		left -= bytes
	}
	return pushed, false
}

// Keep implements wire.Keeper.
func (to *outflow) Keep(body []byte) []byte { return to.last.Keep(body) }

// Release implements wire.Releaser: what was pushed last is written.
func (to *outflow) Release() {
	to.last.Release()
	to.flying.Store(false)
	if to.more.Swap(false) && to.of.out.ctx.Err() == nil {
		go to.goOn() // Release must not wait
	}
}

// goOn pushes what had to wait.
func (to *outflow) goOn() {
	sv := to.of
	sv.out.lock.Lock()
	defer sv.out.lock.Unlock()
	if !sv.rep.Ready() {
		return
	}
	if reader, flow := sv.rep.Audience.Flow(to.slot); reader != nil && flow == to.flow {
		sv.push(to.slot)
	}
}
