package membership

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// fakeShard is a replica of a shard. Its state is a function of its log, which it receives from its predecessor. An
// entry is committed once the tail has it, and applied only then, except by the head of an eager chain. Logs are never
// truncated here.
type fakeShard struct {
	partial    bool // updates without a copy are only counted
	generation perdure.Generation
	epoch      perdure.Epoch
	since      uint64
	copied     bool            // it has the initial rows: created, or copied
	origin     []perdure.Clock // the counts with which the log starts
	originSeq  uint64          // number of updates in origin
	log        []entry
	committed  int
	in         *consistency.Sequencer // has processed the first fed entries; nil: not restored
	fed        int
	all        *consistency.Sequencer // of a head: has processed all entries
	began      int                    // number of entries when the epoch started
	heard      int                    // number of committed entries, as reported by this epoch's tail; -1: none
	joined     bool
	counts     uint64 // of a tail: the Since of a joining replica that has caught up
	seq        uint64
	named      perdure.Clock // the newest cut that was named
	// of a restored shard: the slots' progress when they first sent to it
	told   map[perdure.Slot]perdure.Clock
	mended bool // it has received everything up to that

	cut      perdure.Clock // the latest cut that it saved or started from
	segments []protocol.Segment
}

// mostSlots is the maximum number of slots of a job in these tests.
const mostSlots = 8

// entry is an entry of a shard's log.
type entry struct {
	kind        string // part, tick, fence, decide, end, base, roster, cut
	slot        perdure.Slot
	incarnation perdure.Incarnation
	clock       perdure.Clock
	ticked      bool
	epoch       perdure.Epoch                // of a base
	base        [mostSlots]perdure.Clock     // by slot
	slots       int                          // of a roster
	spans       [mostSlots]protocol.Interval // of a roster
}

// serves reports whether a replica knows what its rows contain.
func (sh *fakeShard) serves() bool { return sh != nil && sh.in != nil }

// begin creates a replica's initial rows, which contain seq updates.
func (sh *fakeShard) begin(mode perdure.ClockMode, origin []perdure.Clock, seq uint64) {
	sh.copied, sh.origin, sh.originSeq, sh.seq = true, slices.Clone(origin), seq, seq
	sh.in = sh.intake(mode, origin)
	sh.cut = sh.in.MinClock()
}

func (sh *fakeShard) intake(mode perdure.ClockMode, origin []perdure.Clock) *consistency.Sequencer {
	in := consistency.NewSequencer(mode, origin, mutation.Set{})
	if sh.partial {
		in.CountMissingAsLost()
	}
	return in
}

// feedEntry feeds one entry to an intake. For a base it reports that all entries must be fed again.
func feedEntry(in *consistency.Sequencer, e entry) (decision consistency.Outcome) {
	switch e.kind {
	case "part":
		return in.Offer(consistency.UpdatePart{
			Slot: e.slot, Clock: e.clock, Incarnation: e.incarnation, Of: 1,
			Ticked: e.ticked,
		})
	case "tick":
		return in.Tick(e.slot, e.incarnation, e.clock)
	case "fence":
		in.Fence(e.slot, e.incarnation)
	case "decide":
		in.Decide(e.slot, e.incarnation, e.clock)
	case "end":
		in.SetEnd(e.clock)
	case "roster":
		in.SetMembership(uint64(e.clock), e.spans[:e.slots])
	}
	return decision
}

// feed lets a replica apply the committed entries.
func (c *cluster) feed(shard int, sh *fakeShard, upTo int) {
	for sh.serves() && sh.fed < upTo {
		e := sh.log[sh.fed]
		sh.fed++
		if e.kind != "base" {
			if e.kind == "cut" {
				sh.named = e.clock
			}
			feedEntry(sh.in, e)
			c.pump(shard, sh)
			continue
		}
		raised := slices.Clone(sh.in.Applied())
		for i := range raised {
			raised[i] = max(raised[i], e.base[i])
		}
		sh.in = sh.intake(sh.in.Mode(), raised)
		for _, again := range sh.log[:sh.fed] {
			feedEntry(sh.in, again)
			c.pump(shard, sh)
		}
	}
}

// whole returns an intake that has processed all entries of a replica, committed or not.
func (sh *fakeShard) whole() *consistency.Sequencer {
	origin := slices.Clone(sh.origin)
	for _, e := range sh.log {
		if e.kind == "base" {
			for i := range origin {
				origin[i] = max(origin[i], e.base[i])
			}
		}
	}
	in := sh.intake(sh.in.Mode(), origin)
	for _, e := range sh.log {
		feedEntry(in, e)
		for u := in.Next(); u != nil; u = in.Next() {
		}
	}
	return in
}

// append adds an entry to a head's log, unless the log has it already.
func (sh *fakeShard) append(e entry) {
	if e.kind != "part" && e.kind != "tick" && slices.Contains(sh.log, e) {
		return
	}
	sh.log = append(sh.log, e)
	if e.kind == "base" {
		sh.all = sh.whole()
		return
	}
	feedEntry(sh.all, e)
	for u := sh.all.Next(); u != nil; u = sh.all.Next() {
	}
}

// replica returns the replica of a live, reachable holder in a view, or nil if the holder does not know that epoch.
func (c *cluster) replica(v *protocol.View, shard int, h protocol.Holder) *fakeShard {
	s := c.servers[h.Server]
	if !s.up || s.silent || s.incarnation != h.Incarnation {
		return nil
	}
	sh := s.shards[shard]
	if sh == nil || sh.generation != v.Generation || sh.epoch != v.Shards[shard].Epoch || sh.since != h.Since {
		return nil
	}
	return sh
}

// flow lets a shard's entries travel once down its chain, and the committed count once up, between members that know
// the epoch.
func (c *cluster) flow(v *protocol.View, shard int) {
	sv := &v.Shards[shard]
	n := sv.Replicas()
	chain := make([]*fakeShard, n)
	for i := range n {
		if chain[i] = c.replica(v, shard, sv.Replica(i)); chain[i] == nil || i == 0 || chain[i-1] == nil {
			continue
		}
		c.send1(shard, chain[i-1], chain[i], len(chain[i-1].log))
	}
	for i := n - 1; i >= 0; i-- {
		switch sh := chain[i]; {
		case sh == nil || !sh.serves():
		case i == n-1 && sv.Joining != nil && sh.counts == sv.Joining.Since:
			if j := c.replica(v, shard, *sv.Joining); j != nil {
				sh.heard = max(sh.heard, len(j.log))
			}
		case i == n-1:
			sh.heard = len(sh.log)
		case chain[i+1] != nil:
			sh.heard = min(chain[i+1].heard, len(sh.log))
		}
		if sh := chain[i]; sh != nil {
			sh.committed = max(sh.committed, sh.heard)
			upTo := sh.committed
			if i == 0 && recovery.Of(c.job.Recovery).Traits().EarlyAck {
				upTo = len(sh.log)
			}
			c.feed(shard, sh, upTo)
		}
	}
}

// copy brings the joining replica of a shard up to date with the tail's committed entries. From then on, the tail
// commits nothing without it.
func (c *cluster) copy(v *protocol.View, shard int) {
	sv := &v.Shards[shard]
	if sv.Joining == nil {
		return
	}
	tail, j := c.replica(v, shard, sv.Tail()), c.replica(v, shard, *sv.Joining)
	if tail.serves() && j != nil {
		upTo := tail.committed
		if tail.counts == j.since {
			upTo = len(tail.log)
		}
		c.send1(shard, tail, j, upTo)
		tail.counts = j.since
		j.committed, j.joined = len(j.log), true
		c.feed(shard, j, j.committed)
	}
}

// send1 sends a predecessor's entries to its successor.
func (c *cluster) send1(shard int, from, to *fakeShard, upTo int) {
	if !from.serves() {
		return
	}
	if !to.copied {
		to.begin(c.job.ClockMode(nil), from.origin, from.originSeq)
	}
	both := min(len(from.log), len(to.log))
	if len(to.log) > len(from.log) || !slices.Equal(from.log[:both], to.log[:both]) {
		c.fail("shard %d: logs of %d and %d entries differ", shard, len(from.log), len(to.log))
		return
	}
	if upTo > len(to.log) {
		to.log = append(slices.Clone(to.log), from.log[len(to.log):upTo]...)
	}
}

// lead appends the entries that the view requires to a head's log, if it serves.
func (c *cluster) lead(sh *fakeShard, v *protocol.View, sv *protocol.ShardView) {
	if sh.all == nil {
		sh.all = sh.whole()
	}
	if v.Roster > 0 {
		e := entry{kind: "roster", clock: perdure.Clock(v.Roster), slots: len(v.Slots)}
		copy(e.spans[:], v.Intervals())
		sh.append(e)
	}
	if v.Named > 0 {
		sh.append(entry{kind: "cut", clock: v.Named})
	}
	if sv.Lost && sv.Base != nil && recovery.Of(c.job.Recovery).Traits().EarlyAck {
		e := entry{kind: "base", epoch: sv.Epoch}
		copy(e.base[:], sv.Base)
		sh.append(e)
	}
	for i, sl := range v.Slots {
		slot := perdure.Slot(i)
		if sl.Incarnation > 0 {
			sh.append(entry{kind: "fence", slot: slot, incarnation: sl.Incarnation})
		}
		if sl.Decided {
			sh.append(entry{kind: "decide", slot: slot, incarnation: sl.Incarnation, clock: sl.Start})
		}
	}
	if v.End > 0 {
		sh.append(entry{kind: "end", clock: v.End})
	}
}

// ready reports whether a head serves: all members have everything that it had when the epoch started.
func (c *cluster) ready(sh *fakeShard, sv *protocol.ShardView) bool {
	if !sh.serves() || sv.Lost && sv.Base == nil {
		return false
	}
	return sh.heard >= sh.began
}

// followShard updates a server's replica of a shard to the server's view.
func (c *cluster) followShard(s *fakeServer, v *protocol.View, i int, h protocol.Holder, head, joins bool) {
	sv := &v.Shards[i]
	sh := s.shards[i]
	if sh == nil || sh.since != h.Since || sh.generation != v.Generation {
		sh = &fakeShard{
			generation: v.Generation, since: h.Since, partial: recovery.Of(c.job.Recovery).Traits().Partial,
		}
		s.shards[i] = sh
	}
	if !sh.copied && !joins {
		c.restore(sh, v, i)
	}
	if sh.epoch != sv.Epoch {
		sh.epoch, sh.began, sh.heard, sh.joined, sh.all, sh.counts = sv.Epoch, len(sh.log), -1, false, nil, 0
		sh.told, sh.mended = map[perdure.Slot]perdure.Clock{}, false
	}
	sh.segments = slices.DeleteFunc(sh.segments, func(g protocol.Segment) bool { return g.Cut <= v.Durable })
	if head && sh.serves() {
		c.lead(sh, v, sv)
	}
	if sh.serves() {
		c.pump(i, sh)
	}
}

// restore creates the rows of a lost shard, once their contents are known.
func (c *cluster) restore(sh *fakeShard, v *protocol.View, shard int) {
	sv, at := &v.Shards[shard], v.RestoredAt(perdure.ShardID(shard))
	origin := make([]perdure.Clock, c.job.Slots)
	if at > 0 {
		origin = make([]perdure.Clock, len(v.Slots)) // as long as in its segments
	}
	for i := range origin {
		origin[i] = v.Slots[i].Clamp(at)
	}
	if sv.Lost && !recovery.Of(c.job.Recovery).Traits().EarlyAck {
		if sv.Base == nil {
			return
		}
		origin = sv.Base
	}
	if sh.since > c.founded && recovery.Of(c.job.Recovery).Traits().Copies > 1 {
		c.fail("a later member of a chain has no rows: %+v", *sv)
	}
	seq := c.before
	if saved, is := c.saves[savedShard{v.Generation, shard, at}]; sv.Restored && is {
		seq = saved
	}
	sh.begin(c.job.ClockMode(nil), origin, seq)
	sh.cut = at
}

// complete reports whether a restored shard has everything that all slots had sent before.
func (sh *fakeShard) complete(v *protocol.View) bool {
	for i, sl := range v.Slots {
		sent, has := sh.told[perdure.Slot(i)]
		if sl.Settled && !sl.Left && sl.Incarnation > 0 &&
			(!has || i >= len(sh.in.Applied()) || sh.in.Counts(perdure.Slot(i)).Staged < sent) {
			return false
		}
	}
	return true
}

// status returns the status of a replica.
func (c *cluster) status(s *fakeServer, i int, sh *fakeShard) protocol.ShardStatus {
	sv := &s.view.Shards[i]
	head := sv.Server >= 0 && c.replica(&s.view, i, sv.Holder) == sh
	st := protocol.ShardStatus{
		Shard: perdure.ShardID(i), Generation: sh.generation, Epoch: sh.epoch, Since: sh.since,
		Ready: sh.serves() && (!head || c.ready(sh, sv)), Joined: sh.joined,
		Yielded: head && sv.Yields && sh.committed == len(sh.log), Segments: slices.Clone(sh.segments),
	}
	if len(c.bytes) > 0 && sh.serves() {
		st.Bytes = c.bytes[i%len(c.bytes)]
	}
	if head && sv.Lost && sv.Base == nil && sh.serves() {
		st.Applied, st.Seq = slices.Clone(sh.in.Applied()), sh.seq
	}
	if !st.Ready {
		return st
	}
	st.MinClock, st.Seq, st.Roster, st.Cuts.Named = sh.in.MinClock(), sh.seq, sh.in.MembershipVersion(), sh.named
	sh.mended = sh.mended || head && sv.Restored && sh.complete(&s.view)
	st.ResendComplete, st.SaveSeconds = sh.mended, c.saveSeconds
	for j, sl := range s.view.Slots[:min(len(s.view.Slots), len(sh.in.Applied()))] {
		if slot := perdure.Slot(j); !sl.Settled {
			st.Fences = append(st.Fences, protocol.Fence{
				Slot: slot, Incarnation: sh.in.Incarnation(slot), Counts: sh.in.Counts(slot),
				Carried: sl.Decided && sh.in.Decided(slot, sl.Incarnation),
			})
		}
	}
	return st
}

// nextCut returns a shard's next cut, which may be the job's end.
func (c *cluster) nextCut(sh *fakeShard, v *protocol.View) perdure.Clock {
	if !traitsOf(c.job.Recovery).SavesCuts() {
		return -1
	}
	s := recovery.ScheduleOf(&c.job)
	s.Named, s.End = sh.named, v.End
	return s.Next(recovery.Progress{MinClock: sh.in.MinClock(), Left: sh.cut})
}

// traitsOf returns the traits of a strategy.
func traitsOf(r perdure.Recovery) recovery.Traits { return recovery.Of(r).Traits() }

// pump applies pending updates and saves the shard at its cuts.
func (c *cluster) pump(shard int, sh *fakeShard) {
	v := &c.saved.View
	if !sh.in.AtCut() {
		sh.in.SetCut(c.nextCut(sh, v))
	}
	for {
		for u := sh.in.Next(); u != nil; u = sh.in.Next() {
			if !u.Lost {
				sh.seq++ // the rows contain it
			} else if recovery.Of(c.job.Recovery).Traits().RestartsWith == recovery.Everything && !sh.partial {
				c.fail("shard %d lost clock %d of slot %d", shard, u.Clock, u.Slot)
			}
		}
		if !sh.in.AtCut() {
			return
		}
		cut := sh.in.MinClock()
		sh.segments = append(sh.segments,
			protocol.Segment{Cut: cut, Seq: sh.seq, File: fmt.Sprintf("g%ds%dc%d", sh.generation, shard, cut)})
		sh.cut = cut
		sh.in.SetCut(c.nextCut(sh, v))
	}
}

// savedShard identifies a shard's part of a checkpoint.
type savedShard struct {
	generation perdure.Generation
	shard      int
	cut        perdure.Clock
}
