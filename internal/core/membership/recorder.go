package membership

import (
	"cmp"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// recorder is the only way to change the job record. It notifies everything that depends on a change: it updates the
// deltas for the processes that act on it, and marks the work queue.
type recorder struct {
	record  *JobRecord
	job     *jobState
	queue   *dirtySet
	deltas  deltaTracker
	dirty   bool  // the job record has changed since it was last saved
	pending Ready // collected so far
	chain   []int // buffer for updateReplicas
}

// set changes a fact other than the view of a shard or slot, for which there are changeShard and changeSlot. Nothing
// may act on the change before it is durable.
func set[T any](r *recorder, entry *T, to T) { *entry, r.dirty = to, true }

// updateReplicas records which servers hold a shard, and which one starts to.
func (r *recorder) updateReplicas(shard int) {
	sv := &r.record.View.Shards[shard]
	r.chain = r.chain[:0]
	for i := range sv.Replicas() {
		r.chain = append(r.chain, sv.Replica(i).Server)
	}
	joiner := -1
	if sv.Joining != nil {
		joiner = sv.Joining.Server
	}
	r.job.replicas.Set(shard, r.chain, joiner)
}

// ready returns the pending work and starts to collect afresh.
func (r *recorder) ready() Ready {
	out := r.pending
	r.pending = Ready{}
	if r.dirty {
		r.dirty = false
		r.record.View.Revision++
		out.Record = r.record
		out.Delta, out.WorkerDelta = r.deltas.Deltas(&r.record.View)
	}
	return out
}

func (r *recorder) event(kind, target, format string, args ...any) {
	r.pending.Events = append(r.pending.Events, Event{Kind: kind, Target: target, Text: fmt.Sprintf(format, args...)})
}

// lost reports a slot's newly lost updates to users.
func (r *recorder) lost(slot int, l lossReport) {
	if l.Updates > 0 {
		r.event("lost", target(Worker, slot), "worker:%d: %s", slot, l)
	}
}

// fail ends the job because of an unrecoverable error.
func (r *recorder) fail(why string, args ...any) {
	text := fmt.Sprintf(why, args...)
	if at := r.record.View.Durable; at > 0 {
		text += fmt.Sprintf("; to continue from clock %d, use --resume RUN", at)
	}
	set(r, &r.record.Failed, text)
	r.event("failed", "", "%s", text)
}

// kill requests, once, that a suspect be killed.
func (r *recorder) kill(k Kind, index int) {
	p, o := r.job.member(k, index)
	if o.liveness.GiveUp(r.job.minClock()) {
		r.pending.Kills = append(r.pending.Kills,
			Kill{Kind: k, Index: index, Process: p.Process, PID: p.PID, Unmanaged: r.job.unmanaged(k, index)})
	}
}

// recordDeath records that a process is dead. how is "" if nothing is known of it since its connection broke.
func (r *recorder) recordDeath(k Kind, index int, how string) {
	p, o := r.job.member(k, index)
	o.deathAssumed = false
	if k == Server {
		r.touchServer(index)
	}
	if o.gone {
		return
	}
	o.gone, o.connected = true, false
	if sent := p.Left && p.Draining; r.record.View.Done || k == Server && sent ||
		k == Worker && r.record.View.Slots[index].Left {
		return // it had been released
	}
	r.job.recovering[k].Add(index)
	if how == GaveUpSlot {
		r.event("detected", target(k, index), "%s %s", target(k, index), how)
		r.pending.Events[len(r.pending.Events)-1].Vacated = true
	} else {
		r.event("detected", target(k, index), "%s is dead: %s", target(k, index), cmp.Or(how, "it did not come back"))
	}
	if k == Server && !p.Left && (r.record.Job.NoReplace || p.Draining || p.AnyIndex) {
		set(r, &p.Left, true)
	}
}

// stopAt names the clock at which every slot stops: with the job, or, if the end is tentative, to evaluate the model.
func (r *recorder) stopAt(clock perdure.Clock, tentative bool) {
	set(r, &r.record.View.End, clock)
	r.queue.MarkAwaitingSource()
	if set(r, &r.record.View.Tentative, tentative); tentative {
		r.event("tentative-end", "", "every slot stops at clock %d, so that its model can be evaluated", clock)
		return
	}
	r.event("end", "", "the job ends at clock %d", clock)
}

// touchServer marks a server and its shards.
func (r *recorder) touchServer(server int) {
	r.queue.TouchServer(server, r.job.replicas.Shards(server))
}

// changeShard replaces a shard's view. Its followers must not be changed in place, because older views share them.
func (r *recorder) changeShard(shard int, next protocol.ShardView) {
	r.deltas.Shard(shard, &r.record.View.Shards[shard], &next)
	r.record.View.Shards[shard], r.dirty = next, true
	r.updateReplicas(shard)
	r.job.unready.Add(shard) // until it is known to be ready
	r.queue.Changed(shard, &next)
}

// changeSlot replaces a slot's view.
func (r *recorder) changeSlot(slot int, next protocol.SlotView) {
	at := &r.record.View.Slots[slot]
	if *at == next {
		return
	}
	r.deltas.Slot(slot, at, &next, r.record.View.Roster > 0)
	clock := r.job.slotClock(slot)
	*at, r.dirty = next, true
	r.job.clocks.Move(clock, r.job.slotClock(slot))
	r.queue.ChangedSlot(slot, at)
}

func (r *recorder) changeTables(tables []perdure.TableSpec) {
	set(r, &r.record.View.Tables, tables)
	r.deltas.Tables()
}

// setClock records the clock of a slot's process.
func (r *recorder) setClock(slot int, clock perdure.Clock) {
	if r.job.slots[slot].lastClock == clock {
		return
	}
	before := r.job.slotClock(slot)
	r.job.slots[slot].lastClock = clock
	r.job.clocks.Move(before, r.job.slotClock(slot))
	r.queue.MarkEarly(func(early int) bool { return clock+1 >= r.record.View.Slots[early].From })
}

// addServer prepares the observations of one more server index.
func (r *recorder) addServer(zone string) {
	server := len(r.job.servers)
	r.queue.Unchecked.Add(server)
	r.queue.Leaving.Add(server)
	r.job.servers = append(r.job.servers, observed{})
	r.job.replicas.Add(zone)
}

// addSlot prepares the observations of one more slot, which does not participate yet.
func (r *recorder) addSlot() {
	v := &r.record.View
	r.job.slots = append(r.job.slots, observed{})
	v.Slots = append(v.Slots, protocol.SlotView{})
	r.deltas.Add()
	r.job.clocks.Move(-1, r.job.slotClock(len(r.job.slots)-1))
}

// checkServers determines which servers may be given replicas and which are awaited, for all servers with new
// observations. If that changes, it marks the shards that wait for a server.
func (r *recorder) checkServers() {
	news := false
	for _, i := range r.queue.Unchecked.All() {
		r.job.visits.servers++
		p, is := &r.record.Servers[i], r.job.eligible(i)
		away := !p.Left && !p.Draining && !is
		news = news || is != r.job.replicas.IsEligible(i) || away != r.queue.Awaited.Has(i)
		r.job.replicas.SetEligible(i, is)
		r.queue.Awaited.Set(i, away)
	}
	r.queue.Unchecked.Clear()
	if news {
		for _, s := range r.queue.AwaitingServer.All() {
			r.queue.TouchShard(s)
		}
		r.queue.ShardsDirty = true
	}
}

// refresh determines which of the shards that are due serve.
func (r *recorder) refresh() {
	for _, s := range r.queue.Due.All() {
		r.job.unready.Set(s, !r.job.ready(s))
	}
}
