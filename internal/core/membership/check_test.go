package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// check verifies a newly saved view against the one before it and against the true state.
func (c *cluster) check(before, after *JobRecord) {
	b, a := &before.View, &after.View
	if a.Revision != b.Revision+1 {
		c.fail("revision %d after %d", a.Revision, b.Revision)
	}
	if a.Generation < b.Generation || a.Durable < b.Durable || a.Cut < b.Cut || b.Done && !a.Done {
		c.fail("generation %d, cut %d, durable %d, done %v after %d, %d, %d, %v",
			a.Generation, a.Cut, a.Durable, a.Done, b.Generation, b.Cut, b.Durable, b.Done)
	}
	if a.Generation > 1 && traitsOf(c.job.Recovery).Partial && !c.atCuts {
		c.fail("all roll back under %s", c.job.Recovery)
	}
	if a.Cut > a.Durable {
		c.fail("cut %d is not durable; only %d is", a.Cut, a.Durable)
	}
	if a.Generation == b.Generation && a.Cut != b.Cut {
		c.fail("cut %d and cut %d in generation %d", b.Cut, a.Cut, a.Generation)
	}
	// Lost updates are no longer lost if the slot's next process redoes the clock.
	if after.UpdatesLost < 0 || after.ClocksRedone < before.ClocksRedone {
		c.fail("%d updates lost, %d clocks redone after %d and %d", after.UpdatesLost, after.ClocksRedone,
			before.UpdatesLost, before.ClocksRedone)
	}
	if after.UpdatesLost > 0 && !recovery.Of(c.job.Recovery).Traits().MayLoseUpdates() {
		c.fail("%d updates lost under %s", after.UpdatesLost, c.job.Recovery)
	}
	if b.Shards[0].Server < 0 && a.Shards[0].Server >= 0 || a.Generation > b.Generation {
		c.founded = a.Revision
	}
	for i := range a.Shards {
		c.checkShard(i, &b.Shards[i], &a.Shards[i])
		c.checkChain(i, before, after)
	}
	if after.Failed != "" && before.Failed == "" {
		c.checkFailure(before)
	}
	c.checkRoster(before, after)
	c.checkNamed(before, after)
	for i := range b.Slots {
		if before.Slots[i].Incarnation > after.Slots[i].Incarnation || b.Slots[i].Incarnation > a.Slots[i].Incarnation {
			c.fail("slot %d: incarnation %d after %d", i, a.Slots[i].Incarnation, b.Slots[i].Incarnation)
		}
		c.checkSlot(i, before, after)
	}
	for i := range before.Servers {
		if before.Servers[i].Incarnation > after.Servers[i].Incarnation {
			c.fail("server %d: incarnation %d after %d", i, after.Servers[i].Incarnation, before.Servers[i].Incarnation)
		}
	}
}

// checkShard checks that a shard has one holder in an epoch, and that its base is decided once.
func (c *cluster) checkShard(i int, b, a *protocol.ShardView) {
	if a.Epoch < b.Epoch {
		c.fail("shard %d: epoch %d after %d", i, a.Epoch, b.Epoch)
	}
	if a.Server < 0 {
		return
	}
	key, mine := shardEpoch{i, a.Epoch}, holder{a.Server, a.Incarnation}
	if other, taken := c.epochs[key]; taken && other != mine {
		c.fail("shard %d is held by %v and by %v in epoch %d", i, other, mine, a.Epoch)
	}
	c.epochs[key] = mine
	if a.Epoch == b.Epoch && b.Base != nil && !slices.Equal(a.Base, b.Base) {
		c.fail("shard %d: base %v after %v in epoch %d", i, a.Base, b.Base, a.Epoch)
	}
}

// checkChain checks that a chain has no server twice; that its epoch rises exactly when its members change or rows are
// lost; that a new member had copied the shard before, unless no process held it; and that no member leaves a chain in
// which no other member has the rows.
func (c *cluster) checkChain(i int, before, after *JobRecord) {
	b, a := &before.View.Shards[i], &after.View.Shards[i]
	was, is := b.Members(), a.Members()
	all := slices.Clone(is)
	if a.Joining != nil {
		all = append(all, *a.Joining)
	}
	servers := slices.Sorted(slices.Values(serversOf(all)))
	if len(slices.Compact(servers)) != len(all) {
		c.fail("shard %d has a server twice: %+v", i, *a)
	}
	for _, h := range all {
		if h.Since > after.View.Revision {
			c.fail("shard %d has a holder since revision %d in revision %d", i, h.Since, after.View.Revision)
		}
	}
	if same := slices.Equal(was, is); same != (a.Epoch == b.Epoch) {
		c.fail("shard %d: epoch %d after %d, members %+v after %+v", i, a.Epoch, b.Epoch, is, was)
	}
	c.checkZones(i, after, b.Joining)
	if len(was) == 0 {
		return
	}
	stayed := false
	for _, h := range is {
		if slices.Contains(was, h) {
			stayed = true
			continue
		}
		if b.Joining == nil || *b.Joining != h {
			if h.Since != after.View.Revision || len(is) > 1 && after.View.Generation == before.View.Generation {
				c.fail("shard %d: %+v becomes a member without having joined", i, h)
			}
			continue
		}
		stayed = true
		if sh := c.servers[h.Server].shards[i]; c.lives(h) && sh != nil && sh.generation == before.View.Generation &&
			!sh.joined {
			c.fail("shard %d: %+v becomes a member before it has the rows", i, h)
		}
	}
	if !stayed && recovery.Of(c.job.Recovery).Traits().RetainsUpdates() {
		c.checkRestored(i, before, after)
	}
	if !stayed && !c.excused[i] {
		for _, h := range was {
			if c.lives(h) && !before.Servers[h.Server].AnyIndex { // its supervisor is unknown, so silence must do
				c.fail("shard %d is taken from %+v, which lives", i, h)
			}
		}
	}
}

// checkZones checks that a shard's joiner is in a new zone if any eligible server is.
func (c *cluster) checkZones(i int, f *JobRecord, before *protocol.Holder) {
	sv := &f.View.Shards[i]
	if sv.Joining == nil || before != nil && *before == *sv.Joining {
		return
	}
	if sv.Replicas() >= recovery.Of(c.job.Recovery).Traits().Copies || c.core.record.Draining(sv) >= 0 {
		return // a member leaves in exchange
	}
	used := map[string]bool{}
	for _, h := range sv.Members() {
		used[f.Servers[h.Server].Zone] = true
	}
	if !used[f.Servers[sv.Joining.Server].Zone] {
		return
	}
	for x, p := range f.Servers {
		if !used[p.Zone] && c.core.job.eligible(x) {
			c.fail("shard %d: %+v joins in a zone that the chain is in, and server %d is in another", i, *sv.Joining, x)
		}
	}
}

// lives reports whether a holder's process runs, whatever the core knows of it.
func (c *cluster) lives(h protocol.Holder) bool {
	s := c.servers[h.Server]
	return s.up && s.incarnation == h.Incarnation
}

// checkFailure checks that a job fails only if no live process has all rows of some shard.
func (c *cluster) checkFailure(f *JobRecord) {
	for i := range f.View.Shards {
		if c.excused[i] {
			return
		}
		if !slices.ContainsFunc(f.View.Shards[i].Members(), c.lives) {
			return
		}
	}
	c.fail("the job fails although every shard has a server: %s", c.core.Record().Failed)
}

// checkSlot checks that a slot's process starts at a clock which no shard has passed, and only after all older
// processes are fenced everywhere, and that no decision is revoked.
func (c *cluster) checkSlot(i int, before, after *JobRecord) {
	bv, av := &before.View, &after.View
	partial, started := traitsOf(c.job.Recovery).Partial, before.Slots[i].LatestStart // under a partial strategy
	b, a, slot := &bv.Slots[i], &av.Slots[i], perdure.Slot(i)
	if a.Settled && !a.Decided {
		c.fail("slot %d is settled and not decided", i)
	}
	if a.Incarnation == 0 || av.Generation != bv.Generation {
		return
	}
	same := a.Incarnation == b.Incarnation
	if same && (b.Decided && (!a.Decided || a.Start != b.Start) || b.Settled && !a.Settled) {
		c.fail("slot %d, incarnation %d: %+v after %+v", i, a.Incarnation, *a, *b)
	}
	anew := a.From != b.From || b.Left && !a.Left // it may get the same first clock again
	if now := after.Slots[i].LatestStart; now < started && !anew {
		c.fail("slot %d: a process starts at clock %d after one that started at %d", i, now, started)
	}
	decided, settled := a.Decided && !(same && b.Decided), a.Settled && !(same && b.Settled)
	if !decided && !settled {
		return
	}
	most := perdure.Clock(-1) // under two-step clocks
	for j, sv := range av.Shards {
		s := c.servers[sv.Server]
		sh := s.shards[j]
		if s.incarnation != sv.Incarnation || sh == nil || sh.in == nil {
			continue // it died after its report
		}
		if sh.epoch != sv.Epoch || sh.generation != av.Generation {
			c.fail("slot %d was decided although shard %d is not restored", i, j)
			continue
		}
		if i >= len(sh.in.Applied()) {
			c.fail("slot %d was decided although shard %d does not know it", i, j)
			continue
		}
		if sh.in.Incarnation(slot) < a.Incarnation {
			c.fail("slot %d: incarnation %d started although shard %d fences only those < %d", i, a.Incarnation, j,
				sh.in.Incarnation(slot))
		}
		if settled && !sh.in.Decided(slot, a.Incarnation) {
			c.fail("slot %d was settled although shard %d has not carried the decision out", i, j)
		}
		n := sh.in.Counts(slot)
		most = max(most, n.Ticked)
		// Missing updates count as lost, also if the restored shard has moved since.
		unknown := slices.Contains(before.Slots[i].UnknownShards, perdure.ShardID(j))
		excused := partial && (sv.Restored || unknown || a.Start == started)
		if decided && !c.job.Consistency.TwoStep() && a.Start > n.Applied && !excused {
			c.fail("slot %d starts at clock %d; shard %d has applied %d", i, a.Start, j, n.Applied)
		}
		if decided && c.job.Consistency.TwoStep() && a.Start < n.Ticked {
			c.fail("slot %d starts at clock %d; shard %d has ticked %d", i, a.Start, j, n.Ticked)
		}
	}
	if decided && c.job.Consistency.TwoStep() && most >= 0 && a.Start > max(most, started) && c.allServe(av) {
		c.fail("slot %d starts at clock %d; no shard has ticked more than %d", i, a.Start, most)
	}
}

// checkRoster checks that a change of members takes effect at a clock that no slot has started, or concerns slots that
// have finished theirs; that it is numbered; and that no slot ends a clock before all shards have received it.
func (c *cluster) checkRoster(before, after *JobRecord) {
	b, a := &before.View, &after.View
	if len(a.Slots) < len(b.Slots) || a.Roster < b.Roster || after.KnownRoster < before.KnownRoster ||
		after.KnownRoster > a.Roster {
		c.fail("roster %d of %d slots, %d told, after %d of %d, %d told", a.Roster, len(a.Slots), after.KnownRoster,
			b.Roster, len(b.Slots), before.KnownRoster)
		return
	}
	if a.Pause != (after.EndRequested || after.Change != nil && !a.Tentative || after.KnownRoster < a.Roster ||
		after.CutRequested || after.KnownCut < a.Named) {
		c.fail("pause %v with roster %d, %d told, change %v, ending %v", a.Pause, a.Roster, after.KnownRoster,
			after.Change, after.EndRequested)
	}
	if after.KnownRoster > before.KnownRoster {
		for i, sv := range a.Shards {
			if sh := c.servers[sv.Server].shards[i]; sh != nil && sh.in != nil && sh.epoch == sv.Epoch &&
				sh.generation == a.Generation && sh.in.MembershipVersion() < after.KnownRoster {
				c.fail("roster %d counts as received although shard %d has %d", after.KnownRoster, i,
					sh.in.MembershipVersion())
			}
		}
	}
	if slices.Equal(b.Intervals(), a.Intervals()[:len(b.Slots)]) && len(a.Slots) == len(b.Slots) {
		return
	}
	suspended := 0
	for i := range b.Slots {
		if after.Slots[i].Suspended && !before.Slots[i].Suspended {
			suspended++
			if s := a.Slots[i]; s.Clamp(s.Start) != s.Until || !s.Left || b.Slots[i].Left ||
				after.Slots[i].Process != "" || c.job.Consistency.TwoStep() {
				c.fail("slot %d is suspended: %+v after %+v", i, s, b.Slots[i])
			}
		}
	}
	shorter := a.Generation > b.Generation &&
		!slices.ContainsFunc(a.Slots,
			func(s protocol.SlotView) bool { return s.Until > 0 && !s.Left && s.From == s.Until })
	if (suspended > 0 || shorter) && a.Pause {
		return // without an earlier pause
	}
	if a.Roster != b.Roster+1 || !b.Pause {
		c.fail("spans %v after %v, roster %d after %d, paused %v", a.Intervals(), b.Intervals(), a.Roster, b.Roster,
			b.Pause)
	}
	for i := range a.Slots {
		now, was := a.Slots[i].Interval, protocol.Interval{Until: -1}
		if i < len(b.Slots) {
			was = b.Slots[i].Interval
		}
		if now == was {
			continue
		}
		at := now.Until
		if now.From != was.From || was.Until < 0 || now.Until == 0 { // another membership interval
			if at = now.From; now.Until != 0 || i < len(b.Slots) && !b.Slots[i].Left {
				c.fail("slot %d has the clocks %+v after %+v", i, now, was)
			}
		}
		own := now.From == was.From && c.job.Unbounded(a.Tables) // its end concerns no other slot
		for j, w := range c.workers {
			if w.up && w.granted && !b.Slots[j].Left && (j == i || !own) && a.Generation == w.view.Generation &&
				w.incarnation == a.Slots[j].Incarnation && at <= w.clock {
				c.fail("slot %d has the clocks %+v from now on, but slot %d works on clock %d", i, now, j, w.clock)
			}
		}
	}
}

// checkNamed checks that a cut is named at a clock that no slot has passed, while all pause, and that the slots resume
// once all shards know it.
func (c *cluster) checkNamed(before, after *JobRecord) {
	b, a := &before.View, &after.View
	if a.Generation == b.Generation && a.Named != b.Named {
		if a.Named < b.Named || a.Named <= a.Durable || !b.Pause {
			c.fail("cut %d is named after %d, %d durable, paused %v", a.Named, b.Named, a.Durable, b.Pause)
		}
		for i, w := range c.workers {
			if w.up && w.granted && w.view.Generation == a.Generation && w.incarnation == a.Slots[i].Incarnation &&
				w.clock > max(a.Named, a.Slots[i].From) && a.Named != a.End { // later clocks do not count
				c.fail("cut %d is named, and slot %d works on clock %d", a.Named, i, w.clock)
			}
		}
		for i, sv := range a.Shards {
			sh := c.servers[sv.Server].shards[i]
			if sh == nil || sh.in == nil || sh.epoch != sv.Epoch || sh.generation != a.Generation {
				continue
			}
			for slot, n := range sh.in.Applied() {
				if sl := &a.Slots[slot]; !sl.Left && n > a.Named && n > sl.From {
					c.fail("cut %d is named, and shard %d has %d clocks of slot %d", a.Named, i, n, slot)
				}
			}
		}
	}
	if after.KnownCut <= before.KnownCut {
		return
	}
	for i, sv := range a.Shards {
		if sh := c.servers[sv.Server].shards[i]; sh != nil && sh.in != nil && sh.epoch == sv.Epoch &&
			sh.generation == a.Generation && sh.named < after.KnownCut {
			c.fail("cut %d counts as received although shard %d has %d", after.KnownCut, i, sh.named)
		}
	}
}

// checkRestored checks that a lost shard can be resent everything: for each slot, its current process keeps all updates
// that no checkpoint contains.
func (c *cluster) checkRestored(i int, before, after *JobRecord) {
	a := &after.View.Shards[i]
	if after.View.Generation > before.View.Generation {
		if a.Restored {
			c.fail("shard %d is restored although all roll back", i)
		}
		return
	}
	if !a.Restored {
		c.fail("shard %d starts again without its rows", i)
	}
	for slot, w := range c.workers {
		sl := &after.View.Slots[slot]
		needed := max(after.View.Durable, sl.From, after.Slots[slot].LatestStart)
		if w.granted && w.incarnation == sl.Incarnation && w.first > needed {
			c.fail("shard %d is restored from clock %d, and slot %d keeps no updates before clock %d: %+v", i,
				after.View.Durable, slot, w.first, *sl)
		}
	}
}

// allServe reports whether every shard of a view is served.
func (c *cluster) allServe(v *protocol.View) bool {
	for j, sv := range v.Shards {
		s := c.servers[sv.Server]
		if sh := s.shards[j]; s.incarnation != sv.Incarnation || sh == nil || sh.in == nil {
			return false
		}
	}
	return true
}

// checkPublish checks a cut to be published against the job record: every shard has a segment of this generation, and
// no other cut is being published.
func (c *cluster) checkPublish(p *Publish) {
	v := &c.saved.View
	if len(p.Segments) != c.job.Shards || len(p.Epochs) != c.job.Shards || p.Cut <= v.Durable ||
		p.Generation != v.Generation {
		c.fail("publish %+v in generation %d with cut %d durable", *p, v.Generation, v.Durable)
		return
	}
	for i, g := range p.Segments {
		if g.Cut != p.Cut || p.Epochs[i] != v.Shards[i].Epoch {
			c.fail("publish cut %d with segment %+v of shard %d, epoch %d", p.Cut, g, i, p.Epochs[i])
		}
	}
	for _, other := range c.underway {
		if other.Generation == p.Generation {
			c.fail("cut %d and cut %d of generation %d are published at the same time", other.Cut, p.Cut, p.Generation)
		}
	}
}

// checkComplete checks that a complete job is: every update that counts is applied, on shards of the current view, and
// saved where checkpoints are kept.
func (c *cluster) checkComplete() {
	v := &c.saved.View
	if !c.core.Complete() || v.Done {
		return
	}
	if v.End <= 0 || recovery.Of(c.job.Recovery).Traits().SavesCuts() && v.Durable < v.End {
		c.fail("complete with end %d and %d durable", v.End, v.Durable)
	}
	for i, sv := range v.Shards {
		s := c.servers[sv.Server]
		sh := s.shards[i]
		if s.incarnation != sv.Incarnation || sh == nil || sh.in == nil {
			continue // it died after its report
		}
		if sh.epoch != sv.Epoch || sh.generation != v.Generation || sh.in.MinClock() < v.End {
			c.fail("complete at clock %d although shard %d is at epoch %d of generation %d, clock %d", v.End, i,
				sh.epoch, sh.generation, sh.in.MinClock())
		}
	}
}
