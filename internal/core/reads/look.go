package reads

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// No client calls what stands here. It is how tests see what is known; since tests of other rooms
// do so too, it cannot be in a test's own file.

// Serve returns how a read of a row would be served at a clock. Like a read it notes that a push
// is waited for.
func (t *Table) Serve(row perdure.RowID, clock perdure.Clock) Serving {
	p := t.part(row)
	s, _ := t.serve(p, p.cache.find(row), clock)
	return s
}

// Look is all that is known of one row.
type Look struct {
	Known    bool // it was read
	Pushed   bool // it is taken for one that is pushed
	Current  bool // what it contains is what its shard's last round of pushes said
	Joining  bool // the next round brings it there
	Unwanted bool // its shard is to be told that it need not be pushed
	Bare     bool // own updates are not on top yet

	Seq                 uint64
	MinClock, FetchedAt perdure.Clock
	Applied             []perdure.Clock // the reader's own, as are Values
	Values              []float32       // nil: there are none
	Coming              uint64          // the request that will replace it; 0: none
}

// Look returns what is known of a row.
func (t *Table) Look(row perdure.RowID) (l Look) {
	p := t.part(row)
	cc := &p.cache
	at := cc.find(row)
	l.Unwanted = slices.Contains(p.unwanted, row)
	l.Joining = slices.ContainsFunc(p.shard.joining, func(j joining) bool {
		return j.p == p && row >= j.first && row-j.first < perdure.RowID(j.n)
	})
	c := cc.contents(at)
	if c == nil {
		return l
	}
	l.Known, l.Pushed, l.Current, l.Bare = c.known(), cc.isPushed(at), cc.read[at].latest != nil, c.topped != nil
	l.Seq, l.MinClock, l.FetchedAt, l.Applied = c.seq, c.minClock, c.fetchedAt, c.applied
	l.Values = cc.row(at)
	if t.r.asked.open[c.renewal] != nil {
		l.Coming = c.renewal
	}
	return l
}

// Asked is a request for rows that is not answered.
type Asked struct {
	ID         uint64
	Rows       *wire.Rows
	Need       perdure.Clock
	Awaited    bool // somebody waits for it
	Subscribes bool // what it brings is pushed from then on, if the table's rows are
}

// Asked returns the requests that are not answered, the oldest first.
func (r *Reader) Asked() (all []Asked) {
	r.asked.each(func(q *request) {
		if q.kind == wire.KindGet {
			all = append(all, Asked{q.id, &q.rows, q.need, len(q.calls) > 0, q.drops == q.shard.drops})
		}
	})
	return all
}

// Cached returns how many bytes may still be cached, and how many cached rows take.
func (r *Reader) Cached() (left, taken int) {
	for _, t := range r.tables {
		if t == nil {
			continue
		}
		for _, p := range t.parts {
			if p.cache.index != nil {
				taken += len(p.cache.read) * p.cache.rowBytes()
			} else {
				taken += p.rows * p.cache.rowBytes()
			}
		}
	}
	return r.left, taken
}
