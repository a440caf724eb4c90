package wire

import (
	"maps"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

func (c *coder) resources(r *protocol.Resources) {
	number(c, &r.Goroutines)
	number(c, &r.HeapBytes)
}

func (c *coder) serverDelta(d *protocol.ServerDelta) {
	held := d.Hold != protocol.LockHold{}
	count(c, &d.Number)
	c.flags(&d.Draining, &held)
	if d.Draining {
		number(c, &d.NoticeMs)
	}
	if held {
		number(c, &d.Hold.Shard) // -1 is the server itself
		number(c, &d.Hold.Ms)
		number(c, &d.Hold.LongestMs)
	}
	count(c, &d.Revision)
	c.text(&d.WaitReason)
	list(c, &d.Unreachable, (*coder).text)
	c.resources(&d.Resources)
	list(c, &d.Shards, (*coder).shardDelta)
	list(c, &d.Gone, (*coder).shard)
}

func (c *coder) shardDelta(d *protocol.ShardDelta) {
	saved, unread, kept := d.SaveBytes != 0 || d.SaveSeconds != 0, d.Unread != nil, len(d.SavedRows) > 0
	c.flags(&d.Ready, &d.Joined, &d.Yielded, &d.Cuts.Missed, &d.ShardStatus.ResendComplete, &saved, &unread, &kept)
	c.shard(&d.Shard)
	count(c, &d.Generation)
	count(c, &d.Epoch)
	count(c, &d.Since)
	number(c, &d.MinClock)
	count(c, &d.Seq)
	count(c, &d.Roster)
	number(c, &d.Cuts.Named)
	count(c, &d.Cuts.Hold)
	numbers(c, &d.Cuts.Ticked)
	number(c, &d.Bytes)
	c.text(&d.Problem)
	if saved {
		c.float(&d.SaveSeconds)
		number(c, &d.SaveBytes)
	}
	if unread {
		if c.reading {
			d.Unread = new(int64)
		}
		number(c, d.Unread)
	}
	numbers(c, &d.Applied)
	list(c, &d.Fences, (*coder).fence)
	list(c, &d.Unfenced, (*coder).slot)
	list(c, &d.Segments, (*coder).segment)
	list(c, &d.States, (*coder).text)
	list(c, &d.PendingStates, (*coder).text)
	if kept {
		list(c, &d.SavedRows, func(c *coder, k *protocol.SavedRows) {
			number(c, &k.Cut)
			count(c, &k.Seq)
			number(c, &k.Rows)
		})
	}
}

func (c *coder) fence(f *protocol.Fence) {
	c.flags(&f.Carried)
	c.slot(&f.Slot)
	count(c, &f.Incarnation)
	number(c, &f.Counts.Staged)
	number(c, &f.Counts.Ticked)
	number(c, &f.Counts.Applied)
}

func (c *coder) segment(s *protocol.Segment) {
	number(c, &s.Cut)
	c.text(&s.File)
	number(c, &s.Bytes)
	count(c, &s.CRC)
	count(c, &s.Seq)
	list(c, &s.Base, (*coder).file)
	list(c, &s.States, (*coder).file)
}

func (c *coder) file(f *protocol.SegmentFile) {
	c.text(&f.File)
	number(c, &f.Bytes)
	count(c, &f.CRC)
}

func (c *coder) workerDelta(d *protocol.WorkerDelta) {
	saves, shares := d.SaveSeconds > 0, d.Mark > 0 || d.Passed || d.SavesOwn
	count(c, &d.Number)
	c.flags(&d.Finished, &d.NeedsCut, &d.HasAcked, &d.HasOutage, &d.HasCounters, &saves, &shares,
		&d.NeedsCopy)
	count(c, &d.Revision)
	count(c, &d.Generation)
	number(c, &d.Clock)
	number(c, &d.KeptBytes)
	c.text(&d.WaitReason)
	list(c, &d.Unreachable, (*coder).text)
	c.resources(&d.Resources)
	if saves {
		c.float(&d.SaveSeconds)
	}
	if shares {
		number(c, &d.Mark)
		c.flags(&d.Passed, &d.SavesOwn)
	}
	if d.HasAcked {
		list(c, &d.Acked, func(c *coder, a *protocol.AckedClock) {
			c.shard(&a.Shard)
			count(c, &a.Epoch)
			number(c, &a.Applied)
		})
	}
	if d.HasOutage {
		optional(c, &d.Outage, func(c *coder, o *perdure.WorkerOutage) {
			list(c, &o.Shards, (*coder).shard)
			c.float(&o.Seconds)
			number(c, &o.Bytes)
		})
	}
	if d.HasCounters {
		c.counters(&d.Counters)
	}
}

func (c *coder) counters(w *perdure.WorkerCounters) {
	for _, n := range []*int64{
		&w.UpdatesSent, &w.BytesPushed, &w.BytesPulled, &w.Samples, &w.BeyondBound, &w.OutageClocks, &w.StaleRows,
		&w.QueuedBytes, &w.OutageNs, &w.StatesLost, &w.StatesOlder, &w.StalenessNs, &w.CommNs, &w.ComputeNs,
	} {
		number(c, n)
	}
	for _, h := range []*map[int64]int64{&w.ClockDifferential, &w.ReadLag, &w.MissingUpdates} {
		c.histogram(h)
	}
}

// histogram codes a map from values to counts, in order of the values.
func (c *coder) histogram(h *map[int64]int64) {
	type bin struct{ of, n int64 }
	var bins []bin
	for _, of := range slices.Sorted(maps.Keys(*h)) {
		bins = append(bins, bin{of, (*h)[of]})
	}
	list(c, &bins, func(c *coder, b *bin) {
		number(c, &b.of)
		number(c, &b.n)
	})
	if !c.reading || len(bins) == 0 {
		return
	}
	*h = make(map[int64]int64, len(bins))
	for _, b := range bins {
		(*h)[b.of] = b.n
	}
}
