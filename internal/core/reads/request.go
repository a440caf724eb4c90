package reads

import (
	"cmp"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// mostAsked bounds the bytes of answers that are on their way on one connection: a
	// server keeps no more for a reader than fits in it.
	mostAsked = 16 << 20
	// mostFree is how many requests are kept to be used again.
	mostFree = 256
	// mostFreeIDs is how many rows each of them has room to name.
	mostFreeIDs = 16 << 10
)

// request is what a shard is asked for and has not answered yet.
type request struct {
	id    uint64
	kind  wire.Kind // KindGet, KindLoad or KindScan; KindPush stands for what is to come unasked
	shard *Shard
	table *Table // nil: KindLoad
	rows  wire.Rows
	need  perdure.Clock
	bytes int     // of the answer, about
	asked bool    // sent, or to be sent as soon as the shard is open
	on    *Source // that the answer's bytes are counted on; nil: on none
	sent  int     // how often
	calls []*Call // that wait for it

	dst     []float32 // where the rows go; nil: into the cache only
	pass    bool      // they do not go into the cache
	landing *Source   // the answer is being received from there into dst
	to      int       // the row of dst at which they begin
	at      []int32   // or, for a list, the row of dst for each

	ids     []perdure.RowID // room for rows.IDs
	payload []byte          // once it was sent
	drops   uint64          // the shard's when it was sent
}

// requests are what is asked for, and what is therefore due.
type requests struct {
	open   map[uint64]*request // that are not answered yet, by id
	queue  []*request          // those of them whose turn it is not yet
	number uint64              // of the newest
	due    Due
	spent  []wire.Frame // room for the next Due.Frames
	spare  []*request   // to be used again
}

// next returns a number that no request has had.
func (r *requests) next() uint64 {
	r.number++
	return r.number
}

// make makes a request up.
func (r *requests) make(kind wire.Kind, t *Table, s *Shard, need perdure.Clock) *request {
	var q *request
	if n := len(r.spare); n > 0 {
		q, r.spare = r.spare[n-1], r.spare[:n-1]
	} else {
		q = new(request)
	}
	*q = request{
		id: r.next(), kind: kind, shard: s, table: t, need: need,
		calls: q.calls[:0], at: q.at[:0], ids: q.ids, payload: q.payload[:0],
	}
	if t != nil {
		q.rows.Table = t.id
	}
	return q
}

// free takes back a request that was answered. One that was sent more than once may still
// be queued somewhere, with its payload.
func (r *requests) free(q *request) {
	if q.sent > 1 {
		return
	}
	clear(q.calls)
	q.dst, q.table = nil, nil
	if q.rows.IDs != nil {
		q.ids = q.rows.IDs[:0]
	}
	if len(r.spare) < mostFree && cap(q.ids) <= mostFreeIDs {
		r.spare = append(r.spare, q)
	}
}

// register notes a request, which is to be sent.
func (r *requests) register(q *request) {
	r.open[q.id] = q
	q.bytes = wire.HeaderBytes
	if q.kind == wire.KindGet {
		q.bytes += 4 * q.table.spec.Dim * q.rows.Count
	}
}

// enqueue registers a request that is sent when it is its turn.
func (r *requests) enqueue(q *request) {
	r.register(q)
	r.queue = append(r.queue, q)
}

// pump sends the requests whose turn it is.
func (r *requests) pump() {
	if len(r.queue) == 0 {
		return
	}
	r.queue = slices.DeleteFunc(r.queue, func(q *request) bool {
		if r.open[q.id] != q {
			return true // dropped meanwhile
		}
		s := q.shard
		if !s.open || s.source.asked > 0 && s.source.asked+q.bytes > mostAsked {
			return false
		}
		q.asked = true
		q.count(s.source)
		r.send(q)
		return true
	})
}

// count counts an answer among those that a connection is to bring; nil: among none.
func (q *request) count(on *Source) {
	if q.on != nil {
		q.on.asked -= q.bytes
	}
	if q.on = on; on != nil {
		on.asked += q.bytes
	}
}

// send puts a request among what is due.
func (r *requests) send(q *request) {
	if q.kind != wire.KindLoad && len(q.payload) == 0 {
		q.payload = wire.AppendRows(q.payload, &q.rows)
	}
	f := wire.Frame{
		Header:  wire.Header{Kind: q.kind, Shard: q.shard.id, Request: q.id, Clock: q.need},
		Payload: q.payload,
	}
	if q.kind == wire.KindGet && q.table.subscribes && q.toCache() {
		f.Flags |= wire.FlagSubscribe
	}
	q.sent++
	q.drops = q.shard.drops
	r.due.Frames = append(r.due.Frames, f)
}

// toCache reports whether the cache may take rows from the answer: none of a run of a part
// that is too large to be cached whole.
func (q *request) toCache() bool {
	return !q.pass && (q.rows.IDs != nil || q.table.parts[q.shard.id].cache.index == nil)
}

// drop forgets a request.
func (r *requests) drop(q *request) {
	if r.open[q.id] == q {
		delete(r.open, q.id)
	}
	q.asked = false
	q.count(nil)
}

// each calls f for every request, in the order in which they were made up.
func (r *requests) each(f func(q *request)) {
	all := make([]*request, 0, len(r.open))
	for _, q := range r.open {
		all = append(all, q)
	}
	slices.SortFunc(all, func(a, b *request) int { return cmp.Compare(a.id, b.id) })
	for _, q := range all {
		f(q)
	}
}

// answered ends a request. Calls that wait for it look again if again says so.
func (r *requests) answered(q *request, again bool) {
	r.drop(q)
	for _, c := range q.calls {
		c.left--
		c.again = c.again || again
		r.due.Wake = r.due.Wake || c.left == 0
	}
	r.free(q)
}

// extend adds as many of n rows to a request of at most most rows as fit in, and returns
// how many.
func (q *request) extend(first perdure.RowID, n, to, most int) int {
	n = min(n, most-q.rows.Count)
	if q.rows.IDs == nil && first == q.rows.First+perdure.RowID(q.rows.Count) && to == q.to+q.rows.Count {
		q.rows.Count += n
		return n
	}
	q.list()
	for i := range n {
		q.add(first+perdure.RowID(i), to+i)
	}
	return n
}

// list turns a request for a run into one for a list.
func (q *request) list() {
	if q.rows.IDs != nil {
		return
	}
	q.rows.IDs = q.ids[:0]
	n, first := q.rows.Count, q.rows.First
	q.rows.First, q.rows.Count = 0, 0
	for i := range n {
		q.add(first+perdure.RowID(i), q.to+i)
	}
}

// add adds a row to a request for a list; it goes to the to-th row of dst.
func (q *request) add(row perdure.RowID, to int) {
	q.rows.IDs = append(q.rows.IDs, row)
	q.at = append(q.at, int32(to))
	q.rows.Count++
}

// consecutive reports whether the rows go to dst one after the other.
func (q *request) consecutive() bool {
	for i, at := range q.at {
		if int(at) != int(q.at[0])+i {
			return false
		}
	}
	if len(q.at) > 0 {
		q.to = int(q.at[0])
	}
	return true
}

// Call is one reading: it is done once all its requests are answered.
type Call struct {
	r     *Reader
	t     *Table          // nil: none of a table
	dst   []float32       // what the rows are read into
	pass  bool            // what is fetched does not go into the cache
	left  int             // requests not answered yet
	again bool            // some rows are in the cache only now, or were not fresh enough: read again
	made  []*request      // of this call
	open  []*request      // by shard: rows are still being added; nil: none
	saved [][]byte        // what answers to KindLoad brought
	ids   []perdure.RowID // what an answer to KindScan brought
	count int             // likewise: rows that the shard stores
	life  int             // of the reader, that it was begun in
	clock perdure.Clock   // likewise: clocks may end while it waits
	seen  []sight         // what is being read

	held   uint64 // microseconds that a server held an answer back
	pushed bool   // it waited for a push
	late   uint64 // microseconds that the push came after what it waited for
}

// newCall begins to read into dst.
func (r *Reader) newCall(t *Table, dst []float32) *Call {
	var c *Call
	if n := len(r.freeCalls); n > 0 {
		c, r.freeCalls = r.freeCalls[n-1], r.freeCalls[:n-1]
	} else {
		c = &Call{r: r, open: make([]*request, len(r.shards))}
	}
	// Field by field: a call that finds all in the cache is so short that writing a whole Call,
	// most of which is zero already, made it a twentieth slower. open is all nil: see Free.
	c.t, c.dst, c.life, c.clock = t, dst, r.lives, r.clock()
	c.pass, c.left, c.again = false, 0, false
	c.saved, c.ids, c.count = nil, nil, 0
	c.held, c.pushed, c.late = 0, false, 0
	c.made, c.seen = c.made[:0], c.seen[:0]
	return c
}

// Free takes a call back that is done, and that nobody uses any more. Its open is empty: what
// begins a request takes it out of there when the request is whole.
func (c *Call) Free() {
	clear(c.made)
	clear(c.seen)
	c.r.freeCalls = append(c.r.freeCalls, c)
}

// Done reports whether all that the call asked for has come.
func (c *Call) Done() bool { return c.left == 0 }

// RolledBack reports whether the job has been rolled back since the call was begun: then
// nothing comes for it any more.
func (c *Call) RolledBack() bool { return c.life != c.r.lives }

// Waited returns for how many microseconds of a call's wait servers held an answer back;
// whether it waited for a push, and how many microseconds that came after what it was
// waited for had happened.
func (c *Call) Waited() (held uint64, pushed bool, late uint64) { return c.held, c.pushed, c.late }

// add sends a request of the call, as soon as it is its turn.
func (c *Call) add(q *request) {
	c.made = append(c.made, q)
	c.follow(q)
	c.r.asked.enqueue(q)
}

// follow waits for a request, too.
func (c *Call) follow(q *request) {
	c.left++
	q.calls = append(q.calls, c)
}

// await waits for a request whose answer goes into the cache only.
func (c *Call) await(q *request) {
	c.again = true
	if len(q.calls) == 0 || q.calls[len(q.calls)-1] != c {
		c.follow(q)
	}
}

// Abandon drops a call's requests. Its memory is the caller's again once Receives says so.
func (c *Call) Abandon() {
	for _, q := range c.made {
		if len(q.calls) == 0 || q.calls[0] != c {
			continue // it was answered, and asks for somebody else now
		}
		c.r.asked.drop(q)
		if q.landing != nil { // the rest of the answer may never come: the connection is given up
			c.r.asked.due.Close = append(c.r.asked.due.Close, q.landing)
		}
	}
	for _, q := range c.r.asked.open {
		if q.kind == wire.KindPush { // nothing comes for it, and it may stand for long
			q.calls = slices.DeleteFunc(q.calls, func(other *Call) bool { return other == c })
		}
	}
}

// Receives reports whether an answer is being received into the memory of a call that was
// abandoned.
func (c *Call) Receives() bool {
	return slices.ContainsFunc(c.made, func(q *request) bool {
		return len(q.calls) > 0 && q.calls[0] == c && q.landing != nil
	})
}

// Load asks shards for what they have of what the slot's program had saved, as of a clock.
func (r *Reader) Load(from []*Shard, clock perdure.Clock) *Call {
	c := r.newCall(nil, nil)
	c.saved = make([][]byte, len(from))
	for _, s := range from {
		c.add(r.asked.make(wire.KindLoad, nil, s, clock))
	}
	return c
}

// Saved returns what Load has brought, of each shard; nil: it has nothing.
func (c *Call) Saved() [][]byte { return c.saved }

// TakeState takes the answer to a Load.
func (r *Reader) TakeState(f *wire.Frame) {
	if q := r.asked.open[f.Request]; q != nil && q.kind == wire.KindLoad {
		if f.Flags&wire.FlagNone == 0 {
			to := q.calls[0]
			to.saved[slices.Index(to.made, q)] = append([]byte{}, f.Payload...)
		}
		r.asked.answered(q, false)
	}
}

// Reach asks every shard for one row of the table, or none of a sparse one, however old:
// a server that answers knows the table.
func (t *Table) Reach() *Call {
	c := t.r.newCall(t, nil)
	for _, p := range t.parts {
		q := t.r.asked.make(wire.KindGet, t, p.shard, consistency.Always)
		q.rows.First, q.rows.Count = p.first, min(1, p.rows)
		if t.spec.Sparse {
			q.rows.IDs = q.ids[:0]
		}
		c.add(q)
	}
	return c
}

// Scan asks a shard which rows of a sparse table it stores, from the at-th on.
func (t *Table) Scan(s *Shard, at int) *Call {
	c := t.r.newCall(t, nil)
	q := t.r.asked.make(wire.KindScan, t, s, t.need(t.r.clock()))
	q.rows.First, q.rows.Count = perdure.RowID(at), wire.PartBytes/8
	c.add(q)
	return c
}

// Stored returns what Scan has brought, and how many rows the shard stores.
func (c *Call) Stored() (ids []perdure.RowID, of int) { return c.ids, c.count }

// TakeIDs takes the answer to a Scan.
func (r *Reader) TakeIDs(f *wire.Frame) error {
	q := r.asked.open[f.Request]
	if q == nil || q.kind != wire.KindScan || f.Clock < q.need {
		return nil
	}
	stored, ids, err := wire.ParseIDs(f.Payload)
	if err != nil {
		return err
	}
	c := q.calls[0]
	c.count, c.ids = stored, slices.Clone(ids)
	r.asked.answered(q, false)
	return nil
}
