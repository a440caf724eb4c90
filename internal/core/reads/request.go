package reads

import (
	"cmp"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// maxPendingBytes limits the bytes of answers in transit on one connection: a server queues no more for a reader.
	maxPendingBytes = 16 << 20
	// maxFreeRequests is how many requests are kept for reuse.
	maxFreeRequests = 256
	// maxFreeIDs is the maximum number of row IDs that a reused request has memory for.
	maxFreeIDs = 16 << 10
)

// request is an unanswered request to a shard.
type request struct {
	id    uint64
	kind  wire.Kind // KindGet, KindLoad or KindScan; KindPush represents an expected push
	shard *Shard
	table *Table       // nil: KindLoad
	slot  perdure.Slot // KindLoad: whose state is requested
	rows  wire.Rows
	need  perdure.Clock
	bytes int     // approximate size of the answer
	asked bool    // sent, or sent as soon as the shard is open
	on    *Source // the connection whose expected bytes include the answer; nil: none
	sent  int     // number of times
	calls []*Call // calls that wait for it

	dst       []float32        // receives the rows; nil: into the cache only
	pass      bool             // the rows do not go into the cache
	encoding  perdure.Encoding // of the answer
	receiving *Source          // the answer is being received from this connection into dst
	to        int              // index of the first row in dst
	at        []int32          // for a list: the index of each row in dst

	ids     []perdure.RowID // memory for rows.IDs
	payload []byte          // set once it was sent
	drops   uint64          // the shard's drops when it was sent
}

// requests holds the unanswered requests and the resulting actions.
type requests struct {
	open   map[uint64]*request // unanswered, by ID
	queue  []*request          // those that are not sent yet
	number uint64              // of the newest request
	due    Actions
	spent  []wire.Frame // memory for the next Actions.Frames
	spare  []*request   // for reuse
}

// next returns an unused request number.
func (r *requests) next() uint64 {
	r.number++
	return r.number
}

// make returns a new request.
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

// free reuses an answered request. If it was sent more than once, a copy with its payload may still be queued, and it
// is not reused.
func (r *requests) free(q *request) {
	if q.sent > 1 {
		return
	}
	clear(q.calls)
	q.dst, q.table = nil, nil
	if q.rows.IDs != nil {
		q.ids = q.rows.IDs[:0]
	}
	if len(r.spare) < maxFreeRequests && cap(q.ids) <= maxFreeIDs {
		r.spare = append(r.spare, q)
	}
}

// register adds a request, which will be sent.
func (r *requests) register(q *request) {
	r.open[q.id] = q
	q.bytes = wire.HeaderBytes
	if q.kind == wire.KindGet {
		q.bytes += 4 * q.table.spec.Dim * q.rows.Count
	}
}

// enqueue registers a request that is sent when its turn comes.
func (r *requests) enqueue(q *request) {
	r.register(q)
	r.queue = append(r.queue, q)
}

// pump sends the requests whose turn has come.
func (r *requests) pump() {
	if len(r.queue) == 0 {
		return
	}
	r.queue = slices.DeleteFunc(r.queue, func(q *request) bool {
		if r.open[q.id] != q {
			return true // dropped in the meantime
		}
		s := q.shard
		if !s.open || s.source.asked > 0 && s.source.asked+q.bytes > maxPendingBytes {
			return false
		}
		q.asked = true
		q.count(s.source)
		r.send(q)
		return true
	})
}

// count assigns the expected bytes of the answer to a connection, or to none if on is nil.
func (q *request) count(on *Source) {
	if q.on != nil {
		q.on.asked -= q.bytes
	}
	if q.on = on; on != nil {
		on.asked += q.bytes
	}
}

// send adds a request to the due frames.
func (r *requests) send(q *request) {
	if q.kind != wire.KindLoad && len(q.payload) == 0 {
		q.payload = wire.AppendRows(q.payload, &q.rows)
	}
	f := wire.Frame{
		Header:  wire.Header{Kind: q.kind, Slot: q.slot, Shard: q.shard.id, Request: q.id, Clock: q.need},
		Payload: q.payload,
	}
	if q.kind == wire.KindGet && q.table.subscribes && q.toCache() {
		f.Flags |= wire.FlagSubscribe
	}
	f.Flags |= wire.FlagOf(q.encoding)
	q.sent++
	q.drops = q.shard.drops
	r.due.Frames = append(r.due.Frames, f)
}

// toCache reports whether the cache may take rows from the answer. It takes none from a run of rows if the part is too
// large to be cached completely.
func (q *request) toCache() bool {
	return !q.pass && (q.rows.IDs != nil || q.table.shards[q.shard.id].cache.index == nil)
}

// drop removes a request.
func (r *requests) drop(q *request) {
	if r.open[q.id] == q {
		delete(r.open, q.id)
	}
	q.asked = false
	q.count(nil)
}

// each calls f for every request, in the order of creation.
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

// answered ends a request. If again is set, the calls that wait for it must read again.
func (r *requests) answered(q *request, again bool) {
	r.drop(q)
	for _, c := range q.calls {
		c.left--
		c.again = c.again || again
		r.due.Wake = r.due.Wake || c.left == 0
	}
	r.free(q)
}

// extend adds up to n rows to a request of at most most rows, and returns how many it added.
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

// list converts a request for a run to one for a list.
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

// add adds a row to a request for a list. to is its index in dst.
func (q *request) add(row perdure.RowID, to int) {
	q.rows.IDs = append(q.rows.IDs, row)
	q.at = append(q.at, int32(to))
	q.rows.Count++
}

// consecutive reports whether the rows are consecutive in dst.
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

// Call is one read. It is done once all its requests are answered.
type Call struct {
	r        *Reader
	t        *Table           // nil: not a read of a table
	dst      []float32        // receives the rows
	pass     bool             // fetched rows do not go into the cache
	encoding perdure.Encoding // of the answers; if they are rounded, the cache is not used
	left     int              // number of unanswered requests
	again    bool             // some rows are only in the cache now, or were not fresh enough: read again
	made     []*request       // the requests of this call
	open     []*request       // by shard: rows are still being added; nil: none
	saved    [][]byte         // answers to KindLoad
	ids      []perdure.RowID  // answer to KindScan
	count    int              // for KindScan: number of rows that the shard stores
	life     int              // the reader's lives when it started
	clock    perdure.Clock    // the reader's clock when it started; clocks may end while it waits
	seen     []readRecord     // contents of the rows read

	held   uint64 // microseconds for which a server held an answer back
	pushed bool   // it waited for a push
	late   uint64 // microseconds between the event that it waited for and the push
}

// newCall starts a read into dst.
func (r *Reader) newCall(t *Table, dst []float32) *Call {
	var c *Call
	if n := len(r.freeCalls); n > 0 {
		c, r.freeCalls = r.freeCalls[n-1], r.freeCalls[:n-1]
	} else {
		c = &Call{r: r, open: make([]*request, len(r.shards))}
	}
	// Assign the fields separately: a call that finds everything in the cache is so short that writing a whole Call,
	// which is mostly zero already, made it a twentieth slower. open is all nil: see Free.
	c.t, c.dst, c.life, c.clock = t, dst, r.lives, r.clock()
	c.pass, c.encoding, c.left, c.again = false, perdure.EncodingFloat32, 0, false
	c.saved, c.ids, c.count = nil, nil, 0
	c.held, c.pushed, c.late = 0, false, 0
	c.made, c.seen = c.made[:0], c.seen[:0]
	return c
}

// Free reuses a call that is done and no longer used. Its open is empty, because a request is removed from it when it
// is complete.
func (c *Call) Free() {
	clear(c.made)
	clear(c.seen)
	c.r.freeCalls = append(c.r.freeCalls, c)
}

// Done reports whether all requests of the call are answered.
func (c *Call) Done() bool { return c.left == 0 }

// RolledBack reports whether the job was rolled back after the call started. Its requests are then never answered.
func (c *Call) RolledBack() bool { return c.life != c.r.lives }

// Waited returns for how many microseconds servers held an answer to the call back, whether the call waited for a push,
// and how many microseconds after the awaited event the push arrived.
func (c *Call) Waited() (held uint64, pushed bool, late uint64) { return c.held, c.pushed, c.late }

// add enqueues a request of the call.
func (c *Call) add(q *request) {
	c.made = append(c.made, q)
	c.follow(q)
	c.r.asked.enqueue(q)
}

// follow makes the call wait for a request as well.
func (c *Call) follow(q *request) {
	c.left++
	q.calls = append(q.calls, c)
}

// await makes the call wait for a request whose answer goes into the cache only.
func (c *Call) await(q *request) {
	c.again = true
	if len(q.calls) == 0 || q.calls[len(q.calls)-1] != c {
		c.follow(q)
	}
}

// Abandon drops a call's requests. The caller may reuse its memory once IsReceiving returns false.
func (c *Call) Abandon() {
	for _, q := range c.made {
		if len(q.calls) == 0 || q.calls[0] != c {
			continue // it was answered, and is reused by another call
		}
		c.r.asked.drop(q)
		if q.receiving != nil { // the rest of the answer may never arrive: close the connection
			c.r.asked.due.Close = append(c.r.asked.due.Close, q.receiving)
		}
	}
	for _, q := range c.r.asked.open {
		if q.kind == wire.KindPush { // it is never answered, and may stay for long
			q.calls = slices.DeleteFunc(q.calls, func(other *Call) bool { return other == c })
		}
	}
}

// IsReceiving reports whether an answer is still being received into the memory of an abandoned call.
func (c *Call) IsReceiving() bool {
	return slices.ContainsFunc(c.made, func(q *request) bool {
		return len(q.calls) > 0 && q.calls[0] == c && q.receiving != nil
	})
}

// Load requests from shards the state that a slot's program had saved, as of a clock.
func (r *Reader) Load(slot perdure.Slot, from []*Shard, clock perdure.Clock) *Call {
	c := r.newCall(nil, nil)
	c.saved = make([][]byte, len(from))
	for _, s := range from {
		q := r.asked.make(wire.KindLoad, nil, s, clock)
		q.slot = slot
		c.add(q)
	}
	return c
}

// Saved returns the answers to Load, by shard; nil: the shard has no state.
func (c *Call) Saved() [][]byte { return c.saved }

// HandleState handles the answer to a Load.
func (r *Reader) HandleState(f *wire.Frame) {
	if q := r.asked.open[f.Request]; q != nil && q.kind == wire.KindLoad {
		if f.Flags&wire.FlagNone == 0 {
			to := q.calls[0]
			to.saved[slices.Index(to.made, q)] = append([]byte{}, f.Payload...)
		}
		r.asked.answered(q, false)
	}
}

// Probe requests one row of the table from every shard, or no row if it is sparse, however old. A server that answers
// knows the table.
func (t *Table) Probe() *Call {
	c := t.r.newCall(t, nil)
	for _, p := range t.shards {
		q := t.r.asked.make(wire.KindGet, t, p.shard, consistency.AnyClock)
		q.rows.First, q.rows.Count = p.first, min(1, p.rows)
		if t.spec.Sparse {
			q.rows.IDs = q.ids[:0]
		}
		c.add(q)
	}
	return c
}

// Scan asks a shard which rows of a sparse table it stores, starting at index at.
func (t *Table) Scan(s *Shard, at int) *Call {
	c := t.r.newCall(t, nil)
	q := t.r.asked.make(wire.KindScan, t, s, t.need(t.r.clock()))
	q.rows.First, q.rows.Count = perdure.RowID(at), wire.PartBytes/8
	c.add(q)
	return c
}

// Stored returns the answer to Scan, and the number of rows that the shard stores.
func (c *Call) Stored() (ids []perdure.RowID, of int) { return c.ids, c.count }

// HandleIDs handles the answer to a Scan.
func (r *Reader) HandleIDs(f *wire.Frame) error {
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
