package reads

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// Clients do not call the functions in this file. They let tests observe the state of a Reader. Tests of other packages
// also use them, so they cannot be in a test file.

// Serve returns how a read of a row would be served at a clock. Like a read, it records that a push is awaited.
func (t *Table) Serve(row perdure.RowID, clock perdure.Clock) Serving {
	p := t.shardOf(row)
	s, _ := t.serve(p, p.cache.find(row), clock)
	return s
}

// RowState is everything known about one row.
type RowState struct {
	Known      bool // it was read
	Pushed     bool // it counts as pushed
	Current    bool // its contents are those of the shard's last round of pushes
	Joining    bool // the next round brings it there
	Unwanted   bool // the shard will be told to stop pushing it
	WithoutOwn bool // own updates are not applied yet

	Seq                 uint64
	MinClock, FetchedAt perdure.Clock
	Applied             []perdure.Clock // shared with the reader, like Values
	Values              []float32       // nil: none
	PendingRequest      uint64          // the request that will replace it; 0: none
}

// Inspect returns everything known about a row.
func (t *Table) Inspect(row perdure.RowID) (l RowState) {
	p := t.shardOf(row)
	cc := &p.cache
	at := cc.find(row)
	l.Unwanted = slices.Contains(p.unsubscribing, row)
	l.Joining = slices.ContainsFunc(p.shard.unsynced, func(j pushedRun) bool {
		return j.p == p && row >= j.first && row-j.first < perdure.RowID(j.n)
	})
	c := cc.contents(at)
	if c == nil {
		return l
	}
	l.Known, l.Pushed, l.Current, l.WithoutOwn = c.known(), cc.isPushed(at), cc.read[at].latest != nil, c.withOwn != nil
	l.Seq, l.MinClock, l.FetchedAt, l.Applied = c.seq, c.minClock, c.fetchedAt, c.applied
	l.Values = cc.row(at)
	if t.r.asked.open[c.pendingRequest] != nil {
		l.PendingRequest = c.pendingRequest
	}
	return l
}

// PendingRequest is an unanswered request for rows.
type PendingRequest struct {
	ID         uint64
	Rows       *wire.Rows
	Need       perdure.Clock
	Awaited    bool // some call waits for it
	Subscribes bool // the answer subscribes to the rows, if the table's rows are pushed
}

// PendingRequests returns the unanswered requests, oldest first.
func (r *Reader) PendingRequests() (all []PendingRequest) {
	r.asked.each(func(q *request) {
		if q.kind == wire.KindGet {
			all = append(all, PendingRequest{q.id, &q.rows, q.need, len(q.calls) > 0, q.drops == q.shard.drops})
		}
	})
	return all
}

// Cached returns how many bytes may still be cached, and the size of the cached rows.
func (r *Reader) Cached() (left, taken int) {
	for _, t := range r.tables {
		if t == nil {
			continue
		}
		for _, p := range t.shards {
			if p.cache.index != nil {
				taken += len(p.cache.read) * p.cache.rowBytes()
			} else {
				taken += p.rows * p.cache.rowBytes()
			}
		}
	}
	return r.left, taken
}
