package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/placement"
)

// reconcile takes every step that the facts and the observations allow.
func (c *Core) reconcile() {
	if c.facts.View.Done || c.facts.Failed != "" {
		return
	}
	c.placeShards()
	c.chains()
	c.learnBases()
	c.decide()
	if c.facts.Failed != "" {
		return
	}
	c.settle()
	c.decidePause()
	c.leave()
	c.collectCut()
	c.healed()
	c.drained()
	c.checkComplete()
}

// placed reports whether the shards have been given out.
func (c *Core) placed() bool { return c.facts.View.Shards[0].Server >= 0 }

// placeShards gives the shards out when every server has come for the first time.
func (c *Core) placeShards() {
	v := &c.facts.View
	if c.placed() {
		return
	}
	var servers []int
	var zones []string
	for i := range c.facts.Servers {
		p := &c.facts.Servers[i]
		if p.Left {
			continue
		}
		if p.Process == "" {
			return
		}
		servers, zones = append(servers, i), append(zones, p.Zone)
	}
	if len(servers) == 0 {
		return
	}
	for s, chain := range placement.Chains(len(v.Shards), c.facts.Job.Recovery.Copies(), zones) {
		holders := make([]perdure.Holder, len(chain))
		for i, x := range chain {
			holders[i] = c.holder(servers[x])
		}
		next := perdure.ShardView{Holder: holders[0], Epoch: 1}
		if len(holders) > 1 {
			next.Followers = holders[1:]
		}
		c.change(s, next)
	}
	c.stirred = true
	c.event("placed", "", "%d shards on %d servers", len(v.Shards), len(servers))
}

// Drop declares shards lost, as if their servers had died, though they live.
func (c *Core) Drop(shards []perdure.ShardID) {
	for _, s := range shards {
		if int(s) < len(c.facts.View.Shards) {
			c.lost[s] = true
		}
	}
	for s := range c.lost {
		c.open[int(s)] = struct{}{}
	}
	if len(c.lost) > 0 {
		c.dropped, c.stirred = true, true
		c.event("detected", "shards", "%d shards are dropped", len(c.lost))
	}
	c.reconcile()
}

// replaceLost gives shards that nobody has the rows of to the processes that took
// their holders' places, or to the servers that are left where nobody takes them,
// once no server is missing. It reports whether it did.
func (c *Core) replaceLost(lost []int) bool {
	v := &c.facts.View
	if c.missing() {
		return false
	}
	for i := range c.layout {
		c.layout[i].Open = c.eligible(i)
	}
	for _, i := range lost {
		server := v.Shards[i].Server
		if p, o := &c.facts.Servers[server], &c.servers[server]; p.Left || o.gone {
			server = placement.Choose(c.layout, nil, -1)
		}
		if server < 0 && !c.facts.Job.NoReplace {
			return false // those that were told to end have gone; others come
		}
		if server < 0 {
			c.fail("no server is left of %d; start the job again, with more servers or without --no-replace", len(c.servers))
			return false
		}
		next := perdure.ShardView{Holder: c.holder(server), Epoch: v.Shards[i].Epoch + 1, Lost: c.facts.Job.Recovery.LosesRows()}
		c.change(i, next)
		delete(c.lost, perdure.ShardID(i))
	}
	if c.facts.Job.Recovery.LosesRows() {
		c.event("lost", "", "%d shards begin again from their initial rows", len(lost))
	} else {
		c.rollBack("%d shards were lost", len(lost))
	}
	return true
}

// rollBack takes the whole job back to the newest published cut. The higher
// generation and the cut are recorded together.
func (c *Core) rollBack(why string, args ...any) {
	v := &c.facts.View
	v.Generation++
	v.Cut = v.Durable
	c.facts.Ending = false // whoever reached the goal will reach it again
	c.cutSuspended()
	redone := int64(0)
	for i := range v.Slots {
		sl := &v.Slots[i]
		sl.Decided, sl.Start = true, sl.Clamp(v.Cut)
		redone += int64(max(0, c.slots[i].lastClock-sl.Start))
		c.slots[i].lastClock = sl.Start
	}
	c.facts.ClocksRedone += redone
	c.publishing = -1
	c.dirty = true
	c.event("rollback", "", why+"; all roll back to clock %d (generation %d)", append(args, v.Cut, v.Generation)...)
}

// shardStatus returns what the head of a shard's chain says of its present life,
// or nil if it has not said anything yet.
func (c *Core) shardStatus(shard int) *perdure.ShardStatus {
	sv := &c.facts.View.Shards[shard]
	if sv.Server < 0 {
		return nil
	}
	return c.statusOf(shard, &sv.Holder)
}

// statusOf returns what a holder says of its replica of a shard in the shard's
// present epoch, or nil if it has not said anything yet.
func (c *Core) statusOf(shard int, h *perdure.Holder) *perdure.ShardStatus {
	o := &c.servers[h.Server]
	if o.server == nil || o.gone || c.facts.Servers[h.Server].Incarnation != h.Incarnation {
		return nil
	}
	at, told := o.at[perdure.ShardID(shard)]
	if !told {
		return nil
	}
	st := &o.server.Shards[at]
	if st.Epoch != c.facts.View.Shards[shard].Epoch || st.Generation != c.facts.View.Generation {
		return nil
	}
	return st
}

// learnBases decides what a lost shard's applied vector starts with: what each
// slot was acknowledged, or, under a chain that acknowledges early, what its new
// head has, where that is more. The gap is lost, counted and never awaited.
func (c *Core) learnBases() {
	v := &c.facts.View
	if !c.facts.Job.Recovery.LosesRows() {
		return
	}
	for _, i := range sorted(c.open) {
		sv := &v.Shards[i]
		if !sv.Lost || sv.Base != nil {
			continue
		}
		base, known := c.base(i)
		if !known {
			continue
		}
		lost := c.facts.PastClocks // of all that the vector counts, what the rows lack
		for slot, n := range base {
			lost += int64(v.Slots[slot].Clocks(n))
		}
		if c.facts.Job.Recovery.Eager() {
			lost -= int64(c.shardStatus(i).Seq)
		}
		c.facts.UpdatesLost += lost - c.facts.ShardLost[i]
		c.facts.ShardLost[i] = lost
		next := *sv
		next.Base = base
		c.change(i, next)
	}
}

// base computes the applied vector that a lost shard starts with; not known
// while a live slot has not told what it was acknowledged.
func (c *Core) base(shard int) (base []perdure.Clock, known bool) {
	v := &c.facts.View
	epoch := v.Shards[shard].Epoch
	base = make([]perdure.Clock, len(v.Slots))
	var has []perdure.Clock // what the rows have, where any are left
	if c.facts.Job.Recovery.Eager() {
		st := c.shardStatus(shard)
		if st == nil || len(st.Applied) != len(base) {
			return nil, false
		}
		has = st.Applied
	}
	for i := range v.Slots {
		o := &c.slots[i]
		if v.Slots[i].Left {
			base[i] = v.Slots[i].Until
			continue
		}
		if !v.Slots[i].Settled || o.gone {
			if base[i], known = c.highestApplied(i); !known {
				return nil, false
			}
			continue
		}
		if o.worker == nil {
			return nil, false
		}
		at := slices.IndexFunc(o.worker.Acked, func(a perdure.Acked) bool {
			return int(a.Shard) == shard && a.Epoch == epoch
		})
		if at < 0 {
			return nil, false
		}
		// A process that has not heard of the shard yet knows nothing of its
		// predecessors' updates, but it will not send them.
		base[i] = max(o.worker.Acked[at].Applied, v.Slots[i].Start)
	}
	for i := range has {
		base[i] = max(base[i], has[i])
	}
	if c.twoStep() {
		// All slots' counts of a shard are equal under two-step clocks; some just
		// have not heard of the last one.
		most := slices.Max(base)
		for i := range base {
			base[i] = v.Slots[i].Clamp(most)
		}
	}
	return base, true
}

// highestApplied returns the most that any shard that kept its rows has applied
// of a dead slot, which it was or could have been acknowledged; not known while
// one of them has not told.
func (c *Core) highestApplied(slot int) (most perdure.Clock, known bool) {
	most = c.facts.View.Slots[slot].Start
	for i := range c.facts.View.Shards {
		if sv := &c.facts.View.Shards[i]; sv.Lost && sv.Base == nil {
			continue // it knows nothing itself
		}
		f := c.fence(i, slot)
		if f == nil {
			return 0, false
		}
		most = max(most, f.Counts.Applied)
	}
	return most, true
}

func (c *Core) twoStep() bool { return c.facts.Job.TwoStep(c.facts.View.Tables) }

// fence returns a shard's word on a slot's newest incarnation; nil unless it
// serves and has fenced the older ones.
func (c *Core) fence(shard, slot int) *perdure.Fence {
	st := c.shardStatus(shard)
	if st == nil || !st.Ready {
		return nil
	}
	at := slices.IndexFunc(st.Fences, func(f perdure.Fence) bool {
		return f.Slot == perdure.Slot(slot) && f.Incarnation == c.facts.View.Slots[slot].Incarnation
	})
	if at < 0 {
		return nil
	}
	return &st.Fences[at]
}

// fences returns every shard's fence of a slot; nil unless all have theirs.
func (c *Core) fences(slot int) []perdure.Fence {
	fences := make([]perdure.Fence, 0, len(c.facts.View.Shards))
	for i := range c.facts.View.Shards {
		f := c.fence(i, slot)
		if f == nil {
			return nil
		}
		fences = append(fences, *f)
	}
	return fences
}

// decide settles the fate of a dead slot's last clock. Under two-step clocks:
// was any tick seen, all get it; was staging lost where it is needed, all roll
// back, or, under a strategy that loses rows, that shard counts the update as
// lost; was no tick seen, the staging is dropped and the clock is done again.
// Otherwise the next process starts at the lowest count of all shards.
func (c *Core) decide() {
	v := &c.facts.View
	for slot := range v.Slots {
		if v.Slots[slot].Decided || v.Slots[slot].Incarnation == 0 {
			continue
		}
		fences := c.fences(slot)
		if fences == nil {
			continue
		}
		start, staged := fences[0].Counts.Applied, fences[0].Counts.Staged
		for _, f := range fences {
			if c.twoStep() {
				start = max(start, f.Counts.Ticked)
			} else {
				start = min(start, f.Counts.Applied)
			}
			staged = min(staged, f.Counts.Staged)
		}
		if c.twoStep() && staged < start && !c.facts.Job.Recovery.LosesRows() {
			if why := "slot %d died half way through clock %d and a shard lost its part"; c.keepsCuts() {
				c.rollBack(why, slot, start-1)
			} else {
				c.fail(why, slot, start-1)
			}
			return
		}
		v.Slots[slot].Decided, v.Slots[slot].Start = true, start
		c.dirty = true
		for i := range fences {
			if n := int64(start - fences[i].Counts.Staged); c.twoStep() && n > 0 {
				c.facts.UpdatesLost += n
				c.facts.ShardLost[i] += n
			}
		}
		if last := c.slots[slot].lastClock; v.Slots[slot].Incarnation > 1 {
			c.facts.ClocksRedone += int64(max(0, last+1-start))
		}
		c.slots[slot].lastClock = start
	}
}

// settle notes that every shard has carried a decision out. A slot that joins is not
// settled before the others have come to the clock before its first.
func (c *Core) settle() {
	v := &c.facts.View
	c.awaiting = false
	for slot := range v.Slots {
		sl := &v.Slots[slot]
		if !sl.Decided || sl.Settled {
			continue
		}
		if c.early(slot) {
			c.awaiting = true
			continue
		}
		fences := c.fences(slot)
		if fences == nil || slices.ContainsFunc(fences, func(f perdure.Fence) bool { return !f.Carried }) {
			continue
		}
		sl.Settled = true
		c.slots[slot].heardTick = c.tick // its process speaks from now on
		c.dirty = true
	}
}

// keepsCuts reports whether the job is saved as it goes, and can roll back.
func (c *Core) keepsCuts() bool { return c.facts.Job.Recovery.Kind == perdure.RecoverCheckpoint }

// collectCut finds the newest cut that every shard has written, and asks for
// its publication, one at a time.
func (c *Core) collectCut() {
	v := &c.facts.View
	if !c.keepsCuts() || c.publishing >= 0 {
		return
	}
	count := map[perdure.Clock]int{}
	best := perdure.Clock(-1)
	for i := range v.Shards {
		st := c.shardStatus(i)
		if st == nil {
			return
		}
		for _, g := range st.Segments {
			if count[g.Cut]++; count[g.Cut] == len(v.Shards) && g.Cut > v.Durable {
				best = max(best, g.Cut)
			}
		}
	}
	if best < 0 {
		return
	}
	p := &Publish{Generation: v.Generation, Cut: best}
	for i := range v.Shards {
		for _, g := range c.shardStatus(i).Segments {
			if g.Cut == best {
				p.Segments = append(p.Segments, g)
				break
			}
		}
		p.Epochs = append(p.Epochs, v.Shards[i].Epoch)
	}
	c.publishing = best
	c.out.Publish = p
}

// Published says that a checkpoint is durable, or could not be made so. It
// reports whether the checkpoint counts: one that a roll-back overtook does not,
// and nothing older may be deleted because of it.
func (c *Core) Published(generation perdure.Generation, cut perdure.Clock, ok bool) bool {
	v := &c.facts.View
	if generation != v.Generation {
		return false
	}
	c.publishing = -1
	counts := ok && cut > v.Durable
	if counts {
		v.Durable = cut
		c.dirty = true
		c.event("checkpoint", "", "checkpoint of clock %d is durable", cut)
	}
	c.reconcile()
	return counts
}

// healed reports the places that work again after a failure.
func (c *Core) healed() {
	v := &c.facts.View
	for i := range c.servers {
		if o := &c.servers[i]; o.healing && c.serving(i) {
			o.healing = false
			how := "serves again"
			if o.gone || o.suspect {
				how = "is not missed any more: the others serve all shards"
			}
			c.event("serving", target(Server, i), "server:%d %s", i, how)
		}
	}
	if c.dropped && len(c.lost) == 0 && c.Serving() {
		c.dropped = false
		c.event("serving", "shards", "all shards serve again")
	}
	for i := range c.slots {
		o := &c.slots[i]
		if o.healing && !o.gone && o.connected && c.facts.Slots[i].Process != "" && v.Slots[i].Settled {
			o.healing = false
			c.event("serving", target(Worker, i), "worker:%d works again from clock %d", i, v.Slots[i].Start)
		}
	}
}

// serving reports whether what a server held is served again, by whomever; after
// a roll-back, all shards must be.
func (c *Core) serving(server int) bool {
	o := &c.servers[server]
	if away := o.gone || o.suspect; away && (len(c.held[server]) > 0 || !c.placed()) {
		return false
	}
	alone := c.facts.Job.Recovery.Kind == perdure.RecoverNone && len(c.held[server]) > 0
	for i := range c.facts.View.Shards {
		if alone && c.facts.View.Shards[i].Server != server {
			continue
		}
		if !c.ready(i) {
			return false
		}
	}
	return true
}

// drained lets the servers go that were to end and hold nothing any more.
func (c *Core) drained() {
	for i := range c.facts.Servers {
		if p := &c.facts.Servers[i]; p.Draining && !p.Left && c.placed() && len(c.held[i]) == 0 {
			p.Left, c.dirty = true, true
			c.event("drained", target(Server, i), "others have taken over all that server:%d held; it may end", i)
		}
	}
}

// checkComplete looks whether all is done.
func (c *Core) checkComplete() {
	v := &c.facts.View
	was := c.complete
	c.complete = false
	if v.End <= 0 || c.keepsCuts() && v.Durable < v.End {
		return
	}
	for i := range c.slots {
		w := c.slots[i].worker
		if v.Slots[i].Left || v.Slots[i].From >= v.End {
			continue
		}
		if w == nil || !w.Finished || w.Generation != v.Generation || w.Clock < v.EndOf(perdure.Slot(i)) {
			return
		}
	}
	for i := range v.Shards {
		if st := c.shardStatus(i); st == nil || !st.Ready || st.MinClock < v.End {
			return
		}
	}
	c.complete = true
	if !was {
		c.event("complete", "", "every slot has finished clock %d", v.End)
	}
}

// UpdatesIn returns how many updates the rows of all shards contain, by their
// newest word.
func (c *Core) UpdatesIn() (n int64) {
	for i := range c.facts.View.Shards {
		if st := c.shardStatus(i); st != nil {
			n += int64(st.Seq)
		}
	}
	return n
}

// Serving reports whether every shard serves and every slot works.
func (c *Core) Serving() bool {
	for i := range c.facts.View.Shards {
		if st := c.shardStatus(i); st == nil || !st.Ready {
			return false
		}
	}
	for i := range c.slots {
		if sl := &c.facts.View.Slots[i]; !sl.Left && !c.early(i) && (!sl.Settled || c.slots[i].gone) {
			return false
		}
	}
	return true
}

// Condition describes a place for people.
type Condition struct {
	Place
	State   string // waiting, alive, silent, dead, left
	Clock   perdure.Clock
	Problem string
	Server  *perdure.ServerStatus
	Worker  *perdure.WorkerStatus
}

// Condition returns how a place is.
func (c *Core) Condition(k Kind, index int) Condition {
	p, o := c.place(k, index)
	d := Condition{Place: *p, State: "alive", Clock: o.lastClock, Server: o.server, Worker: o.worker}
	switch {
	case k == Worker && c.facts.View.Slots[index].Left:
		d.State = "left"
	case o.gone:
		d.State = "dead"
	case p.Process == "":
		d.State = "waiting"
	case o.suspect:
		d.State = "silent"
	case !o.connected:
		d.State = "waiting"
	}
	if k == Server && o.server != nil {
		d.Clock = -1
		for _, sh := range o.server.Shards {
			if d.Clock < 0 || sh.MinClock < d.Clock {
				d.Clock = sh.MinClock
			}
		}
		d.Problem = problem(o.server)
	}
	return d
}
