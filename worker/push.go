package worker

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// subscribes reports whether the table's rows are pushed to this client when it
// has read them.
func (t *Table) subscribes() bool {
	return t.spec.Consistency.Pushed() && t.c.slot >= 0 && !t.c.exact
}

// joining are rows that are pushed, and were read or pushed after the last round:
// the next brings them to where all others are.
type joining struct {
	p     *part
	first perdure.RowID
	n     int
}

// subscribed notes that the rows from ≤ at < end of a part, the first of which is
// the given one, are pushed from now on. It needs c.mu.
func (sh *shardLink) subscribed(p *part, first perdure.RowID, from, end int) {
	for i := range p.cache.pushed[from:end] {
		p.cache.pushed[from+i] = true
	}
	sh.join(p, first, end-from)
}

// rejoin notes that rows from ≤ at < end of a part, which had one reading, are given
// another by an answer that did not subscribe to them. Those that are pushed and
// have a reading of their own are among the joining already. It needs c.mu.
func (sh *shardLink) rejoin(p *part, had *reading, from, end int) {
	if had != sh.current {
		return
	}
	for at := from; at < end; at++ {
		row := p.first + perdure.RowID(at)
		if p.cache.index != nil {
			row = p.cache.index.ID(at)
		}
		sh.join(p, row, 1)
	}
}

func (sh *shardLink) join(p *part, first perdure.RowID, n int) {
	if k := len(sh.joining) - 1; k >= 0 && sh.joining[k].p == p && sh.joining[k].first+perdure.RowID(sh.joining[k].n) == first {
		sh.joining[k].n += n
		return
	}
	sh.joining = append(sh.joining, joining{p, first, n})
}

// unwant notes that a row need not be pushed any more.
func (p *part) unwant(row perdure.RowID) { p.unwanted = append(p.unwanted, row) }

// mostUnwanted is how many rows that need not be pushed wait for the clock's end
// before it is said.
const mostUnwanted = 64 << 10

// shed says it at once where there are very many. It needs c.mu.
func (t *Table) shed(p *part) {
	if len(p.unwanted) >= mostUnwanted {
		t.sendDrops(p)
		t.c.flush()
	}
}

// endPushes forgets which rows of a shard are pushed, since its server does: what
// is cached stays as it is. Who waits for a push looks again. It needs c.mu.
func (c *Client) endPushes(sh *shardLink) {
	sh.subs++
	sh.current, sh.joining = &reading{}, sh.joining[:0]
	for _, t := range c.tables {
		if t != nil && t.subscribes() {
			p := t.parts[sh.id]
			clear(p.cache.pushed)
			p.unwanted = p.unwanted[:0]
			c.stopAwaiting(p, 0)
		}
	}
}

// awaitPush returns what stands for the push that will bring a part's pushed rows
// to what a read needs. It needs c.mu.
func (t *Table) awaitPush(p *part, need perdure.Clock) *get {
	c := t.c
	if g := p.push; g == nil || c.gets[g.id] != g {
		p.push = c.newGet(wire.KindPush, t, p.shard, need)
		c.register(p.push)
	}
	p.push.need = max(p.push.need, need)
	return p.push
}

// stopAwaiting lets those who wait for a part's push look again, because of one
// that took so many microseconds to come. It needs c.mu.
func (c *Client) stopAwaiting(p *part, late uint64) {
	g := p.push
	p.push = nil
	if g == nil || c.gets[g.id] != g {
		return
	}
	for _, b := range g.batches {
		b.pushed, b.late = true, max(b.late, late)
	}
	c.answered(g, true)
}

// checkAwaiting ends the waits for pushes that a shard's last one satisfies. It
// needs c.mu.
func (c *Client) checkAwaiting(sh *shardLink, late uint64) {
	now := sh.current.now
	for _, t := range c.tables {
		if t == nil || now == nil {
			continue
		}
		if p := t.parts[sh.id]; p.push != nil && now.minClock >= p.push.need {
			c.stopAwaiting(p, late)
		}
	}
}

// onPush takes rows that have changed, and the word that all pushed rows are of a
// state. It needs c.mu.
func (c *Client) onPush(sh *shardLink, f *wire.Frame) error {
	in := &c.push
	if err := wire.ParsePush(f, in); err != nil {
		return err
	}
	if err := c.checkVector(in.Applied); err != nil {
		return err
	}
	c.stats.pulled += int64(wire.HeaderBytes + f.PayloadBytes())
	if id := int(in.Table); in.Count > 0 && id < len(c.tables) && c.tables[id] != nil {
		t := c.tables[id]
		p := t.parts[sh.id]
		if !t.subscribes() {
			return fmt.Errorf("%w: rows of table %s, which are not to be pushed", wire.ErrPayload, t.spec.Name)
		}
		if len(in.Values) != in.Count*t.spec.Dim || !t.has(p, &in.Rows) {
			return fmt.Errorf("%w: %d values for %d rows of %d", wire.ErrPayload, len(in.Values), in.Count, t.spec.Dim)
		}
		t.takePush(p, sh, c.reading(sh, f.Clock, &in.Answer), in)
		t.shed(p)
	}
	if f.Flags&wire.FlagLast == 0 {
		return nil
	}
	sh.current.now = c.reading(sh, f.Clock, &in.Answer)
	sh.minClock = max(sh.minClock, f.Clock)
	sh.joinRound()
	c.checkAwaiting(sh, min(in.Waited, mostWaitUs))
	if c.bounds {
		saw := c.shardFrame(sh, wire.KindSaw)
		saw.Request = in.Seq
		c.post(sh.reader, saw)
	}
	return nil
}

// has reports whether rows are a part's.
func (t *Table) has(p *part, rows *wire.Rows) bool {
	if t.spec.Sparse {
		return rows.IDs != nil && !slices.ContainsFunc(rows.IDs, func(row perdure.RowID) bool { return t.part(row) != p })
	}
	if rows.IDs == nil {
		return rows.First >= p.first && rows.Count <= p.rows && rows.First-p.first <= perdure.RowID(p.rows-rows.Count)
	}
	return !slices.ContainsFunc(rows.IDs, func(row perdure.RowID) bool { return row < p.first || row-p.first >= perdure.RowID(p.rows) })
}

// takePush brings pushed rows into the cache, own updates that they do not contain
// applied on top. It needs c.mu.
func (t *Table) takePush(p *part, sh *shardLink, r *reading, in *wire.Push) {
	cc, dim, own := &p.cache, t.spec.Dim, t.pending(sh, r)
	cc.uniform = false
	for i := 0; i < in.Count; {
		row, n := in.ID(i), 1
		at := cc.find(p, row)
		if in.IDs == nil && cc.index == nil && cc.read != nil {
			for n < in.Count-i && cc.pushed[at+n] == cc.pushed[at] && cc.read[at+n] == cc.read[at] {
				n++
			}
		}
		pushed := cc.isPushed(at)
		for j := 0; j < n && !pushed; j++ {
			p.unwant(row + perdure.RowID(j))
		}
		if old := cc.reading(at); old.known() && !old.newer(r) {
			to := cc.values[at*dim : (at+n)*dim]
			copy(to, in.Values[i*dim:])
			if own {
				t.overlay(p, sh, r, &wire.Rows{First: row, Count: n}, to)
			}
			for j := range n {
				cc.read[at+j] = r
			}
			if pushed {
				cc.pushedAgain(at, at+n)
				sh.join(p, row, n)
			}
		}
		i += n
	}
}

// joinRound brings the rows that are older than the last push, which has just
// ended, to its state: whatever had changed of them was in it.
func (sh *shardLink) joinRound() {
	now := sh.current.now
	sh.joining, sh.late = sh.late[:0], sh.joining
	for _, j := range sh.late {
		cc := &j.p.cache
		all := true
		for i := range j.n {
			at := cc.find(j.p, j.first+perdure.RowID(i))
			if !cc.isPushed(at) {
				all = false
			} else if cc.read[at].now == nil {
				if cc.read[at].newer(now) {
					sh.join(j.p, j.first+perdure.RowID(i), 1)
					all = false
					continue
				}
				cc.read[at] = sh.current
			}
		}
		cc.uniform = cc.uniform || all && cc.index == nil && j.n == cc.rows
	}
}

// dropUnread ends the subscriptions to rows that were not read for long, and to
// those that the cache has lost: first here, then there, so that nobody takes a
// row for current that is not. It needs c.mu.
func (c *Client) dropUnread() {
	for _, t := range c.tables {
		if t == nil || !t.subscribes() {
			continue
		}
		for _, p := range t.parts {
			if c.clock%lookEvery == 0 {
				t.findUnread(p)
			}
			t.sendDrops(p)
		}
	}
	c.flush()
}

// lookEvery is how many clocks lie between two looks for rows that are not read any
// more.
const lookEvery = 4

// findUnread notes the pushed rows that were not read for long.
func (t *Table) findUnread(p *part) {
	cc := &p.cache
	for at, pushed := range cc.pushed {
		if !pushed || !consistency.GiveUp(t.c.clock-cc.readAt[at], int(cc.vain[at])) {
			continue
		}
		r := cc.reading(at)
		if r == cc.read[at] { // another reading, so that the row is not taken for its neighbours
			alone := *r
			r = &alone
		}
		cc.read[at], cc.pushed[at], cc.uniform = r, false, false
		row := p.first + perdure.RowID(at)
		if cc.index != nil {
			row = cc.index.ID(at)
		}
		p.unwant(row)
	}
}

// sendDrops tells a part's shard what it need not push any more. A row that was read
// again meanwhile, and so is pushed again, is not dropped.
func (t *Table) sendDrops(p *part) {
	sh := t.c.shards[p.shard]
	if len(p.unwanted) == 0 || !sh.open {
		return
	}
	slices.Sort(p.unwanted)
	rows := slices.DeleteFunc(slices.Compact(p.unwanted), func(row perdure.RowID) bool {
		return p.cache.isPushed(p.cache.find(p, row))
	})
	if len(rows) > 0 {
		sh.subs++ // what was asked for before is not taken for pushed
		t.c.stopAwaiting(p, 0)
	}
	for len(rows) > 0 {
		n := min(len(rows), wire.PartBytes/8)
		f := t.c.shardFrame(sh, wire.KindDrop)
		f.Payload = wire.AppendRows(nil, &wire.Rows{Table: t.id, Count: n, IDs: rows[:n]})
		sh.reader.batch = append(sh.reader.batch, f)
		rows = rows[n:]
	}
	p.unwanted = p.unwanted[:0]
}
