package worker

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/wire"
)

// mostAhead bounds the bytes that are asked for ahead, and those noted for it.
const mostAhead = 16 << 20

// expire notes those of the rows just read that the cache will no longer answer
// after the next clock, for renew. With no staleness allowed there is nothing to
// ask for before others have finished.
func (t *Table) expire(rows *wire.Rows) {
	m := t.spec.Consistency
	if m.Kind != perdure.SSP || m.Staleness == 0 || t.c.exact || t.expiringBytes >= mostAhead {
		return
	}
	at := t.ahead()
	t.request(rows, at, func(r *reading) bool { return !t.mayAnswer(r, at) }, func(g *get) {
		t.expiring = append(t.expiring, g.rows)
		t.expiringBytes += 4 * t.spec.Dim * g.rows.Count
	})
}

// ahead is the clock that rows are asked for ahead of: the one after the next.
func (t *Table) ahead() perdure.Clock {
	at := t.c.clock + 2
	if t.c.view.End > 0 {
		at = min(at, t.c.view.End)
	}
	return at
}

// renew asks for the rows that expire and have not been replaced meanwhile. The
// requests go out with the clock's updates, so that the answers come while the
// program computes the next. A request that is on its way will most likely bring
// rows that are fresh enough, whatever it asked for; if not, a read asks again.
func (t *Table) renew() {
	c, at := t.c, t.ahead()
	for i := range t.expiring {
		if c.aheadBytes >= mostAhead {
			break
		}
		t.request(&t.expiring[i], at, func(r *reading) bool {
			return !t.mayAnswer(r, at) && (r == nil || c.gets[r.renewal] == nil)
		}, func(g *get) {
			g.ahead = 4 * t.spec.Dim * g.rows.Count
			c.aheadBytes += g.ahead
			id := c.register(g)
			t.parts[g.shard].mark(&g.rows, id)
			sh := c.shards[g.shard]
			sh.renewals = append(sh.renewals, id)
		})
	}
	t.expiring, t.expiringBytes = t.expiring[:0], 0
}

// mark notes at cached rows which request will replace them.
func (p *part) mark(rows *wire.Rows, request uint64) {
	p.uniform = p.uniform && rows.IDs == nil && rows.Count == p.rows
	var old, marked *reading
	for i := range rows.Count {
		at := int(rows.ID(i) - p.first)
		r := p.read[at]
		if r == nil {
			continue
		}
		if r != old {
			was := *r
			was.renewal = request
			old, marked = r, &was
		}
		p.read[at] = marked
	}
}

// addRenewals appends the requests to send with the clock's update. It needs
// c.mu.
func (c *Client) addRenewals(sh *shardLink, frames []wire.Frame) []wire.Frame {
	for _, id := range sh.renewals {
		if g := c.gets[id]; g != nil {
			frames = append(frames, c.getFrame(sh, id, g))
		}
	}
	sh.renewals = sh.renewals[:0]
	return frames
}
