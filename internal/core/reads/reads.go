// Package reads implements a client's cache of rows: which rows it has and how fresh they are, which reads are in
// flight, and which rows servers push. It decides how a read is served ([Serving]): from the cache, by an answer or
// push in transit, or by a request.
//
//	call := table.Read(rows, dst, own) // copies out what the cache may answer
//	… the shell carries out TakeActions() and waits until call.Done() …
//	of, again, err := call.End(rows)
//
// No method sends, blocks, or calls its caller, except through the [OwnUpdates] that the caller passes in. The actions
// that a call requires are collected in Actions, and the shell carries them out after each call. An [OwnUpdates]
// supplies the slot's own Incs that rows lack.
//
// Invariants:
//   - A cached row is never replaced by an older one of the same shard.
//   - A row counts as pushed only while its server considers it subscribed. Every event that ends a subscription (a new
//     connection, a drop) ends it here first, and the answer to an earlier request does not subscribe to anything.
//   - Every read is checked against its model's bound, whatever servers claim.
//   - An answer is received into a reader's memory only while its Call waits for it. After Abandon, the memory may be
//     written to until IsReceiving returns false.
//
// Nothing here is safe for concurrent use: the owner's lock guards all of it.
package reads

import (
	"fmt"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// Config is constant for the lifetime of the client.
type Config struct {
	Slot  perdure.Slot // perdure.NoSlot: the client only reads
	Slots int          // initial number of slots of the job: no applied vector is shorter
	// Exact reads need all updates of clocks before the reader's clock, whatever the model says.
	Exact bool
	// OnOutage says whether reads continue while a shard is unavailable, and how far beyond a model's bound they may be
	// then.
	OnOutage perdure.OnOutage
	// OutageRows says whether own updates show in the cached rows of an unavailable shard.
	OutageRows perdure.OutageRows
	Bytes      int // limit for cached rows
}

// continues reports whether reads continue while a shard is unavailable.
func (c *Config) continues() bool { return c.OnOutage.Continue && c.Slot >= 0 }

// Progress is the time at which reads are made, and the membership at that time.
type Progress struct {
	Clock perdure.Clock // of the slot; for an observer, the clock that it has set
	End   perdure.Clock // of the job: no update of a clock ≥ End is ever applied; 0: unknown
	// MinReadClock is the minimum MinClock of any read: under two-step clocks, because updates that the slot's former
	// process had ticked may still wait for other slots, and at the job's end. consistency.AnyClock: no minimum.
	MinReadClock perdure.Clock
	Intervals    []protocol.Interval // by slot: its membership interval
}

// Reader implements the reads of one client. See the package comment.
type Reader struct {
	cfg    Config
	now    Progress
	left   int             // bytes that may still be cached
	known  []perdure.Clock // by slot: the most clocks that any read has found applied
	tables []*Table        // by ID; nil: not used by the program
	shards []*Shard
	basis  basis
	bounds bool // some table's model bounds updates in transit: shards wait for Seen frames

	asked requests
	lives int // 1 + number of rollbacks; answers to requests of an earlier life are ignored
	stats Stats

	answer    wire.Answer // scratch: the answer being processed
	push      wire.Push   // scratch: the push being processed
	unpacked  []float32   // scratch: unpacked values
	freeCalls []*Call
}

// Shard is what a client knows about the replica of a shard that it reads from.
type Shard struct {
	id          perdure.ShardID
	epoch       perdure.Epoch // the current life of the shard
	source      *Source       // the connection that brings its answers; nil: none yet
	open        bool          // it has confirmed that it answers for that life
	unavailable bool          // unavailable: the client continues without it
	last        *contents     // contents of the newest answer

	minClock perdure.Clock // the newest MinClock received

	drops    uint64      // number of drops sent to the shard
	current  *contents   // contents of the rows that are pushed: see contents.latest
	unsynced []pushedRun // pushed rows with contents of their own
	late     []pushedRun // scratch for the next ones
	renewals []*request  // requests to send with the clock's update

	readDuringOutage bool          // the current clock read rows of the shard while it was unavailable
	hidden           bool          // own updates do not show in its cached rows
	since            perdure.Clock // with hidden: own updates from this clock on do not show
}

// Source is a connection that brings answers. The shell has one for each connection, and passes it in.
type Source struct {
	asked     int      // bytes of answers still expected
	receiving *request // the request whose answer is being received into its reader's memory
}

// Actions lists the actions that the shell must carry out immediately.
type Actions struct {
	// Frames are for the replicas that are read from, in this order. Kind, Shard, Request, Clock, Flags and Payload are
	// set, and Slot in a KindLoad. The shell adds the sender and the shard's life.
	Frames []wire.Frame
	// Close lists connections to close: the rest of an answer that is being received into a reader's memory may never
	// arrive.
	Close []*Source
	// Wake reports that some Call is done, or must be checked again.
	Wake bool
}

// New returns a Reader for shards 0 … n-1 of a job.
func New(cfg Config, shards int) *Reader {
	r := &Reader{
		cfg: cfg, left: cfg.Bytes, lives: 1, asked: requests{open: map[uint64]*request{}},
		basis: basis{minClock: wire.NoBasis}, now: Progress{MinReadClock: consistency.AnyClock},
	}
	for s := range shards {
		r.shards = append(r.shards, &Shard{id: perdure.ShardID(s), current: &contents{}})
	}
	return r
}

// Shard returns the state that the client keeps for shard s.
func (r *Reader) Shard(s perdure.ShardID) *Shard { return r.shards[s] }

// SetProgress sets the slot's clock and the membership, which all later reads refer to.
func (r *Reader) SetProgress(now Progress) { r.now = now }

// clock returns the clock for which a read is made: the slot's clock, but at most the job's end. No update of a clock ≥
// the end is ever applied, so no read may wait for one. A slot that was ahead when the job was ended early thus reads
// the final model.
func (r *Reader) clock() perdure.Clock {
	if r.now.End > 0 {
		return min(r.now.Clock, r.now.End)
	}
	return r.now.Clock
}

// TakeActions returns the actions to carry out, including requests whose turn has come. The frames are valid until the
// next call.
func (r *Reader) TakeActions() Actions {
	a := &r.asked
	a.pump()
	due := a.due
	clear(a.spent)
	a.due, a.spent = Actions{Frames: a.spent[:0]}, due.Frames
	return due
}

// Number returns an unused request number.
func (r *Reader) Number() uint64 { return r.asked.next() }

// SetSource sets the shard's current epoch, and the connection that brings its answers.
func (r *Reader) SetSource(s *Shard, source *Source, epoch perdure.Epoch) {
	s.source, s.epoch = source, epoch
}

// Opened records that a shard's replica answers. Requests that were sent to another replica are sent to this one.
func (r *Reader) Opened(s *Shard) {
	s.open = true
	r.asked.each(func(q *request) {
		if q.shard == s && q.asked {
			q.asked = false
			q.count(nil)
			r.asked.queue = append(r.asked.queue, q)
		}
	})
	s.renewals = s.renewals[:0] // the queue contains them
}

// Closed records that a shard's replica does not answer until the next Opened, and has forgotten which rows it had to
// push. Cached rows are kept. Calls that wait for a push check again.
func (r *Reader) Closed(s *Shard) {
	s.open = false
	s.drops++
	s.current, s.unsynced = &contents{}, s.unsynced[:0]
	for _, t := range r.tables {
		if t != nil && t.subscribes {
			p := t.shards[s.id]
			clear(p.cache.pushed)
			p.unsubscribing = p.unsubscribing[:0]
			r.stopAwaiting(p, 0)
		}
	}
}

// MinClock returns the newest MinClock received from the shard.
func (s *Shard) MinClock() perdure.Clock { return s.minClock }

// RecordMinClock records a MinClock of the shard.
func (s *Shard) RecordMinClock(minClock perdure.Clock) { s.minClock = max(s.minClock, minClock) }

// MarkUnavailable records that the client continues without shard s. Calls that wait for its rows check again, and may
// be answered from the cache. If stuck is true, an answer is still being received into a reader's memory, and
// MarkUnavailable must be called again.
func (r *Reader) MarkUnavailable(s *Shard) (stuck bool) {
	s.unavailable = true
	for _, q := range r.asked.open {
		if q.shard != s || len(q.calls) == 0 || q.kind != wire.KindGet && q.kind != wire.KindPush {
			continue
		}
		if q.receiving != nil {
			stuck = true
			r.asked.due.Close = append(r.asked.due.Close, q.receiving)
			continue
		}
		for _, c := range q.calls {
			c.left--
			c.again = true
		}
		q.calls = q.calls[:0]
		r.asked.drop(q)
	}
	r.asked.due.Wake = true
	return stuck
}

// MarkAvailable records that a shard is available again. Rows read from it from now on contain all own updates.
func (r *Reader) MarkAvailable(s *Shard) {
	s.unavailable = false
	if !s.hidden {
		return
	}
	s.hidden = false
	for _, t := range r.tables {
		if t != nil {
			t.shards[s.id].cache.retire(s.since)
		}
	}
}

// RollBack drops all rows and requests, because the job was rolled back to a cut. For calls that wait for
// them, RolledBack returns true.
func (r *Reader) RollBack(cut perdure.Clock) {
	r.lives++
	for _, s := range r.shards {
		s.minClock = cut
	}
	clear(r.known)
	for _, q := range r.asked.open {
		r.asked.drop(q)
	}
	clear(r.asked.queue)
	r.asked.queue = r.asked.queue[:0]
	r.basis = basis{minClock: wire.NoBasis}
	r.Forget()
}

// Forget empties the cache. The next reads may return older rows.
func (r *Reader) Forget() {
	for _, t := range r.tables {
		if t != nil {
			t.forgetAll()
		}
	}
}

// RelaxRequests repeats requests that wait for clocks which the job, having ended early, will not have.
func (r *Reader) RelaxRequests() {
	r.asked.each(func(q *request) {
		if q.kind == wire.KindLoad || r.now.End == 0 {
			return
		}
		if need := q.table.need(r.now.End); need < q.need {
			if q.need = need; q.shard.open && q.asked {
				r.asked.send(q)
			}
		}
	})
	for _, t := range r.tables {
		if t == nil {
			continue
		}
		for _, p := range t.shards {
			r.stopAwaiting(p, 0) // the cached rows may be sufficient now, and nothing more may be pushed
		}
	}
}

// StartClock starts a clock. It empties the caches of tables whose cached rows no later clock may read, if they use an
// index, and ends subscriptions to rows that have not been read for long.
func (r *Reader) StartClock() {
	for _, t := range r.tables {
		if t == nil || t.reuses {
			continue
		}
		for _, p := range t.shards {
			if p.cache.index != nil && len(p.cache.read) > 0 {
				p.cache.forget()
			}
		}
	}
	r.dropUnread()
}

// checkVector rejects an applied vector that is too short for a read of this slot. Every accepted slot is in all
// vectors.
func (r *Reader) checkVector(applied []perdure.Clock) error {
	if n := len(applied); n <= int(r.cfg.Slot) || n < r.cfg.Slots || n > perdure.MaxSlots {
		return fmt.Errorf("%w: applied vector has an invalid length of %d slots", wire.ErrPayload, n)
	}
	return nil
}

// never is the MinClock of rows without contents.
const never = perdure.Clock(math.MinInt64)
