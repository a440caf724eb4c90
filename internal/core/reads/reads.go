// Package reads implements a client's cache of rows: which rows it has and how fresh they are, which reads are in
// flight, and what servers push. It decides how a read is served ([Serving]): from the cache, by what is on its
// way, or by a request.
//
//	call := table.Read(rows, dst, own) // copies out what the cache may answer
//	… the shell sends Due() and waits until call.Done() …
//	of, again, err := call.End(rows)
//
// Nothing here sends, waits or calls its caller: what is to be done stands in Due, and the
// shell carries it out after each call. What the slot itself has Inc'd, and a row that was
// read lacks, is asked of an [Own] that the caller hands in.
//
// Invariants:
//   - No cached row is replaced by an older one of the same shard.
//   - A row is taken for pushed only while its server takes it for subscribed: whatever ends
//     a subscription (a new connection, a drop) ends it here first, and an answer to a
//     request that was sent before subscribes to nothing.
//   - What a read returns is measured against its model's bound, whatever servers say.
//   - Answers are received into a reader's memory only while its Call waits for them, or
//     until Receives says that none is.
//
// Nothing here is safe for concurrent use: its owner's lock guards all of it.
package reads

import (
	"fmt"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
)

// Config is what is so for as long as the client lives.
type Config struct {
	Slot  perdure.Slot // perdure.NoSlot: it reads only
	Slots int          // that the job began with: no applied vector is of fewer
	// Exact reads need all updates of clocks before the reader's, whatever the model says.
	Exact bool
	// OnOutage says whether reads go on while a shard is out, and how far beyond a model's
	// bound they may be then.
	OnOutage perdure.OnOutage
	// OutageRows says whether own updates show in the cached rows of a shard that is out.
	OutageRows perdure.OutageRows
	Bytes      int // that cached rows may take
}

// continues reports whether reads go on while a shard is out.
func (c *Config) continues() bool { return c.OnOutage.Continue && c.Slot >= 0 }

// Moment is when reads are made, and who takes part in the job then.
type Moment struct {
	Clock perdure.Clock // of the slot; of an observer, the one that it has set
	End   perdure.Clock // of the job: no update of a clock ≥ End is ever applied; 0: not known
	// Begun is the least MinClock of any read under two-step clocks: what the slot's former
	// process had ticked may still wait for other slots. consistency.Always: any will do.
	Begun perdure.Clock
	Spans []words.Span // by slot: in which clocks it takes part
}

// Reader is one client's reads. See the package comment.
type Reader struct {
	cfg    Config
	now    Moment
	left   int             // bytes that may still be cached
	known  []perdure.Clock // by slot: how many of its clocks are applied somewhere, as far as was read
	tables []*Table        // by id; nil for those that nobody asked for
	shards []*Shard
	basis  basis
	bounds bool // some table's model bounds what is in transit: shards wait to be told what was seen

	asked requests
	lives int // roll-backs so far, and 1: no answer counts in another life
	stats Stats

	answer    wire.Answer // the one that is being taken
	push      wire.Push   // likewise
	room      []float32   // scratch: values that came packed
	freeCalls []*Call
}

// Shard is what a client knows of the replica of a shard that it reads from.
type Shard struct {
	id     perdure.ShardID
	epoch  perdure.Epoch // the life of the shard that is meant
	source *Source       // the connection that its answers come on; nil: none yet
	open   bool          // it has said that it answers for that life
	out    bool          // the client goes on without it
	last   *contents     // of the newest answer

	minClock perdure.Clock // newest that was heard of

	drops    uint64     // how often it was said what need not be pushed any more
	current  *contents  // of the rows that are pushed: see contents.latest
	joining  []joining  // rows that are pushed and have contents of their own
	late     []joining  // room for the next ones
	renewals []*request // that go out with the clock's update

	alone  bool          // the present clock read rows of the shard while it was out
	hidden bool          // own updates do not show in its cached rows
	since  perdure.Clock // likewise: those of this clock and later ones
}

// Source is a connection that answers come on. The shell has one for each, and hands it in.
type Source struct {
	asked   int      // bytes of answers that are to come
	landing *request // whose answer is being received into its reader's memory
}

// Due is what the shell is to do, at once.
type Due struct {
	// Frames are for the replicas that are read from, in this order. Kind, Shard, Request,
	// Clock, Flags and Payload are set. The shell adds the sender, and which life is meant.
	Frames []wire.Frame
	// Close are connections to be closed: the rest of an answer, which is being received
	// into somebody's memory, may never come.
	Close []*Source
	// Wake says that some Call is done, or must look again.
	Wake bool
}

// New begins to read from shards 0 … n-1 of a job.
func New(cfg Config, shards int) *Reader {
	r := &Reader{
		cfg: cfg, left: cfg.Bytes, lives: 1, asked: requests{open: map[uint64]*request{}},
		basis: basis{least: wire.NoBasis}, now: Moment{Begun: consistency.Always},
	}
	for s := range shards {
		r.shards = append(r.shards, &Shard{id: perdure.ShardID(s), current: &contents{}})
	}
	return r
}

// Shard returns what is known of a shard.
func (r *Reader) Shard(s perdure.ShardID) *Shard { return r.shards[s] }

// SetMoment says when reads are made from now on.
func (r *Reader) SetMoment(now Moment) { r.now = now }

// clock is the clock that reads are made at. No update of a clock ≥ the job's end is ever
// applied, so nobody waits for one: a slot that was ahead when the job was ended early
// reads the model as it ends.
func (r *Reader) clock() perdure.Clock {
	if r.now.End > 0 {
		return min(r.now.Clock, r.now.End)
	}
	return r.now.Clock
}

// Due returns what is to be done, requests whose turn has come among it. The frames are
// the caller's until it asks again.
func (r *Reader) Due() Due {
	a := &r.asked
	a.pump()
	due := a.due
	clear(a.spent)
	a.due, a.spent = Due{Frames: a.spent[:0]}, due.Frames
	return due
}

// Number returns a number that no request has had.
func (r *Reader) Number() uint64 { return r.asked.next() }

// Direct says which life of a shard is meant, and on which connection its answers come.
func (r *Reader) Direct(s *Shard, source *Source, epoch perdure.Epoch) {
	s.source, s.epoch = source, epoch
}

// Opened notes that a shard's replica answers: what was wanted of another is asked of it.
func (r *Reader) Opened(s *Shard) {
	s.open = true
	r.asked.each(func(q *request) {
		if q.shard == s && q.asked {
			q.asked = false
			q.count(nil)
			r.asked.queue = append(r.asked.queue, q)
		}
	})
	s.renewals = s.renewals[:0] // they were among them
}

// Closed notes that a shard's replica does not answer, until Opened says that it does, and
// has forgotten which rows it was to push. What is cached stays as it is. Calls that wait
// for a push look again.
func (r *Reader) Closed(s *Shard) {
	s.open = false
	s.drops++
	s.current, s.joining = &contents{}, s.joining[:0]
	for _, t := range r.tables {
		if t != nil && t.subscribes {
			p := t.parts[s.id]
			clear(p.cache.pushed)
			p.unwanted = p.unwanted[:0]
			r.stopAwaiting(p, 0)
		}
	}
}

// MinClock returns the newest MinClock of the shard that was heard of.
func (s *Shard) MinClock() perdure.Clock { return s.minClock }

// Heard notes a MinClock of the shard.
func (s *Shard) Heard(minClock perdure.Clock) { s.minClock = max(s.minClock, minClock) }

// Out notes that the client goes on without a shard, and lets calls that wait for its rows
// look again: what they may read meanwhile they find in the cache. It reports whether an
// answer is still being received into somebody's memory: then it is to be called again.
func (r *Reader) Out(s *Shard) (stuck bool) {
	s.out = true
	for _, q := range r.asked.open {
		if q.shard != s || len(q.calls) == 0 || q.kind != wire.KindGet && q.kind != wire.KindPush {
			continue
		}
		if q.landing != nil {
			stuck = true
			r.asked.due.Close = append(r.asked.due.Close, q.landing)
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

// Back notes that a shard is there again. What is read of it from now on has all own
// updates in it.
func (r *Reader) Back(s *Shard) {
	s.out = false
	if !s.hidden {
		return
	}
	s.hidden = false
	for _, t := range r.tables {
		if t != nil {
			t.parts[s.id].cache.retire(s.since)
		}
	}
}

// RollBack forgets all that was read, since the job has gone back to a cut, and what was
// asked for: calls that wait for that see it by RolledBack.
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
	r.basis = basis{least: wire.NoBasis}
	r.Forget()
}

// Forget empties the cache, and what is read next may be older.
func (r *Reader) Forget() {
	for _, t := range r.tables {
		if t != nil {
			t.forgetAll()
		}
	}
}

// NeedLess asks again for what waits for clocks that the job, ended early, will not have.
func (r *Reader) NeedLess() {
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
		for _, p := range t.parts {
			r.stopAwaiting(p, 0) // what is cached may do now, and nothing more be pushed
		}
	}
}

// Tidy begins a clock: it forgets the cached rows of tables that nobody will read any
// more, all that stand in an index unless later clocks may read them, and ends
// subscriptions to rows that were not read for long.
func (r *Reader) Tidy() {
	for _, t := range r.tables {
		if t == nil || t.reuses {
			continue
		}
		for _, p := range t.parts {
			if p.cache.index != nil && len(p.cache.read) > 0 {
				p.cache.forget()
			}
		}
	}
	r.dropUnread()
}

// checkVector refuses an applied vector that a slot's own reads cannot come with: whoever
// is let in finds itself in all of them.
func (r *Reader) checkVector(applied []perdure.Clock) error {
	if n := len(applied); n <= int(r.cfg.Slot) || n < r.cfg.Slots || n > perdure.MaxSlots {
		return fmt.Errorf("%w: applied vector of %d slots", wire.ErrPayload, n)
	}
	return nil
}

// never is the MinClock of what is in no row.
const never = perdure.Clock(math.MinInt64)
