package membership

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// checkTouched compares the core, which checked only what was touched, with one that has the same knowledge and checks
// everything: the latter must find nothing else to do.
func (c *cluster) checkTouched() {
	k := c.core
	if k.record.View.Pause {
		k.reconcile() // a pause without any worker ends with the first event after the view that contains it
	}
	whole := New(k.record.Clone(), k.job.detector.Patience(), k.job.mutations)
	whole.slotMembership.grace = k.slotMembership.grace
	j := whole.job
	j.servers, j.slots = slices.Clone(k.job.servers), slices.Clone(k.job.slots)
	j.clocks = clockCounts{}
	for i := range j.slots {
		j.clocks.Move(-1, j.slotClock(i))
		j.slots[i].fenced, j.slots[i].highest = 0, 0
	}
	j.detector, j.tick, j.pausedAt, whole.cuts.durableAt = k.job.detector, k.job.tick, k.job.pausedAt, k.cuts.durableAt
	if k.rec.deltas.Left() {
		whole.rec.deltas.Slot(0, &protocol.SlotView{}, &protocol.SlotView{Left: true}, false)
	}
	j.publishing, j.complete, whole.reports.pending = k.job.publishing, k.job.complete, k.reports.pending
	j.dropped, whole.rec.dirty = maps.Clone(k.job.dropped), k.rec.dirty
	for kind, s := range k.job.recovering {
		for _, i := range s.All() {
			whole.job.recovering[kind].Add(i)
		}
	}
	for i := range j.servers {
		whole.queue.Unchecked.Add(i)
	}
	whole.reconcile()
	if len(whole.rec.pending.Events)+len(whole.rec.pending.Kills) > 0 || whole.rec.pending.Publish != nil {
		c.fail("checking everything additionally yields %+v", whole.rec.pending)
	}
	if !reflect.DeepEqual(*whole.record, *k.record) {
		c.fail("checking everything yields\n%+v, want\n%+v", whole.record, k.record)
	}
	if j.complete != k.job.complete {
		c.fail("complete %v, checking everything %v", k.job.complete, j.complete)
	}
	if got, want := k.Serving(), whole.Serving(); got != want {
		c.fail("serving %v, checking everything %v", got, want)
	}
}

// checkDocument checks that a Document that encoded an earlier job record encodes this one correctly.
func (c *cluster) checkDocument(f *JobRecord) {
	got, err := c.document.Encode(f)
	want, must := json.Marshal(f)
	if err != nil || must != nil || !bytes.Equal(got, want) {
		c.fail("the document is (%v, %v)\n%s, want\n%s", err, must, got, want)
	}
}

// checkKept compares the indexes that the core maintains, so that it need not check all servers and shards, with the
// actual state.
func (c *cluster) checkKept() {
	k := c.core
	k.rec.checkServers()
	for i := range k.record.View.Shards {
		if open := k.queue.Open.Has(i); !open && !k.job.ready(i) {
			c.fail("shard %d is not ready, but not marked", i)
		}
		if !k.queue.Due.Has(i) && k.job.unready.Has(i) == k.job.ready(i) {
			c.fail("shard %d: ready %v, unready %v", i, k.job.ready(i), k.job.unready.Has(i))
		}
	}
	for i := range k.job.servers {
		p := &k.record.Servers[i]
		away := k.queue.Awaited.Has(i)
		leaving := k.queue.Leaving.Has(i)
		if k.job.replicas.IsEligible(i) != k.job.eligible(i) ||
			away != (!p.Left && !p.Draining && !k.job.eligible(i)) || p.Draining && !p.Left && !leaving {
			c.fail("server %d: open %v, away %v, leaving %v", i, k.job.replicas.IsEligible(i), away, leaving)
		}
	}
	if k.record.Placed() && k.job.replicas.IsBalanced() {
		if m := k.job.replicas.NextMoves(1); m != nil {
			c.fail("the servers are reported as level, but %+v would help", m)
		}
	}
	least := perdure.Clock(-1)
	for i := range k.job.slots {
		sl := &k.record.View.Slots[i]
		clock := max(k.job.slots[i].lastClock, sl.Start, sl.From)
		if (sl.Until == 0 || !sl.Left && clock < sl.Until) && (least < 0 || clock < least) {
			least = clock
		}
	}
	if want := max(least, k.record.View.Cut); k.MinClock() != want {
		c.fail("MinClock %d, want %d", k.MinClock(), want)
	}
}
