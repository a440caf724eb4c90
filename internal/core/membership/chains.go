package membership

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
)

// maxMoves bounds how many replicas move at a time to make servers more equal:
// each is a copy of a shard beside the training.
const maxMoves = 4

// standing is how a holder of a shard is.
type standing int

const (
	alive  standing = iota
	silent          // suspected, or not come back; it may have its rows still
	dead            // its rows are gone
)

// standing judges a holder by what was last heard of its server's place.
func (c *Core) standing(h *perdure.Holder) standing {
	p, o := &c.facts.Servers[h.Server], &c.servers[h.Server]
	switch {
	case h.Incarnation != p.Incarnation, o.gone && !o.assumed:
		return dead
	case o.gone && p.Any && c.traits.Copies == 1:
		return dead // nobody takes its place, nor tells more
	case o.gone, o.ear.Suspect():
		return silent
	}
	return alive
}

// eligible reports whether a server may be given replicas.
func (c *Core) eligible(server int) bool {
	return c.present(server) && !c.facts.Servers[server].Draining
}

// present reports whether a server's process is there, and is not told that it may end.
func (c *Core) present(server int) bool {
	o := &c.servers[server]
	return o.connected && !c.facts.Servers[server].Left && !o.gone && !o.ear.Suspect()
}

// refuge returns the server for a shard that nobody has the rows of, and no place is
// taken of: one that may be given replicas, else one that is to end, for it stays as
// long as it is the only one; -1 if there is none.
func (c *Core) refuge() int {
	found := placement.Choose(c.layout, nil, -1)
	if found >= 0 {
		return found
	}
	for i := range c.servers {
		if c.present(i) && (found < 0 || c.layout[i].Replicas < c.layout[found].Replicas) {
			found = i
		}
	}
	return found
}

// missing reports whether a server is awaited: its next process, or the present one's
// return.
func (c *Core) missing() bool {
	c.judge()
	return len(c.away) > 0
}

// coming is the revision of the view that the present changes will be in.
func (c *Core) coming() uint64 { return c.facts.View.Revision + 1 }

// holder makes a server's present process a holder of what it has nothing of yet.
func (c *Core) holder(server int) perdure.Holder {
	p := &c.facts.Servers[server]
	return perdure.Holder{Server: server, Incarnation: p.Incarnation, Addr: p.Addr, Since: c.coming()}
}

// members returns a shard's chain, in memory of its own.
func members(sv *perdure.ShardView) []perdure.Holder {
	chain := make([]perdure.Holder, 0, sv.Replicas()+1)
	for i := range sv.Replicas() {
		chain = append(chain, sv.Replica(i))
	}
	return chain
}

func serversOf(chain []perdure.Holder) []int {
	servers := make([]int, len(chain))
	for i := range chain {
		servers[i] = chain[i].Server
	}
	return servers
}

// hold counts a shard's replicas, with the joining one, for or against their
// servers.
func (c *Core) hold(shard int, by int) {
	sv := &c.facts.View.Shards[shard]
	one := func(server int) {
		at := &c.layout[server]
		c.loads.add(at.Replicas, -1)
		c.loads.add(at.Replicas+by, 1)
		if at.Open {
			c.openLoads.add(at.Replicas, -1)
			c.openLoads.add(at.Replicas+by, 1)
		}
		at.Replicas += by
		if by > 0 {
			c.held[server][shard] = struct{}{}
		} else {
			delete(c.held[server], shard)
		}
	}
	for i := range sv.Replicas() {
		one(sv.Replica(i).Server)
	}
	if sv.Joining != nil {
		one(sv.Joining.Server)
	}
	if sv.Server >= 0 {
		c.layout[sv.Server].Heads += by
	}
}

// change gives a shard another view. Its followers are not to be changed in place:
// older views share them.
func (c *Core) change(shard int, next perdure.ShardView) {
	c.hold(shard, -1)
	c.changeShard(shard, next)
	c.hold(shard, 1)
	c.orphans.remove(shard)
	c.unready.add(shard) // unless it turns out that it is ready
	c.noteBase(shard)
	c.noteMending(shard)
	c.noteZones(shard)
	c.look(shard)
	c.uneven = true
}

// enter begins a shard's next epoch with another chain. Where updates are
// acknowledged before all have them, a new head lacks some: its base is to be
// learnt. What the present epoch lost stays told until it has been carried out.
func (c *Core) enter(shard int, chain []perdure.Holder) {
	next := c.facts.View.Shards[shard]
	headless := next.Holder != chain[0]
	if c.ready(shard) {
		next.Lost, next.Base, next.Restored = false, nil, false
	}
	if headless && c.traits.Early {
		next.Lost, next.Base = true, nil
	}
	if j := next.Joining; j != nil && slices.Contains(chain, *j) {
		next.Joining = nil
	}
	next.Holder, next.Followers = chain[0], nil
	if len(chain) > 1 {
		next.Followers = slices.Clone(chain[1:])
	}
	next.Epoch++
	next.Yields = false
	c.change(shard, next)
}

// ready reports whether a shard's head serves: whatever it had when the epoch
// began, all members have.
func (c *Core) ready(shard int) bool {
	st := c.shardStatus(shard)
	return st != nil && st.Ready
}

// chains takes the next step of every shard that is due: whoever died leaves its chain,
// whoever has caught up joins it, and where replicas are missing or to move, others
// begin to join.
func (c *Core) chains() {
	c.judge()
	if !c.stirred || !c.placed() {
		return
	}
	c.stirred = false
	var fates fates
	for _, s := range c.due.sorted() {
		c.shrink(s, &fates)
	}
	c.tellFates(&fates)
	if c.facts.Failed != "" {
		return
	}
	whole := !c.missing()
	if whole && len(c.orphans.list) > 0 {
		c.replaceLost(c.orphans.sorted())
	}
	c.refresh()
	todo := c.due.sorted()
	c.due.clear()
	for _, s := range todo {
		if !c.orphans.has(s) && c.grow(s, whole || c.facts.Job.NoReplace) {
			c.open.remove(s)
		}
	}
	if whole && len(c.open.list) == 0 {
		c.rebalance()
	}
}

func sorted(set map[int]struct{}) []int { return slices.Sorted(maps.Keys(set)) }

// fates gathers what happened to chains in one step.
type fates struct {
	dropped map[int]int // by server: from how many chains
	heads   int         // how many of the chains have another head
	lost    []int       // shards that nobody has the rows of
	last    []int       // the servers that had them
}

// shrink drops from a shard's chain who is dead, and who is only silent if
// somebody else has the rows: not one of whom, after a silence, nothing is known but a
// word that may have been long on its way.
func (c *Core) shrink(shard int, f *fates) {
	c.looks.shards++
	c.orphans.remove(shard)
	sv := &c.facts.View.Shards[shard]
	if j := sv.Joining; j != nil && c.standing(j) != alive {
		next := *sv
		next.Joining = nil
		c.change(shard, next)
	}
	chain := members(sv)
	how := make([]standing, len(chain))
	serves, waits, sure := false, false, false
	for i := range chain {
		how[i] = c.standing(&chain[i])
		if i == 0 && c.lost[perdure.ShardID(shard)] {
			how[i] = dead
		}
		serves = serves || how[i] == alive
		sure = sure || how[i] == alive && c.servers[chain[i].Server].back == 0
		waits = waits || how[i] == silent
	}
	if !serves && !waits {
		c.orphans.add(shard)
		f.lost = append(f.lost, shard)
		f.last = append(f.last, serversOf(chain)...)
		return
	}
	var stay []perdure.Holder
	for i := range chain {
		if how[i] == alive || how[i] == silent && !sure {
			stay = append(stay, chain[i])
			continue
		}
		if f.dropped == nil {
			f.dropped = map[int]int{}
		}
		f.dropped[chain[i].Server]++
	}
	if len(stay) == len(chain) {
		return
	}
	if stay[0] != chain[0] {
		f.heads++
	}
	delete(c.lost, perdure.ShardID(shard))
	c.enter(shard, stay)
}

// last reports whether nobody but a server, as far as is known, has all rows of some
// shard.
func (c *Core) last(server int) bool {
	return c.alone(server, func(h *perdure.Holder) bool { return c.standing(h) == alive })
}

// mayBeLast reports whether a server's process, which is not heard, may be alive and
// have the last rows of some shard: another one that asks for its place must wait until
// it is clear that it is dead, or, where all can roll back, until it is suspected. (The
// coordinator may have been away, and not know yet who else has died.)
func (c *Core) mayBeLast(server int) bool {
	o := &c.servers[server]
	return c.traits.Copies > 1 && !o.gone && (c.irreplaceable() || !o.ear.Suspect()) &&
		c.alone(server, func(h *perdure.Holder) bool { return c.servers[h.Server].connected && c.standing(h) == alive })
}

// alone reports whether a server holds a shard of whose other holders none is good.
func (c *Core) alone(server int, good func(h *perdure.Holder) bool) bool {
	for s := range c.held[server] {
		if !slices.ContainsFunc(members(&c.facts.View.Shards[s]), func(h perdure.Holder) bool {
			return h.Server != server && good(&h)
		}) {
			return true
		}
	}
	return false
}

// irreplaceable reports whether rows are nowhere but in replicas, so that whoever may
// have the last ones is waited for. Where all can roll back to a checkpoint, it is given
// up like any other.
func (c *Core) irreplaceable() bool { return c.traits.Copies > 1 && !c.traits.Saves() }

// tellFates reports what happened to chains, and ends a job whose rows are lost
// for good.
func (c *Core) tellFates(f *fates) {
	for _, server := range slices.Sorted(maps.Keys(f.dropped)) {
		c.event("dropped", target(Server, server), "server:%d is dropped from %d chains; others have what it held", server, f.dropped[server])
		if c.servers[server].ear.Suspect() && !c.last(server) {
			c.kill(Server, server)
		}
	}
	if len(f.lost) == 0 {
		return
	}
	fate := c.orphaned(len(f.lost))
	if fate.Kind != recovery.Fail {
		return
	}
	slices.Sort(f.last)
	names := []string{}
	for _, server := range slices.Compact(f.last) {
		names = append(names, target(Server, server))
	}
	c.fail("the rows of %s are lost: whoever held them last (%s) has died, and %s", shards(f.lost), strings.Join(names, ", "), fate.Why)
}

// replaced reports whether a process has a server's place, so that it can begin again
// there with what the server held.
func (c *Core) replaced(server int) bool {
	return !c.facts.Servers[server].Left && !c.servers[server].gone
}

// anew returns the chain of a shard that begins again: on the servers that held it,
// where their places are taken, else on others, or, where there are none, on one that is
// to end. Nobody has to copy it from anybody: all begin with the same rows, those of the
// cut.
func (c *Core) anew(shard int) (chain []perdure.Holder) {
	copies := c.traits.Copies
	for _, server := range serversOf(members(&c.facts.View.Shards[shard])) {
		if c.replaced(server) && len(chain) < copies {
			chain = append(chain, c.holder(server))
		}
	}
	for len(chain) < copies {
		to := placement.Choose(c.layout, serversOf(chain), -1)
		if to < 0 {
			break
		}
		chain = append(chain, c.holder(to))
	}
	if len(chain) == 0 {
		chain = append(chain, c.holder(c.refuge()))
	}
	return chain
}

func shards(list []int) string {
	if len(list) == 1 {
		return fmt.Sprintf("shard %d", list[0])
	}
	return fmt.Sprintf("shard %d and %d more", list[0], len(list)-1)
}

// fail ends the job for a reason that is beyond repair.
func (c *Core) fail(why string, args ...any) {
	text := fmt.Sprintf(why, args...)
	if at := c.facts.View.Durable; at > 0 {
		text += fmt.Sprintf(", or go on from clock %d with perdure train --resume RUN", at)
	}
	c.facts.Failed, c.dirty = text, true
	c.event("failed", "", "%s", text)
}

// grow takes a shard's next step towards the chain that it should have. It
// reports whether there is nothing left to do.
func (c *Core) grow(shard int, refill bool) (settled bool) {
	c.looks.shards++
	c.wanting.remove(shard)
	sv := &c.facts.View.Shards[shard]
	ready := c.ready(shard) && (!sv.Lost || sv.Base != nil)
	if j := sv.Joining; j != nil {
		if (!sv.Lost || sv.Base != nil) && c.whole(shard) && c.joined(shard, j) {
			c.promote(shard)
		}
		return false
	}
	leaver := c.leaver(members(sv))
	if sv.Yields {
		leaver = sv.Server // it takes nothing in any more
	}
	if leaver >= 0 {
		if !ready {
			c.wanting.add(shard) // should a server come, nobody need leave
		} else if c.yielded(shard, leaver) {
			c.enter(shard, without(members(sv), leaver))
		}
		return false
	}
	short, drains := sv.Replicas() < c.traits.Copies, c.draining(sv)
	if !short && drains < 0 {
		return ready
	}
	if short && refill || drains >= 0 {
		if to := placement.Choose(c.layout, serversOf(members(sv)), drains); to >= 0 {
			c.join(shard, to)
			return false
		}
	}
	c.wanting.add(shard)
	return false
}

// yielded reports whether a member may be dropped without loss. The head of an eager
// chain is first told to take nothing more in, until the next member has all it has.
func (c *Core) yielded(shard, leaver int) bool {
	sv := &c.facts.View.Shards[shard]
	if sv.Server != leaver || !c.traits.Early {
		return true
	}
	if !sv.Yields {
		next := *sv
		next.Yields = true
		c.change(shard, next)
	}
	st := c.shardStatus(shard)
	return st != nil && st.Yielded
}

// join lets a server begin to copy a shard.
func (c *Core) join(shard, server int) {
	next := c.facts.View.Shards[shard]
	h := c.holder(server)
	next.Joining = &h
	c.change(shard, next)
	c.event("joining", shardTarget(shard), "server:%d begins to copy shard %d", server, shard)
}

func shardTarget(shard int) string { return fmt.Sprintf("shard:%d", shard) }

// joined reports whether the replica that joins a shard has caught up, in the
// shard's present epoch.
func (c *Core) joined(shard int, j *perdure.Holder) bool {
	st := c.statusOf(shard, j)
	return st != nil && st.Joined && st.Since == j.Since
}

// promote makes the replica that joins a shard its new tail. It has all that was
// committed: since it caught up, nothing is committed without it. Whoever it comes for
// leaves later, when it is known to live: what it said may be older than its death.
func (c *Core) promote(shard int) {
	sv := &c.facts.View.Shards[shard]
	j := sv.Joining
	c.enter(shard, append(members(sv), *j))
	c.event("joined", shardTarget(shard), "server:%d has all of shard %d", j.Server, shard)
}

// draining returns a member of a shard's chain that wants to leave, -1 if there is
// none.
func (c *Core) draining(sv *perdure.ShardView) int {
	for i := range sv.Replicas() {
		if server := sv.Replica(i).Server; c.facts.Servers[server].Draining {
			return server
		}
	}
	return -1
}

// without returns a chain less a server.
func without(chain []perdure.Holder, server int) []perdure.Holder {
	return slices.DeleteFunc(chain, func(h perdure.Holder) bool { return h.Server == server })
}

// leaver returns the member that a chain can do without and that should
// leave it, -1 if there is none: one that is draining, where there are enough others
// or nobody could take its place; else one too many, after a move.
func (c *Core) leaver(holders []perdure.Holder) int {
	if len(holders) < 2 {
		return -1
	}
	chain := serversOf(holders)
	surplus := len(chain) > c.traits.Copies
	for _, server := range chain {
		if c.facts.Servers[server].Draining && (surplus || placement.Choose(c.layout, chain, -1) < 0) {
			return server
		}
	}
	if !surplus {
		return -1
	}
	return placement.Surplus(c.layout, chain)
}

// rebalance begins a few moves that make the servers' loads more equal.
func (c *Core) rebalance() {
	if !c.uneven || c.complete {
		return
	}
	if c.level() {
		c.uneven = false
		return
	}
	layout := c.arrangement()
	for range maxMoves {
		m, ok := layout.Move()
		if !ok {
			c.uneven = len(c.open.list) > 0 // who moves may have others move
			return
		}
		c.event("moved", target(Server, m.To), "server:%d gets a replica of shard %d, to relieve others", m.To, m.Shard)
		c.join(m.Shard, m.To)
		layout.Servers[m.From].Replicas--
		layout.Servers[m.To].Replicas++
	}
}

// arrangement returns where replicas are, to find moves in.
func (c *Core) arrangement() placement.Layout {
	return placement.Layout{
		Servers: slices.Clone(c.layout), Heads: true,
		Held: func(server int) []int {
			return slices.DeleteFunc(sorted(c.held[server]), func(s int) bool { return c.facts.View.Shards[s].Joining != nil })
		},
		Chain: func(shard int) []int { return serversOf(members(&c.facts.View.Shards[shard])) },
	}
}
