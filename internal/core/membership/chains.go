package membership

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// maxMoves bounds how many replicas move at the same time to balance the servers: each move copies a shard during
// training.
const maxMoves = 4

// chains decides which servers hold and will hold each shard.
type chains struct {
	record *JobRecord
	job    *jobState
	rec    *recorder
	queue  *dirtySet
	grace  int64 // ticks after which a dead server's replacement is no longer awaited; 0: it always is
}

// deaths collects the changes to chains in one step.
type deaths struct {
	shrunk      map[int]int // by server: how many chains continue without it
	lostShards  []int       // shards whose rows no live server has
	lastServers []int       // the servers that had them
}

func shards(list []int) string {
	if len(list) == 1 {
		return fmt.Sprintf("shard %d", list[0])
	}
	return fmt.Sprintf("shard %d and %d more", list[0], len(list)-1)
}

func shardTarget(shard int) string { return fmt.Sprintf("shard:%d", shard) }

// dropDead removes dead servers from the chains that are due.
func (ch *chains) dropDead() {
	var d deaths
	for _, s := range ch.queue.Due.Sorted() {
		ch.shrink(s, &d)
	}
	ch.reportDeaths(&d)
}

// extend takes the next step of every shard that is due. Replicas that have caught up join the chain; where replicas
// are missing or must move, servers start to copy the shard. whole reports that no server is missing.
func (ch *chains) extend(whole bool) {
	ch.rec.refresh()
	for _, s := range ch.queue.NextShards() {
		if !ch.queue.LostShards.Has(s) && ch.grow(s, whole || ch.record.Job.NoReplace) {
			ch.queue.Open.Remove(s)
		}
	}
	ch.startDrainCopies()
	if whole && len(ch.queue.Open.All()) == 0 {
		ch.rebalance()
	}
}

// shrink drops from a shard's chain the members that do not stay in it: see judgeChain.
func (ch *chains) shrink(shard int, d *deaths) {
	ch.job.visits.shards++
	ch.queue.LostShards.Remove(shard)
	sv := &ch.record.View.Shards[shard]
	if j := sv.Joining; j != nil && !ch.job.alive(j) {
		next := *sv
		next.Joining = nil
		ch.rec.changeShard(shard, next)
	}
	chain := sv.Members()
	how := make([]memberState, len(chain))
	for i := range chain {
		how[i] = ch.job.holderState(&chain[i])
	}
	if ch.job.dropped[perdure.ShardID(shard)] {
		how[0] = memberDead
	}
	sure, orphaned := judgeChain(how)
	if orphaned {
		ch.queue.LostShards.Add(shard)
		d.lostShards = append(d.lostShards, shard)
		d.lastServers = append(d.lastServers, serversOf(chain)...)
		return
	}
	var stay []protocol.Holder
	for i := range chain {
		if how[i].Stays(sure) {
			stay = append(stay, chain[i])
			continue
		}
		if d.shrunk == nil {
			d.shrunk = map[int]int{}
		}
		d.shrunk[chain[i].Server]++
	}
	if len(stay) == len(chain) {
		return
	}
	delete(ch.job.dropped, perdure.ShardID(shard))
	ch.startEpoch(shard, stay)
}

// reportDeaths reports the changes to chains. It ends the job if rows are lost permanently.
func (ch *chains) reportDeaths(d *deaths) {
	for _, server := range slices.Sorted(maps.Keys(d.shrunk)) {
		ch.rec.event("dropped", target(Server, server),
			"server:%d is dropped from %d chains; other servers have its shards", server, d.shrunk[server])
		if ch.job.servers[server].liveness.IsSuspect() && !ch.job.isLastHolder(server) {
			ch.rec.kill(Server, server)
		}
	}
	if len(d.lostShards) == 0 {
		return
	}
	action := ch.lossAction(len(d.lostShards))
	if action.Kind != recovery.Fail {
		return
	}
	slices.Sort(d.lastServers)
	names := []string{}
	for _, server := range slices.Compact(d.lastServers) {
		names = append(names, target(Server, server))
	}
	ch.rec.fail("the rows of %s are lost: the last to hold them (%s) died, and %s", shards(d.lostShards),
		strings.Join(names, ", "), action.Why)
}

// startEpoch starts a shard's next epoch with another chain. Where updates are acknowledged before all replicas have
// them, a new head lacks some, so its base must be determined. A loss of the current epoch stays in the view until the
// shard has carried it out.
func (ch *chains) startEpoch(shard int, chain []protocol.Holder) {
	next := ch.record.View.Shards[shard]
	if ch.job.ready(shard) {
		next.Lost, next.Base, next.Restored, next.Saved = false, nil, false, nil
	}
	if next.Holder != chain[0] && ch.job.traits.RestartsWith == recovery.HeadRows {
		next.Lost, next.Base = true, nil
	}
	if j := next.Joining; j != nil && slices.Contains(chain, *j) {
		next.Joining = nil
	}
	next = onChain(next, chain)
	next.Epoch++
	next.Yields = false
	ch.rec.changeShard(shard, next)
}

// grow takes a shard's next step towards the chain that it should have. It reports whether nothing is left to do.
func (ch *chains) grow(shard int, refill bool) (settled bool) {
	ch.job.visits.shards++
	ch.queue.AwaitingServer.Remove(shard)
	sv := &ch.record.View.Shards[shard]
	ready := ch.job.ready(shard) && (!sv.Lost || sv.Base != nil)
	if j := sv.Joining; j != nil && (!sv.Lost || sv.Base != nil) && ch.job.resendComplete(shard) &&
		ch.job.joined(shard, j) {
		ch.promote(shard)
		return false
	}
	leaver := ch.memberToRemove(sv.Members(), sv.Joining != nil)
	if sv.Yields {
		leaver = sv.Server // it accepts no more updates
	}
	if leaver >= 0 {
		if !ready {
			ch.queue.AwaitingServer.Add(shard) // if a server joins, no member has to leave
		} else if ch.yielded(shard, leaver) {
			ch.startEpoch(shard, without(sv.Members(), leaver))
		}
		return false
	}
	if sv.Joining != nil {
		return false
	}
	short, drains := sv.Replicas() < ch.job.traits.Copies, ch.record.Draining(sv)
	if !short && drains < 0 {
		return ready
	}
	if short && refill || drains >= 0 {
		to := ch.job.replicas.Choose(serversOf(sv.Members()), drains)
		switch {
		case to >= 0 && drains >= 0:
			ch.queue.AwaitingCopy.Add(shard)
			return false
		case to >= 0:
			ch.join(shard, to)
			return false
		}
	}
	ch.queue.AwaitingServer.Add(shard)
	return false
}

// yielded reports whether a member may be dropped without loss. The head of an eager chain must first stop accepting
// updates until the next member has all that it has.
func (ch *chains) yielded(shard, leaver int) bool {
	sv := &ch.record.View.Shards[shard]
	if sv.Server != leaver || !ch.job.traits.EarlyAck {
		return true
	}
	if !sv.Yields {
		next := *sv
		next.Yields = true
		ch.rec.changeShard(shard, next)
	}
	st := ch.job.shardStatus(shard)
	return st != nil && st.Yielded
}

// join makes a server start to copy a shard.
func (ch *chains) join(shard, server int) {
	next := ch.record.View.Shards[shard]
	next.Joining = new(ch.record.Holder(server))
	ch.rec.changeShard(shard, next)
	ch.rec.event("joining", shardTarget(shard), "server:%d starts copying shard %d", server, shard)
}

// promote makes the joining replica the new tail of its shard. It has everything that was committed: since it caught
// up, nothing is committed without it. The member that it replaces leaves later, once the new tail is known to be
// alive, because the tail's latest status may predate its death.
func (ch *chains) promote(shard int) {
	sv := &ch.record.View.Shards[shard]
	j := sv.Joining
	ch.startEpoch(shard, append(sv.Members(), *j))
	ch.rec.event("joined", shardTarget(shard), "server:%d has a full copy of shard %d", j.Server, shard)
}

// memberToRemove returns the member that a chain can spare and that should leave; -1: none. A draining member leaves if
// there are enough others, if no server could replace it, or if its time is nearly over. Otherwise a surplus member
// leaves, after a move. While a replica joins, only the time counts: the others have the rows, and the joiner continues
// from them.
func (ch *chains) memberToRemove(holders []protocol.Holder, joins bool) int {
	if len(holders) < 2 {
		return -1
	}
	chain := serversOf(holders)
	surplus := !joins && len(chain) > ch.job.traits.Copies
	for _, server := range chain {
		if ch.record.Servers[server].Draining &&
			(surplus || ch.job.mustLeaveNow(server) || !joins && ch.job.replicas.Choose(chain, -1) < 0) {
			return server
		}
	}
	if !surplus {
		return -1
	}
	return ch.job.replicas.Surplus(chain)
}

// rebalance starts a few moves that make the servers' loads more equal.
func (ch *chains) rebalance() {
	if !ch.queue.Unbalanced || ch.job.complete {
		return
	}
	if ch.job.replicas.IsBalanced() {
		ch.queue.Unbalanced = false
		return
	}
	moves := ch.job.replicas.NextMoves(maxMoves)
	for _, m := range moves {
		ch.rec.event("moved", target(Server, m.To), "server:%d gets a replica of shard %d to balance the load", m.To,
			m.Shard)
		ch.join(m.Shard, m.To)
	}
	if len(moves) < maxMoves {
		ch.queue.Unbalanced = len(ch.queue.Open.All()) > 0 // these moves may make others possible
	}
}

// missing reports whether the job waits for a server: for a replacement, or for the current process to return.
func (ch *chains) missing() bool {
	ch.rec.checkServers()
	return ch.queue.Awaited.Len() > 0
}

// giveUp stops waiting for replacements of servers that died long ago. A late replacement is still assigned shards.
func (ch *chains) giveUp() {
	if ch.grace == 0 {
		return
	}
	for i := range ch.job.servers {
		p, o := &ch.record.Servers[i], &ch.job.servers[i]
		if o.gone && !p.Left && ch.job.detector.Silence(&o.liveness) > ch.grace {
			set(ch.rec, &p.Left, true)
			ch.rec.touchServer(i)
			ch.rec.event("taken", target(Server, i),
				"server:%d has not come back; other servers take over its shards", i)
		}
	}
}
