package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
)

// reconcile takes every step that the facts and the observations allow, of all shards
// and slots that something may have happened to.
func (c *Core) reconcile() {
	c.refresh()
	if c.facts.View.Done || c.facts.Failed != "" {
		return
	}
	for again := true; again; again = c.stirred && c.placed() || len(c.woken.list) > 0 {
		c.placeShards()
		c.chains()
		c.learnBases()
		c.decide()
		if c.facts.Failed != "" {
			return
		}
		c.refresh()
		c.leave()
		c.decidePause()
	}
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
	for s, chain := range placement.Chains(len(v.Shards), c.traits.Copies, zones) {
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
		c.look(int(s))
	}
	if len(c.lost) > 0 {
		c.dropped = true
		c.event("detected", "shards", "%d shards are dropped", len(c.lost))
	}
	c.reconcile()
}

// replaceLost gives shards that nobody has the rows of to the processes that took
// their holders' places, or to the servers that are left where nobody takes them. It
// is for when no server is missing.
func (c *Core) replaceLost(lost []int) {
	v := &c.facts.View
	homeless := func(shard int) bool {
		return !slices.ContainsFunc(serversOf(members(&v.Shards[shard])), c.replaced)
	}
	if slices.ContainsFunc(lost, homeless) && c.refuge() < 0 {
		if c.facts.Job.NoReplace {
			c.fail("no server is left of %d; start the job again, with more servers or without --no-replace", len(c.servers))
		}
		return // those that were to end have gone; others come
	}
	fate := c.orphaned(len(lost))
	switch fate.Kind {
	case recovery.Wait:
		return
	case recovery.Fail:
		c.fail("%s", fate.Why)
		return
	}
	for _, i := range lost {
		chain := c.anew(i)
		next := perdure.ShardView{Holder: chain[0], Epoch: v.Shards[i].Epoch + 1, Lost: fate.Kind == recovery.Anew, Restored: fate.Kind == recovery.Restored}
		if len(chain) > 1 {
			next.Followers = chain[1:]
		}
		c.change(i, next)
		delete(c.lost, perdure.ShardID(i))
	}
	switch {
	case fate.Kind == recovery.Anew:
		c.event("lost", "", "%d shards begin again from their initial rows", len(lost))
	case fate.Kind == recovery.Restored:
		c.event("restored", "", "%d shards are restored from clock %d; workers send again what came after", len(lost), v.Durable)
		c.tookBack()
	case fate.Kind == recovery.Replay:
		c.event("replay", "", "%d shards are read from the update log again", len(lost))
	case c.weakened:
		c.event("restored", "", "%d shards are restored from clock %d, and nobody else", len(lost), v.Cut)
	case fate.Kind == recovery.RollBack:
		c.rollBack("%s", fate.Why)
	default:
		c.fail("%d shards were lost, and nobody knows what becomes of them (fate %d)", len(lost), fate.Kind)
	}
}

// orphaned returns what becomes of so many shards that nobody has the rows of.
func (c *Core) orphaned(shards int) recovery.Fate {
	return c.strategy.Orphaned(recovery.Loss{
		Shards: shards, Unkept: c.unkept(), Durable: c.facts.View.Durable, Publishing: c.publishing >= 0,
	})
}

// rollBack takes the whole job back to the newest published cut. The higher
// generation and the cut are recorded together.
func (c *Core) rollBack(why string, args ...any) {
	v := &c.facts.View
	v.Generation++
	v.Cut = v.Durable
	c.facts.Ending = false // whoever reached the goal will reach it again
	c.forgetCuts()
	c.cutSuspended()
	redone := int64(0)
	for i := range v.Slots {
		next := v.Slots[i]
		next.Decided, next.Start = true, next.Clamp(v.Cut)
		c.changeSlot(i, next)
		redone += int64(max(0, c.slots[i].lastClock-next.Start))
		c.setClock(i, next.Start)
	}
	for i := range v.Shards {
		c.look(i) // nobody is ready in this generation
	}
	for i := range v.Slots {
		c.await(i)
	}
	c.facts.ClocksRedone += redone
	c.publishing = -1
	c.dirty = true
	c.event("rollback", "", why+"; all roll back to clock %d (generation %d)", append(args, v.Cut, v.Generation)...)
	c.tookBack()
}

// shardStatus returns what the head of a shard's chain says of its present life,
// or nil if it has not said anything yet.
func (c *Core) shardStatus(shard int) *perdure.ShardWord {
	sv := &c.facts.View.Shards[shard]
	if sv.Server < 0 {
		return nil
	}
	return c.statusOf(shard, &sv.Holder)
}

// statusOf returns what a holder says of its replica of a shard in the shard's
// present epoch, or nil if it has not said anything yet.
func (c *Core) statusOf(shard int, h *perdure.Holder) *perdure.ShardWord {
	c.looks.shards++
	o := &c.servers[h.Server]
	if o.server == nil || o.gone || c.facts.Servers[h.Server].Incarnation != h.Incarnation {
		return nil
	}
	st := o.server.Shards[perdure.ShardID(shard)]
	if st == nil || st.Epoch != c.facts.View.Shards[shard].Epoch || st.Generation != c.facts.View.Generation {
		return nil
	}
	return st
}

// collectCut finds the newest cut that every shard has written, and asks for
// its publication, one at a time.
func (c *Core) collectCut() {
	v := &c.facts.View
	if !c.traits.Saves() || c.publishing >= 0 {
		return
	}
	if !c.written.all(len(v.Shards), func(i int) bool {
		st := c.shardStatus(i)
		return st != nil && slices.ContainsFunc(st.Segments, func(g perdure.Segment) bool { return g.Cut > v.Durable })
	}) {
		return
	}
	count := map[perdure.Clock]int{}
	best := perdure.Clock(-1)
	for i := range v.Shards {
		for _, g := range c.shardStatus(i).Segments {
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
	c.stirred = c.stirred || len(c.orphans.list) > 0 // who waited for it
	counts := ok && cut > v.Durable
	if counts {
		v.Durable = cut
		c.dirty, c.durableAt = true, c.coming()
		c.event("checkpoint", "", "checkpoint of clock %d is durable", cut)
		c.measureSave()
	}
	c.reconcile()
	return counts
}

// healed reports the places that work again after a failure.
func (c *Core) healed() {
	v := &c.facts.View
	for _, i := range c.healing[Server].sorted() {
		if o := &c.servers[i]; c.serving(i) {
			c.healing[Server].remove(i)
			how := "serves again"
			if o.gone || o.ear.Suspect() {
				how = "is not missed any more: the others serve all shards"
			}
			c.event("serving", target(Server, i), "server:%d %s", i, how)
		}
	}
	if c.dropped && len(c.lost) == 0 && c.Serving() {
		c.dropped = false
		c.event("serving", "shards", "all shards serve again")
	}
	for _, i := range c.healing[Worker].sorted() {
		if o := &c.slots[i]; !o.gone && o.connected && c.facts.Slots[i].Process != "" && v.Slots[i].Settled {
			c.healing[Worker].remove(i)
			c.event("serving", target(Worker, i), "worker:%d works again from clock %d", i, v.Slots[i].Start)
		}
	}
}

// serving reports whether what a server held is served again, by whomever; after
// a roll-back, all shards must be.
func (c *Core) serving(server int) bool {
	o := &c.servers[server]
	if away := o.gone || o.ear.Suspect(); away && (len(c.held[server]) > 0 || !c.placed()) {
		return false
	}
	if !c.traits.Apart || len(c.held[server]) == 0 {
		return len(c.unready.list) == 0
	}
	for i := range c.held[server] {
		if c.facts.View.Shards[i].Server == server && !c.ready(i) {
			return false
		}
	}
	return true
}

// drained lets the servers go that were to end and hold nothing any more.
func (c *Core) drained() {
	for _, i := range c.leaving.sorted() {
		p := &c.facts.Servers[i]
		if !p.Draining || p.Left {
			c.leaving.remove(i)
		} else if c.placed() && len(c.held[i]) == 0 {
			p.Left, c.dirty = true, true
			c.unjudged.add(i)
			c.event("drained", target(Server, i), "others have taken over all that server:%d held; it may end", i)
		}
	}
}

// checkComplete looks whether all is done.
func (c *Core) checkComplete() {
	v := &c.facts.View
	was := c.complete
	c.complete = false
	if v.End <= 0 || c.traits.Saves() && v.Durable < v.End {
		return
	}
	if !c.finished.all(len(c.slots), func(i int) bool {
		w := c.slots[i].worker
		if v.Slots[i].Left || v.Slots[i].From >= v.End {
			return true
		}
		return w != nil && w.Finished && w.Generation == v.Generation && w.Clock >= v.EndOf(perdure.Slot(i))
	}) {
		return
	}
	if !c.applied.all(len(v.Shards), func(i int) bool { st := c.shardStatus(i); return st != nil && st.Ready && st.MinClock >= v.End }) {
		return
	}
	c.complete = true
	if !was {
		c.contained = c.updatesIn()
		c.event("complete", "", "every slot has finished clock %d", v.End)
	}
}

// UpdatesIn returns how many updates the rows of all shards contain, by their
// newest word; once the job is done, those that they had then, whoever has gone since.
func (c *Core) UpdatesIn() int64 {
	if n := c.facts.Contained; c.facts.View.Done && n > 0 {
		return n
	}
	return c.updatesIn()
}

func (c *Core) updatesIn() (n int64) {
	for i := range c.facts.View.Shards {
		if st := c.shardStatus(i); st != nil {
			n += int64(st.Seq)
		}
	}
	return n
}

// Serving reports whether every shard serves and every slot works.
func (c *Core) Serving() bool {
	if len(c.unready.list) > 0 {
		return false
	}
	for i := range c.slots {
		if sl := &c.facts.View.Slots[i]; !sl.Left && !c.isEarly(i) && (!sl.Settled || c.slots[i].gone) {
			return false
		}
	}
	return true
}

// WorkersHeard reports whether every worker that may live has said where it is, since this core
// began: before that the job's clock may be higher than what is known of it.
func (c *Core) WorkersHeard() bool {
	for i := range c.slots {
		if o := &c.slots[i]; c.facts.Slots[i].Process != "" && o.worker == nil && !o.gone && !c.facts.View.Slots[i].Left && !c.facts.View.Done {
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
	Server  *perdure.ServerWord // nil: it has said nothing yet
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
	case o.ear.Suspect():
		d.State = "silent"
	case !o.connected:
		d.State = "waiting"
	}
	if k == Server && o.server != nil {
		d.Clock, d.Problem = o.server.MinClock(), o.server.Problem()
	}
	return d
}
