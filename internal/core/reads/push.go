package reads

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// pushedRun are pushed rows that were read or pushed after the last round. The next round brings them to the common
// state.
type pushedRun struct {
	p     *tableShard
	first perdure.RowID
	n     int
}

// subscribed records that the rows at positions from ≤ at < end of a part are pushed from now on. first is the first of
// these rows.
func (s *Shard) subscribed(p *tableShard, first perdure.RowID, from, end int) {
	for i := range p.cache.pushed[from:end] {
		p.cache.pushed[from+i] = true
	}
	s.join(p, first, end-from)
}

// rejoin handles rows at positions from ≤ at < end of a part with the common contents had. An answer that did not
// subscribe to them gives them other contents. Pushed rows with contents of their own are already in joining.
func (s *Shard) rejoin(p *tableShard, had *contents, from, end int) {
	if had != s.current {
		return
	}
	for at := from; at < end; at++ {
		s.join(p, p.cache.rowAt(at), 1)
	}
}

func (s *Shard) join(p *tableShard, first perdure.RowID, n int) {
	if k := len(s.unsynced) - 1; k >= 0 {
		if l := &s.unsynced[k]; l.p == p && l.first+perdure.RowID(l.n) == first {
			l.n += n
			return
		}
	}
	s.unsynced = append(s.unsynced, pushedRun{p, first, n})
}

// queueUnsubscribe records that a row no longer needs to be pushed.
func (p *tableShard) queueUnsubscribe(row perdure.RowID) {
	p.unsubscribing = append(p.unsubscribing, row)
}

// maxUnsubscribing is how many rows that no longer need to be pushed may wait for the clock's end before the shard is
// notified.
const maxUnsubscribing = 64 << 10

// limitUnsubscribing notifies the shard immediately if there are very many.
func (t *Table) limitUnsubscribing(p *tableShard) {
	if len(p.unsubscribing) >= maxUnsubscribing {
		t.sendDrops(p)
	}
}

// awaitPush returns the request that represents the push which will bring a part's pushed rows to the MinClock that a
// read needs.
func (t *Table) awaitPush(p *tableShard, need perdure.Clock) *request {
	r := t.r
	if q := p.push; q == nil || r.asked.open[q.id] != q {
		p.push = r.asked.make(wire.KindPush, t, p.shard, need)
		r.asked.register(p.push)
	}
	p.push.need = max(p.push.need, need)
	return p.push
}

// stopAwaiting makes calls that wait for a part's push check again. late is the delay of the push in microseconds, or 0
// if there was no push.
func (r *Reader) stopAwaiting(p *tableShard, late uint64) {
	q := p.push
	p.push = nil
	if q == nil || r.asked.open[q.id] != q {
		return
	}
	for _, c := range q.calls {
		c.pushed, c.late = true, max(c.late, late)
	}
	r.asked.answered(q, true)
}

// checkAwaiting ends the waits that a shard's last push satisfies.
func (r *Reader) checkAwaiting(s *Shard, late uint64) {
	latest := s.current.latest
	for _, t := range r.tables {
		if t == nil || latest == nil {
			continue
		}
		if p := t.shards[s.id]; p.push != nil && latest.minClock >= p.push.need {
			r.stopAwaiting(p, late)
		}
	}
}

// HandlePush handles changed rows of a shard, and the message that all pushed rows have reached a state. If updates
// wait until every slot has seen that state, the shard is notified.
func (r *Reader) HandlePush(s *Shard, f *wire.Frame, own OwnUpdates) error {
	in := &r.push
	if err := wire.ParsePush(f, in); err != nil {
		return err
	}
	if err := r.checkVector(in.Applied); err != nil {
		return err
	}
	r.stats.Pulled += int64(wire.HeaderBytes + f.PayloadBytes())
	if id := int(in.Table); in.Count > 0 && id < len(r.tables) && r.tables[id] != nil {
		t := r.tables[id]
		p := t.shards[s.id]
		if !t.subscribes {
			return fmt.Errorf("%w: rows were pushed for table %s, which does not use pushes", wire.ErrPayload,
				t.spec.Name)
		}
		values, err := in.Unpack(in.Count, t.spec.Dim, &r.unpacked)
		if err != nil {
			return err
		}
		if !t.has(p, &in.Rows) {
			return fmt.Errorf("%w: rows were pushed for table %s, but some rows belong to another shard",
				wire.ErrPayload, t.spec.Name)
		}
		t.takePush(p, r.contents(s, f.Clock, &in.Answer), &in.Rows, values, own)
		t.limitUnsubscribing(p)
	}
	if f.Flags&wire.FlagLast == 0 {
		return nil
	}
	s.current.latest = r.contents(s, f.Clock, &in.Answer)
	s.RecordMinClock(f.Clock)
	s.joinRound()
	r.checkAwaiting(s, min(in.WaitedMicros, maxWaitUs))
	if r.bounds {
		saw := wire.Header{Kind: wire.KindSeen, Shard: s.id, Request: in.Seq}
		r.asked.due.Frames = append(r.asked.due.Frames, wire.Frame{Header: saw})
	}
	return nil
}

// has reports whether all rows belong to a part.
func (t *Table) has(p *tableShard, rows *wire.Rows) bool {
	if t.spec.Sparse {
		elsewhere := func(row perdure.RowID) bool { return t.shardOf(row) != p }
		return rows.IDs != nil && !slices.ContainsFunc(rows.IDs, elsewhere)
	}
	if rows.IDs == nil {
		return rows.First >= p.first && rows.Count <= p.rows && rows.First-p.first <= perdure.RowID(p.rows-rows.Count)
	}
	return !slices.ContainsFunc(rows.IDs, func(row perdure.RowID) bool {
		return row < p.first || row-p.first >= perdure.RowID(p.rows)
	})
}

// takePush stores pushed rows in the cache, and applies own updates that they lack.
func (t *Table) takePush(p *tableShard, c *contents, in *wire.Rows, values []float32, own OwnUpdates) {
	cc, dim, missing := &p.cache, t.spec.Dim, t.isOwnMissing(p, c, own)
	cc.uniform = false
	var found [lookups]int
	for i := 0; i < in.Count; {
		row, n := in.ID(i), 1
		if in.IDs != nil && i%lookups == 0 {
			cc.findAll(in.IDs[i:min(i+lookups, in.Count)], found[:min(lookups, in.Count-i)])
		}
		at := found[i%lookups]
		if in.IDs == nil {
			at = cc.find(row)
		}
		if in.IDs == nil && cc.index == nil && cc.read != nil {
			for n < in.Count-i && cc.pushed[at+n] == cc.pushed[at] && cc.read[at+n] == cc.read[at] {
				n++
			}
		}
		pushed := cc.isPushed(at)
		for j := 0; j < n && !pushed; j++ {
			p.queueUnsubscribe(row + perdure.RowID(j))
		}
		if old := cc.contents(at); old.known() && !old.newer(c) {
			to := cc.values[at*dim : (at+n)*dim]
			copy(to, values[i*dim:])
			if missing {
				t.applyOwn(to, p, row, n, c, own)
			}
			for j := range n {
				cc.read[at+j] = c
			}
			if pushed {
				cc.pushedAgain(at, at+n)
				p.shard.join(p, row, n)
			}
		}
		i += n
	}
}

// joinRound brings the rows that are older than the last round of pushes, which has just ended, to its state. Any
// change of these rows was in the round.
func (s *Shard) joinRound() {
	latest := s.current.latest
	s.unsynced, s.late = s.late[:0], s.unsynced
	var found [lookups]int
	for k, j := range s.late {
		if k%lookups == 0 {
			s.findLate(s.late[k:min(k+lookups, len(s.late))], &found)
		}
		cc := &j.p.cache
		all := true
		for i := range j.n {
			at := found[k%lookups]
			if i > 0 {
				at = cc.find(j.first + perdure.RowID(i))
			}
			if !cc.isPushed(at) {
				all = false
			} else if cc.read[at].latest == nil {
				if cc.read[at].newer(latest) {
					s.join(j.p, j.first+perdure.RowID(i), 1)
					all = false
					continue
				}
				cc.read[at] = s.current
			}
		}
		cc.uniform = cc.uniform || all && cc.index == nil && j.n == cc.rows
	}
}

// findLate looks up the cache positions of the first rows of runs, at most lookups.
func (s *Shard) findLate(runs []pushedRun, at *[lookups]int) {
	var of [lookups]*table.Index
	var rows [lookups]perdure.RowID
	for i := range runs {
		of[i], rows[i] = runs[i].p.cache.index, runs[i].first
	}
	table.FindEach(of[:len(runs)], rows[:len(runs)], at[:len(runs)])
	for i := range runs {
		if of[i] == nil {
			at[i] = runs[i].p.cache.find(rows[i])
		}
	}
}

// dropUnread ends the subscriptions to rows that have not been read for long, and to those that the cache has lost. It
// ends them here before it notifies the shard, so that no stale row counts as current.
func (r *Reader) dropUnread() {
	for _, t := range r.tables {
		if t == nil || !t.subscribes {
			continue
		}
		for _, p := range t.shards {
			if r.now.Clock%unreadCheckInterval == 0 {
				p.findUnread(r.now.Clock)
			}
			t.sendDrops(p)
		}
	}
}

// unreadCheckInterval is how many clocks pass between two searches for unread rows.
const unreadCheckInterval = 4

// findUnread ends subscriptions to rows that have not been read for long.
func (p *tableShard) findUnread(clock perdure.Clock) {
	cc := &p.cache
	for at, pushed := range cc.pushed {
		if !pushed || !consistency.ShouldUnsubscribe(clock-cc.readAt[at], int(cc.unreadPushes[at])) {
			continue
		}
		p.unsubscribe(at)
	}
}

// unsubscribe ends the subscription of the pushed row at a position.
func (p *tableShard) unsubscribe(at int) {
	cc := &p.cache
	r := cc.contents(at)
	if r == cc.read[at] { // a copy, so that the row does not share the contents of its neighbors
		alone := *r
		r = &alone
	}
	cc.read[at], cc.pushed[at], cc.uniform = r, false, false
	p.queueUnsubscribe(cc.rowAt(at))
}

// Unsubscribe ends the subscription to a row, if there is one. The shard is notified later, together with the rows that
// StartClock finds unread.
func (t *Table) Unsubscribe(row perdure.RowID) {
	p := t.shardOf(row)
	if at := p.cache.find(row); p.cache.isPushed(at) {
		p.unsubscribe(at)
	}
}

// sendDrops tells a part's shard which rows no longer need to be pushed. A row that was read again, and so is pushed
// again, is left out.
func (t *Table) sendDrops(p *tableShard) {
	s := p.shard
	if len(p.unsubscribing) == 0 || !s.open {
		return
	}
	slices.Sort(p.unsubscribing)
	rows := slices.DeleteFunc(slices.Compact(p.unsubscribing), func(row perdure.RowID) bool {
		return p.cache.isPushed(p.cache.find(row))
	})
	if len(rows) > 0 {
		s.drops++ // answers requested earlier do not subscribe
		t.r.stopAwaiting(p, 0)
	}
	for len(rows) > 0 {
		n := min(len(rows), wire.PartBytes/8)
		t.r.asked.due.Frames = append(t.r.asked.due.Frames, wire.Frame{
			Header:  wire.Header{Kind: wire.KindUnsubscribe, Shard: s.id},
			Payload: wire.AppendRows(nil, &wire.Rows{Table: t.id, Count: n, IDs: rows[:n]}),
		})
		rows = rows[n:]
	}
	p.unsubscribing = p.unsubscribing[:0]
}
