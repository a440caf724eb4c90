package membership

// startDrainCopies starts to copy the shards of draining servers whose turn it is.
func (ch *chains) startDrainCopies() {
	var all []drainingShard
	for _, s := range ch.queue.AwaitingCopy.Sorted() {
		sv := &ch.record.View.Shards[s]
		t := drainingShard{Shard: s, Server: ch.record.Draining(sv), Bytes: ch.job.bytes(s)}
		if t.Server < 0 || sv.Joining != nil || ch.queue.LostShards.Has(s) {
			ch.queue.AwaitingCopy.Remove(s) // whatever changed it has already marked it
			continue
		}
		if ch.job.replicas.Choose(serversOf(sv.Members()), t.Server) < 0 {
			ch.queue.AwaitingCopy.Remove(s) // the server that could have taken it is draining or dead
			ch.queue.TouchShard(s)
			continue
		}
		for i := range sv.Replicas() {
			if h := sv.Replica(i); !ch.record.Servers[h.Server].Draining && ch.job.alive(&h) {
				t.Others++
			}
		}
		all = append(all, t)
	}
	if now := all; !ch.job.mutations.Chain.DrainOrder {
		all = nextToDrain(now, ch.copiesInProgress)
	}
	for _, t := range all {
		ch.queue.AwaitingCopy.Remove(t.Shard)
		chain := serversOf(ch.record.View.Shards[t.Shard].Members())
		if to := ch.job.replicas.Choose(chain, t.Server); to >= 0 {
			ch.join(t.Shard, to)
		} else { // the server that could have taken it is draining or dead
			ch.queue.TouchShard(t.Shard)
		}
	}
}

// copiesInProgress returns the shards of a server that are being copied now. A shard that cannot be copied yet, because
// it does not serve, does not delay others.
func (ch *chains) copiesInProgress(server int) *drainLine {
	l := &drainLine{}
	for s := range ch.job.replicas.Shards(server) {
		j := ch.record.View.Shards[s].Joining
		if j != nil && j.Server != server && ch.job.ready(s) && !ch.job.joined(s, j) {
			l.Add(ch.job.bytes(s))
		}
	}
	return l
}

// bytes returns the size of a shard's rows, as far as known.
func (j *jobState) bytes(shard int) int64 {
	if st := j.shardStatus(shard); st != nil {
		return st.Bytes
	}
	return 0
}

// mustLeaveNow reports whether the time of a draining server is nearly over.
func (j *jobState) mustLeaveNow(server int) bool {
	return j.servers[server].drain.NearlyOver(j.tick) && j.record.Servers[server].Draining &&
		!j.mutations.Chain.DrainDeadline
}

// markUrgentDrains makes draining servers whose time is nearly over leave the chains that have other members. It
// reports whether any shards were marked for that.
func (ch *chains) markUrgentDrains() (news bool) {
	for _, i := range ch.queue.Leaving.Sorted() {
		if n := &ch.job.servers[i].drain; !n.Handled && ch.job.mustLeaveNow(i) {
			n.Handled, news = true, true
			ch.rec.touchServer(i)
		}
	}
	return news
}

// drained releases the draining servers that hold nothing any more.
func (ch *chains) drained() {
	for _, i := range ch.queue.Leaving.Sorted() {
		p := &ch.record.Servers[i]
		if !p.Draining || p.Left {
			ch.queue.Leaving.Remove(i)
		} else if ch.record.Placed() && ch.job.replicas.NumShards(i) == 0 {
			set(ch.rec, &p.Left, true)
			set(ch.rec, &p.Drained, p.Incarnation)
			ch.queue.Unchecked.Add(i)
			ch.rec.event("drained", target(Server, i), "server:%d has handed over all its shards and may end", i)
		}
	}
}
