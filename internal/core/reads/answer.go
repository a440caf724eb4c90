package reads

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// maxWaitUs caps the time for which a server claims to have held an answer back, in microseconds.
const maxWaitUs = 1e12

// AnswerBuffer returns the memory to receive an answer into, after its header has arrived but not its n bytes of
// payload. Rows that the reader wants consecutively are received directly into its memory. nil means that the caller
// chooses. The header is not verified yet; if it is wrong, the connection breaks and the reader sends its request
// again.
func (r *Reader) AnswerBuffer(from *Source, f *wire.Frame, n int) []byte {
	q := r.asked.open[f.Request]
	if q == nil || q.kind != wire.KindGet || q.dst == nil || q.receiving != nil || q.rows.Count == 0 ||
		!q.consecutive() {
		return nil
	}
	if f.Flags&(wire.FlagPacked|wire.FlagBF16|wire.FlagInt8) != 0 {
		return nil // unpacked there later: see values
	}
	if q.shard.source != from || q.shard.epoch != f.Epoch {
		return nil // late, from the previous replica
	}
	dim := q.table.spec.Dim
	b, ok := wire.FloatBytes(q.dst[q.to*dim : (q.to+q.rows.Count)*dim])
	head := n - len(b) - wire.AnswerHeaderBytes(0)
	if !ok || head%8 != 0 || head < 8*r.cfg.Slots || head > 8*perdure.MaxSlots {
		return nil
	}
	from.receiving, q.receiving = q, from
	return b
}

// EndReceive records that a connection no longer receives into a reader's memory. It reports whether the request was
// dropped in the meantime: its caller may be waiting for this.
func (r *Reader) EndReceive(from *Source) (givenUp bool) {
	q := from.receiving
	if q == nil {
		return false
	}
	q.receiving, from.receiving = nil, nil
	return r.asked.open[q.id] != q
}

// HandleAnswer handles a shard's answer to a read. It copies the rows to the reader's memory, unless they were received
// there, and to the cache.
func (r *Reader) HandleAnswer(s *Shard, f *wire.Frame, own OwnUpdates) error {
	q := r.asked.open[f.Request]
	if q == nil || q.kind != wire.KindGet || q.shard != s {
		return nil // answered already, or dropped
	}
	if q.receiving != nil {
		// The shard has moved, and its former server's answer is still arriving.
		r.asked.due.Close = append(r.asked.due.Close, q.receiving)
		r.asked.send(q)
		return nil
	}
	a := &r.answer
	if err := wire.ParseAnswer(f, a); err != nil {
		return err
	}
	if err := r.checkVector(a.Applied); err != nil {
		return err
	}
	values, landed, err := r.values(q, a, len(f.Body) > 0)
	if err != nil {
		return err
	}
	if f.Clock < q.need {
		return nil // a reader ignores an answer that violates its bound
	}
	r.stats.Pulled += int64(wire.HeaderBytes + f.PayloadBytes())
	s.RecordMinClock(f.Clock)
	c := r.contents(s, f.Clock, a)
	if q.dst != nil {
		q.calls[0].saw(s, c, q.rows.Count, false)
	}
	for _, call := range q.calls {
		call.held = max(call.held, min(a.WaitedMicros, maxWaitUs))
	}
	r.asked.answered(q, r.take(q, c, values, landed, own))
	return nil
}

// values returns an answer's values, and whether they are in the reader's memory because they were received or unpacked
// there.
func (r *Reader) values(q *request, a *wire.Answer, landed bool) (values []float32, there bool, err error) {
	dim, room := q.table.spec.Dim, &r.unpacked
	if there = landed; a.IsPacked() {
		if there = q.dst != nil && q.consecutive(); there {
			own := q.dst[q.to*dim : (q.to+q.rows.Count)*dim]
			room = &own
		}
	}
	values, err = a.Unpack(q.rows.Count, dim, room)
	return values, there, err
}

// contents describes an answer. Answers from the same state of the shard share it.
func (r *Reader) contents(s *Shard, minClock perdure.Clock, a *wire.Answer) *contents {
	now := r.clock()
	if c := s.last; c != nil && c.epoch == s.epoch && c.seq == a.Seq && c.minClock == minClock &&
		c.fetchedAt == now && slices.Equal(c.applied, a.Applied) {
		return c
	}
	s.last = &contents{epoch: s.epoch, seq: a.Seq, minClock: minClock, applied: slices.Clone(a.Applied), fetchedAt: now}
	if n := len(a.Applied) - len(r.known); n > 0 {
		r.known = append(r.known, make([]perdure.Clock, n)...)
	}
	for slot, clocks := range a.Applied {
		r.known[slot] = max(r.known[slot], clocks)
	}
	return s.last
}

// take copies an answer's values to the reader, unless they were received there, and to the cache, and applies own
// updates. It reports whether the reader must read again because the cache has newer rows.
func (r *Reader) take(q *request, c *contents, values []float32, landed bool, own OwnUpdates) (again bool) {
	t, p := q.table, q.table.shards[q.shard.id]
	switch {
	case q.rows.Count == 0:
		return false
	case p.cache.floor.newer(c):
		return true
	case q.pass || p.cache.index != nil:
		p.cache.floor = contents{epoch: c.epoch, seq: c.seq}
	}
	in := answerStore{
		request: q, p: p, c: c, own: own, values: values, landed: landed, lacks: t.isOwnMissing(p, c, own),
		pushed: t.subscribes && !q.pass && q.drops == q.shard.drops,
	}
	if q.rows.IDs == nil {
		return in.run()
	}
	return in.list()
}

// answerStore is an answer being processed.
type answerStore struct {
	*request
	p      *tableShard
	c      *contents // contents of the rows
	values []float32 // values of the rows
	landed bool      // the values were received into the reader's memory
	own    OwnUpdates
	lacks  bool // own has updates to apply
	pushed bool // the rows are pushed from now on
}

// run processes a run of rows of a dense table.
func (in *answerStore) run() (again bool) {
	t, p, dim := in.table, in.p, in.table.spec.Dim
	first, n, at := in.rows.First, in.rows.Count, int(in.rows.First-in.p.first)
	values := in.values
	if in.dst != nil {
		to := in.dst[in.to*dim : (in.to+n)*dim]
		if !in.landed {
			copy(to, values)
		}
		values = to
		if in.lacks {
			t.applyOwn(values, p, first, n, in.c, in.own)
		}
	}
	cc := &p.cache
	if cc.index != nil {
		in.refresh(values)
		return false
	}
	if in.pass {
		cc.uniform = false
		if cc.read != nil {
			clear(cc.read[at : at+n]) // the reader has newer ones now
		}
		return false
	}
	cc.open(t.subscribes)
	whole := n == p.rows
	for j := at; j < at+n; {
		k := cc.same(j, at+n)
		if old := cc.contents(j); old != nil && old.newer(in.c) {
			again, whole = true, false
			j = k
			continue
		}
		copy(cc.values[j*dim:k*dim], values[(j-at)*dim:])
		if in.dst == nil && in.lacks {
			t.applyOwn(cc.values[j*dim:k*dim], p, p.first+perdure.RowID(j), k-j, in.c, in.own)
		}
		had := cc.read[j]
		for i := j; i < k; i++ {
			cc.read[i] = in.c
		}
		in.shard.rejoin(p, had, j, k)
		j = k
	}
	cc.uniform = whole
	cc.touch(at, at+n, t.r.now.Clock)
	if in.pushed {
		in.shard.subscribed(p, first, at, at+n)
	}
	return again
}

// refresh updates individually cached rows of a run to the values just read.
func (in *answerStore) refresh(values []float32) {
	cc := &in.p.cache
	if cc.index.Len() == 0 {
		return
	}
	for i := range in.rows.Count {
		row := in.rows.ID(i)
		if at := cc.find(row); at >= 0 && (cc.read[at] == nil || !cc.contents(at).newer(in.c)) {
			if in.encoding != perdure.EncodingFloat32 {
				cc.read[at] = nil // a cached row is never rounded; tables that may be read so push no rows
				continue
			}
			had := cc.read[at]
			cc.read[at] = in.c
			copy(cc.row(at), values[i*cc.dim:])
			in.shard.rejoin(in.p, had, at, at+1)
		}
	}
}

// list processes a list of rows.
func (in *answerStore) list() (again bool) {
	t, p, dim, cc := in.table, in.p, in.table.spec.Dim, &in.p.cache
	if in.dst != nil && !in.landed {
		for i, at := range in.at {
			copy(in.dst[int(at)*dim:(int(at)+1)*dim], in.values[i*dim:(i+1)*dim])
		}
	}
	cc.uniform = false
	cc.open(t.subscribes)
	keep := in.keeps()
	if in.dst == nil && t.spec.Consistency.Kind == perdure.BSP {
		// The result of a read must not depend on when a prefetched row arrived. So own updates are applied only when
		// the program reads the row.
		ahead := *in.c
		ahead.withOwn = in.c
		in.c, in.lacks = &ahead, false
	}
	var found [lookups]int
	for i, row := range in.rows.IDs {
		if i%lookups == 0 {
			cc.findAll(in.rows.IDs[i:min(i+lookups, len(in.rows.IDs))], found[:min(lookups, len(in.rows.IDs)-i)])
		}
		v := in.values[i*dim : (i+1)*dim]
		if in.dst != nil {
			v = in.dst[int(in.at[i])*dim : (int(in.at[i])+1)*dim]
		}
		if in.lacks {
			t.applyOwn(v, p, row, 1, in.c, in.own)
		}
		at := cc.still(found[i%lookups], row) // a cached row must not stay older than the row read
		if at < 0 && keep {
			at = t.positionFor(p, row)
		}
		if at < 0 {
			if in.pushed {
				p.queueUnsubscribe(row)
			}
			continue
		}
		cc.touch(at, at+1, t.r.now.Clock)
		if old := cc.contents(at); old != nil && old.newer(in.c) {
			again = true
		} else {
			had := cc.read[at]
			cc.read[at] = in.c
			copy(cc.row(at), v)
			in.shard.rejoin(p, had, at, at+1)
		}
		if in.pushed {
			in.shard.subscribed(p, row, at, at+1)
		}
	}
	t.limitUnsubscribing(p)
	return again
}

// keeps reports whether an answer goes into the cache. It always does if every row has a position. Otherwise it does if
// a later clock may read it there, or if no call waits for it.
func (in *answerStore) keeps() bool {
	return in.p.cache.index == nil || in.dst == nil || in.table.reuses
}
