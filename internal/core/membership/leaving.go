package membership

// turns starts to copy the shards of draining servers whose turn it is.
func (ch *chains) turns() {
	var all []drainingShard
	for _, s := range ch.queue.Turns.Sorted() {
		sv := &ch.facts.View.Shards[s]
		t := drainingShard{Shard: s, Server: ch.facts.Draining(sv), Bytes: ch.job.bytes(s)}
		if t.Server < 0 || sv.Joining != nil || ch.queue.Orphans.Has(s) {
			ch.queue.Turns.Remove(s) // whatever changed it has already marked it
			continue
		}
		if ch.job.spread.Choose(serversOf(sv.Members()), t.Server) < 0 {
			ch.queue.Turns.Remove(s) // the server that could have taken it is draining or dead
			ch.queue.TouchShard(s)
			continue
		}
		for i := range sv.Replicas() {
			if h := sv.Replica(i); !ch.facts.Servers[h.Server].Draining && ch.job.alive(&h) {
				t.Others++
			}
		}
		all = append(all, t)
	}
	if now := all; !ch.job.weak.Chain.Turns {
		all = nextToDrain(now, ch.line)
	}
	for _, t := range all {
		ch.queue.Turns.Remove(t.Shard)
		chain := serversOf(ch.facts.View.Shards[t.Shard].Members())
		if to := ch.job.spread.Choose(chain, t.Server); to >= 0 {
			ch.join(t.Shard, to)
		} else { // the server that could have taken it is draining or dead
			ch.queue.TouchShard(t.Shard)
		}
	}
}

// line returns the shards of a server that are being copied now. A shard that cannot be copied yet, because it does not
// serve, does not delay others.
func (ch *chains) line(server int) *drainLine {
	l := &drainLine{}
	for s := range ch.job.spread.Held(server) {
		j := ch.facts.View.Shards[s].Joining
		if j != nil && j.Server != server && ch.job.ready(s) && !ch.job.joined(s, j) {
			l.Add(ch.job.bytes(s))
		}
	}
	return l
}

// bytes returns the size of a shard's rows, as far as known.
func (j *job) bytes(shard int) int64 {
	if st := j.shardStatus(shard); st != nil {
		return st.Bytes
	}
	return 0
}

// hurried reports whether the time of a draining server is nearly over.
func (j *job) hurried(server int) bool {
	return j.servers[server].notice.NearlyOver(j.tick) && j.facts.Servers[server].Draining && !j.weak.Chain.Hurry
}

// hurry makes draining servers whose time is nearly over leave the chains that have other members. It reports whether
// any shards were marked for that.
func (ch *chains) hurry() (news bool) {
	for _, i := range ch.queue.Leaving.Sorted() {
		if n := &ch.job.servers[i].notice; !n.Looked && ch.job.hurried(i) {
			n.Looked, news = true, true
			ch.rec.touchServer(i)
		}
	}
	return news
}

// drained releases the draining servers that hold nothing any more.
func (ch *chains) drained() {
	for _, i := range ch.queue.Leaving.Sorted() {
		p := &ch.facts.Servers[i]
		if !p.Draining || p.Left {
			ch.queue.Leaving.Remove(i)
		} else if ch.facts.Placed() && ch.job.spread.Load(i) == 0 {
			set(ch.rec, &p.Left, true)
			set(ch.rec, &p.Drained, p.Incarnation)
			ch.queue.Unjudged.Add(i)
			ch.rec.event("drained", target(Server, i), "server:%d has handed over all its shards and may end", i)
		}
	}
}
