package membership

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// record is the only way to change the facts. It notifies everything that depends on a change: it updates the deltas
// for the processes that act on it, and marks the work queue.
type record struct {
	facts  *Facts
	job    *job
	queue  *dirtySet
	deltas deltaTracker
	dirty  bool  // the facts have changed since they were last saved
	out    Ready // collected so far
	chain  []int // buffer for spreadShard
}

// set changes a fact other than the view of a shard or slot, for which there are changeShard and changeSlot. Nothing
// may act on the change before it is durable.
func set[T any](r *record, fact *T, to T) { *fact, r.dirty = to, true }

// spreadShard records which servers hold a shard, and which one starts to.
func (r *record) spreadShard(shard int) {
	sv := &r.facts.View.Shards[shard]
	r.chain = r.chain[:0]
	for i := range sv.Replicas() {
		r.chain = append(r.chain, sv.Replica(i).Server)
	}
	joiner := -1
	if sv.Joining != nil {
		joiner = sv.Joining.Server
	}
	r.job.spread.Set(shard, r.chain, joiner)
}

// ready returns the pending work and starts to collect afresh.
func (r *record) ready() Ready {
	out := r.out
	r.out = Ready{}
	if r.dirty {
		r.dirty = false
		r.facts.View.Revision++
		out.Facts = r.facts
		out.Delta, out.WorkerDelta = r.deltas.Tell(&r.facts.View)
	}
	return out
}

func (r *record) event(kind, target, format string, args ...any) {
	r.out.Events = append(r.out.Events, Event{Kind: kind, Target: target, Text: fmt.Sprintf(format, args...)})
}

// lost reports a slot's newly lost updates to users.
func (r *record) lost(slot int, l lossReport) {
	if l.Updates > 0 {
		r.event("lost", target(Worker, slot), "worker:%d: %s", slot, l)
	}
}

// fail ends the job because of an unrecoverable error.
func (r *record) fail(why string, args ...any) {
	text := fmt.Sprintf(why, args...)
	if at := r.facts.View.Durable; at > 0 {
		text += fmt.Sprintf("; to continue from clock %d, use --resume RUN", at)
	}
	set(r, &r.facts.Failed, text)
	r.event("failed", "", "%s", text)
}

// kill requests, once, that a suspect be killed.
func (r *record) kill(k Kind, index int) {
	p, o := r.job.place(k, index)
	if o.ear.GiveUp(r.job.minClock()) {
		r.out.Kills = append(r.out.Kills,
			Kill{Kind: k, Index: index, Process: p.Process, PID: p.PID, Guest: r.job.unmanaged(k, index)})
	}
}

// noticed records that a process is dead.
func (r *record) noticed(k Kind, index int, how string) {
	p, o := r.job.place(k, index)
	o.assumed = false
	if k == Server {
		r.touchServer(index)
	}
	if o.gone {
		return
	}
	o.gone, o.connected = true, false
	if told := p.Left && p.Draining; r.facts.View.Done || k == Server && told ||
		k == Worker && r.facts.View.Slots[index].Left {
		return // it had been released
	}
	r.job.recovering[k].Add(index)
	r.event("detected", target(k, index), "%s is dead: %s", target(k, index), how)
	if k == Server && !p.Left && (r.facts.Job.NoReplace || p.Draining || p.Any) {
		set(r, &p.Left, true)
	}
}

func (r *record) endAt(clock perdure.Clock) {
	set(r, &r.facts.View.End, clock)
	r.event("end", "", "the goal is reached; the job ends at clock %d", clock)
}

// stopAt names the clock at which every slot stops: with the job, or, if the end is tentative, to evaluate the model.
func (r *record) stopAt(clock perdure.Clock, tentative bool) {
	if !tentative {
		r.endAt(clock)
		return
	}
	set(r, &r.facts.View.End, clock)
	set(r, &r.facts.View.Tentative, true)
	r.event("tentative-end", "", "every slot stops at clock %d, so that its model can be evaluated", clock)
}

// touchServer marks a server and its shards.
func (r *record) touchServer(server int) { r.queue.TouchServer(server, r.job.spread.Held(server)) }

// changeShard replaces a shard's view. Its followers must not be changed in place, because older views share them.
func (r *record) changeShard(shard int, next words.ShardView) {
	r.deltas.Shard(shard, &r.facts.View.Shards[shard], &next)
	r.facts.View.Shards[shard], r.dirty = next, true
	r.spreadShard(shard)
	r.job.unready.Add(shard) // until it is known to be ready
	r.queue.Changed(shard, &next)
}

// changeSlot replaces a slot's view.
func (r *record) changeSlot(slot int, next words.SlotView) {
	at := &r.facts.View.Slots[slot]
	if *at == next {
		return
	}
	r.deltas.Slot(slot, at, &next, r.facts.View.Roster > 0)
	clock := r.job.counted(slot)
	*at, r.dirty = next, true
	r.job.clocks.Move(clock, r.job.counted(slot))
	r.queue.ChangedSlot(slot, at)
}

func (r *record) changeTables(tables []perdure.TableSpec) {
	set(r, &r.facts.View.Tables, tables)
	r.deltas.Tables()
}

// setClock records the clock of a slot's process.
func (r *record) setClock(slot int, clock perdure.Clock) {
	if r.job.slots[slot].lastClock == clock {
		return
	}
	before := r.job.counted(slot)
	r.job.slots[slot].lastClock = clock
	r.job.clocks.Move(before, r.job.counted(slot))
	r.queue.WakeEarly(func(early int) bool { return clock+1 >= r.facts.View.Slots[early].From })
}

// addServer prepares the observations of one more server index.
func (r *record) addServer(zone string) {
	server := len(r.job.servers)
	r.queue.Unjudged.Add(server)
	r.queue.Leaving.Add(server)
	r.job.servers = append(r.job.servers, observed{})
	r.job.spread.Add(zone)
}

// addSlot prepares the observations of one more slot, which does not participate yet.
func (r *record) addSlot() {
	v := &r.facts.View
	r.job.slots = append(r.job.slots, observed{})
	v.Slots = append(v.Slots, words.SlotView{})
	r.deltas.Add()
	r.job.clocks.Move(-1, r.job.counted(len(r.job.slots)-1))
}

// judge determines which servers may be given replicas and which are awaited, for all servers with new observations. If
// that changes, it marks the shards that wait for a server.
func (r *record) judge() {
	news := false
	for _, i := range r.queue.Unjudged.All() {
		r.job.looks.servers++
		p, is := &r.facts.Servers[i], r.job.eligible(i)
		away := !p.Left && !p.Draining && !is
		news = news || is != r.job.spread.IsOpen(i) || away != r.queue.Away.Has(i)
		r.job.spread.Open(i, is)
		r.queue.Away.Put(i, away)
	}
	r.queue.Unjudged.Clear()
	if news {
		for _, s := range r.queue.Wanting.All() {
			r.queue.TouchShard(s)
		}
		r.queue.Stirred = true
	}
}

// refresh determines which of the shards that are due serve.
func (r *record) refresh() {
	for _, s := range r.queue.Due.All() {
		r.job.unready.Put(s, !r.job.ready(s))
	}
}
