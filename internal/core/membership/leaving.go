package membership

// turns has others begin to copy what is held by servers that are to end, as far as it is the shards' turn.
func (ch *chains) turns() {
	var all []drainingShard
	for _, s := range ch.agenda.Turns.Sorted() {
		sv := &ch.facts.View.Shards[s]
		t := drainingShard{Shard: s, Server: ch.facts.Draining(sv), Bytes: ch.job.bytes(s)}
		if t.Server < 0 || sv.Joining != nil || ch.agenda.Orphans.Has(s) {
			ch.agenda.Turns.Remove(s) // who has changed it has looked at it
			continue
		}
		if ch.job.spread.Choose(serversOf(sv.Members()), t.Server) < 0 {
			ch.agenda.Turns.Remove(s) // who could have taken it when it began to wait is to end, too, or has died
			ch.agenda.TouchShard(s)
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
		ch.agenda.Turns.Remove(t.Shard)
		chain := serversOf(ch.facts.View.Shards[t.Shard].Members())
		if to := ch.job.spread.Choose(chain, t.Server); to >= 0 {
			ch.join(t.Shard, to)
		} else { // who could have taken it when it began to wait is to end, too, or has died
			ch.agenda.TouchShard(t.Shard)
		}
	}
}

// line returns which shards of a server are being copied now. One that cannot be yet, since it does not serve, holds
// nobody up.
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

// bytes returns how large the rows of a shard are, as far as is known.
func (j *job) bytes(shard int) int64 {
	if st := j.shardStatus(shard); st != nil {
		return st.Bytes
	}
	return 0
}

// hurried reports whether a server's notice is nearly over.
func (j *job) hurried(server int) bool {
	return j.servers[server].notice.NearlyOver(j.tick) && j.facts.Servers[server].Draining && !j.weak.Chain.Hurry
}

// hurry has servers whose notice is nearly over leave the chains that others are in. It reports whether there is one
// whose shards are to be looked at for that.
func (ch *chains) hurry() (news bool) {
	for _, i := range ch.agenda.Leaving.Sorted() {
		if n := &ch.job.servers[i].notice; !n.Looked && ch.job.hurried(i) {
			n.Looked, news = true, true
			ch.rec.touchServer(i)
		}
	}
	return news
}

// drained lets the servers go that were to end and hold nothing any more.
func (ch *chains) drained() {
	for _, i := range ch.agenda.Leaving.Sorted() {
		p := &ch.facts.Servers[i]
		if !p.Draining || p.Left {
			ch.agenda.Leaving.Remove(i)
		} else if ch.facts.Placed() && ch.job.spread.Load(i) == 0 {
			set(ch.rec, &p.Left, true)
			set(ch.rec, &p.Drained, p.Incarnation)
			ch.agenda.Unjudged.Add(i)
			ch.rec.event("drained", target(Server, i), "others have taken over all that server:%d held; it may end", i)
		}
	}
}
