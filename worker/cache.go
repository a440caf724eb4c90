package worker

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/table"
	"github.com/perdure/perdure/wire"
)

// rows takes an answer to a read into the cache. It needs c.mu.
func (c *Client) rows(sh *shardLink, f *wire.Frame) error {
	g := c.gets[f.Request]
	if g == nil || g.done || g.load || g.shard != sh.id {
		return nil // answered already, or given up
	}
	var a wire.Answer
	if err := wire.ParseAnswer(f.Payload, &a); err != nil {
		return err
	}
	t := g.table
	dim := t.spec.Dim
	if len(a.Values) != g.rows.Count*dim || len(a.Applied) != c.job.Slots {
		return fmt.Errorf("%w: %d values for %d rows of %d", wire.ErrPayload, len(a.Values), g.rows.Count, dim)
	}
	if f.Clock < g.need {
		return nil // a reader believes no answer that breaks its bound
	}
	c.stats.pulled += int64(wire.HeaderBytes + len(f.Payload))
	sh.minClock = max(sh.minClock, f.Clock)
	p := t.parts[sh.id]
	if p.values == nil {
		p.values, p.read = make([]float32, p.rows*dim), make([]*reading, p.rows)
	}
	r := &reading{epoch: sh.epoch, seq: a.Seq, minClock: f.Clock, applied: a.Applied, fetchedAt: c.readClock()}
	p.uniform = g.rows.IDs == nil && g.rows.Count == p.rows
	for i := 0; i < g.rows.Count; {
		at := int(g.rows.ID(i) - p.first)
		if old := p.read[at]; old != nil && old.newer(r) {
			p.uniform = false
			i++
			continue
		}
		run := 1 // rows in a row, all to be replaced
		for ; i+run < g.rows.Count && int(g.rows.ID(i+run)-p.first) == at+run; run++ {
			if old := p.read[at+run]; old != nil && old.newer(r) {
				p.uniform = false
				break
			}
		}
		for j := range run {
			p.read[at+j] = r
		}
		copy(p.values[at*dim:(at+run)*dim], a.Values[i*dim:])
		c.reapply(sh, t, p, at, run)
		i += run
	}
	g.done = true
	if g.ahead > 0 {
		c.drop(f.Request)
	}
	c.broadcast()
	return nil
}

// newer reports whether r was read after other, by the shard's own order.
func (r *reading) newer(other *reading) bool {
	return r.epoch > other.epoch || r.epoch == other.epoch && r.seq > other.seq
}

// reapply puts own updates that a run of fresh rows does not contain on top of
// it, so that the program reads its own writes. It needs c.mu.
func (c *Client) reapply(sh *shardLink, t *Table, p *part, at, run int) {
	if c.slot < 0 {
		return
	}
	contained := p.read[at].applied[c.slot]
	for _, u := range sh.kept {
		if u.clock < contained {
			continue
		}
		for i := range u.blocks {
			if u.blocks[i].Table == t.id {
				t.applyBlock(p, at, run, &u.blocks[i], u.clock)
			}
		}
	}
	if len(p.ids) > 0 && contained <= c.clock {
		dim := t.spec.Dim
		for j := at; j < at+run; j++ {
			if p.touched[j] {
				table.Apply(t.spec.Rule, dim, p.values[j*dim:(j+1)*dim], p.delta[j*dim:(j+1)*dim], c.clock)
			}
		}
	}
}

// applyBlock applies the part of an own update that hits a run of cached rows.
func (t *Table) applyBlock(p *part, at, run int, b *wire.Block, clock perdure.Clock) {
	dim := t.spec.Dim
	first, end := p.first+perdure.RowID(at), p.first+perdure.RowID(at+run)
	apply := func(id perdure.RowID, n, i int) { // n rows from id, the block's from its i-th
		to := int(id-p.first) * dim
		table.Apply(t.spec.Rule, dim, p.values[to:to+n*dim], b.Values[i*dim:(i+n)*dim], clock)
	}
	if b.IDs == nil {
		from, to := max(first, b.First), min(end, b.First+perdure.RowID(b.Count))
		if from < to {
			apply(from, int(to-from), int(from-b.First))
		}
		return
	}
	for i, id := range b.IDs {
		if id >= first && id < end {
			apply(id, 1, i)
		}
	}
}

// Inc adds delta, of Dim values, to the update of one row for the present clock.
func (t *Table) Inc(row perdure.RowID, delta []float32) error { return t.IncRun(row, delta) }

// IncRun is Inc for consecutive rows from first on; delta has a multiple of Dim
// values.
func (t *Table) IncRun(first perdure.RowID, delta []float32) error {
	n := len(delta) / t.spec.Dim
	if err := t.check(first, n, len(delta)); err != nil {
		return err
	}
	return t.inc(&wire.Rows{Table: t.id, First: first, Count: n}, delta)
}

// IncRows is Inc for the given rows; a row named twice gets both deltas.
func (t *Table) IncRows(rows []perdure.RowID, delta []float32) error {
	if len(delta) != len(rows)*t.spec.Dim {
		return fmt.Errorf("%w: table %s: %d values for %d rows of %d", perdure.ErrUsage, t.spec.Name, len(delta), len(rows), t.spec.Dim)
	}
	for _, r := range rows {
		if err := t.check(r, 1, t.spec.Dim); err != nil {
			return err
		}
	}
	return t.inc(&wire.Rows{Table: t.id, Count: len(rows), IDs: rows}, delta)
}

func (t *Table) inc(rows *wire.Rows, delta []float32) error {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slot < 0 {
		return fmt.Errorf("%w: an observer cannot Inc", perdure.ErrUsage)
	}
	if err := c.usable(); err != nil {
		return err
	}
	dim := t.spec.Dim
	for i := 0; i < rows.Count; {
		p, at, run := t.run(rows, i)
		d := delta[i*dim : (i+run)*dim]
		p.add(at, run, dim, d)
		p.show(t, at, run, d)
		i += run
	}
	return nil
}

// show applies deltas of the present clock to the cached rows, at once: the
// program reads its own writes. Rows that were never read are overwritten when
// they come. A row may contain this clock already, done by an earlier process of
// the slot: then the server will ignore these deltas, and so does the cache.
func (p *part) show(t *Table, at, run int, delta []float32) {
	if p.read == nil {
		return
	}
	dim := t.spec.Dim
	for j := 0; j < run; {
		r, k := p.read[at+j], p.same(at+j, at+run)-at
		if r != nil && r.applied[t.c.slot] <= t.c.clock {
			table.Apply(t.spec.Rule, dim, p.values[(at+j)*dim:(at+k)*dim], delta[j*dim:k*dim], t.c.clock)
		}
		j = k
	}
}

// add adds deltas to those of the clock. What a row had before its first of the
// clock is of an earlier one, and is overwritten.
func (p *part) add(at, run, dim int, delta []float32) {
	if p.delta == nil {
		p.delta, p.touched = make([]float32, p.rows*dim), make([]bool, p.rows)
	}
	for j := 0; j < run; {
		touched, k := p.touched[at+j], j+1
		for k < run && p.touched[at+k] == touched {
			k++
		}
		d, sum := delta[j*dim:k*dim], p.delta[(at+j)*dim:(at+k)*dim]
		if touched {
			table.Apply(perdure.Rule{Kind: perdure.RuleAdd}, dim, sum, d, 0)
		} else {
			copy(sum, d)
			for i := at + j; i < at+k; i++ {
				p.touched[i] = true
				p.ids = append(p.ids, p.first+perdure.RowID(i))
			}
		}
		j = k
	}
}

// encode moves the clock's deltas into an update and clears them.
func (p *part) encode(b *partBuilder, t *Table) {
	if len(p.ids) == 0 {
		return
	}
	dim := t.spec.Dim
	most := max(1, (wire.PartBytes-64)/(4*dim+8))
	if len(p.ids) == p.rows {
		for at := 0; at < p.rows; at += most {
			n := min(most, p.rows-at)
			b.block(wire.Block{
				Rows:   wire.Rows{Table: t.id, First: p.first + perdure.RowID(at), Count: n},
				Values: p.delta[at*dim : (at+n)*dim],
			})
		}
	} else {
		values := make([]float32, 0, min(most, len(p.ids))*dim)
		for at := 0; at < len(p.ids); at += most {
			ids := p.ids[at:min(at+most, len(p.ids))]
			values = values[:0]
			for _, id := range ids {
				i := int(id - p.first)
				values = append(values, p.delta[i*dim:(i+1)*dim]...)
			}
			b.block(wire.Block{Rows: wire.Rows{Table: t.id, Count: len(ids), IDs: ids}, Values: values})
		}
	}
	p.clearDeltas()
}

func (p *part) clearDeltas() {
	for _, id := range p.ids {
		p.touched[id-p.first] = false
	}
	p.ids = p.ids[:0]
}

func (t *Table) dropDeltas() {
	for _, p := range t.parts {
		p.clearDeltas()
	}
}

// forget empties the cache.
func (t *Table) forget() {
	for _, p := range t.parts {
		clear(p.read)
		p.uniform = false
	}
	t.expiring, t.expiringBytes = nil, 0
}

// measure counts what a read saw: for every other slot the clock differential,
// and how far the row was behind its shard.
func (t *Table) measure(rows *wire.Rows) {
	c := t.c
	if c.slot < 0 {
		return
	}
	for i := 0; i < rows.Count; {
		p, at, run := t.run(rows, i)
		newest := c.shards[p.shard].minClock
		for j := at; j < at+run; {
			r := p.read[j]
			k := p.same(j, at+run)
			for slot, clocks := range r.applied {
				if perdure.Slot(slot) != c.slot {
					c.stats.differential.add(clocks-1-c.clock, int64(k-j))
				}
			}
			c.stats.lag.add(max(0, newest-r.minClock), int64(k-j))
			j = k
		}
		i += run
	}
}
