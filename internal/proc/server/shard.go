package server

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// shard is one replica of a shard on this server: from a restore to the next
// roll-back or move, which makes a new one.
type shard struct {
	s      *Server
	id     perdure.ShardID
	since  uint64    // as in the view's Holder
	name   shardName // the life that it is in; changed under Server.mu and mu
	job    perdure.JobSpec
	traits recovery.Traits
	slots  atomic.Int32         // that entries of the log can be of
	gone   atomic.Bool          // retired: whatever still comes for it is ignored
	said   *perdure.ShardStatus // its last status; guarded by Server.mu

	mu        sync.Mutex // guards what follows
	ready     bool       // it serves, in this epoch
	saving    bool       // a segment is being written while the shard stands at its cut
	view      *perdure.View
	place     place
	log       *chain.Replica[entry] // nil until the rows are restored
	stream    *stream               // nil unless the update log has what this log would
	pred      *conn                 // from the predecessor; nil: it has not asked for anything yet
	logged    []int64               // by slot: what updates and ticks count in the log that are not in the intake
	proposed  proposals
	renewed   bool // it has been in another epoch
	opening   []opening
	box       *outbox   // of the goroutine that holds mu; nil: what is sent goes at once
	incoming  *incoming // the snapshot that is to take the shard's place
	untold    untold
	ticked    []perdure.Clock // by slot: clocks of which ticks were sent on
	scales    bool            // updates are weakened by their age
	scaled    scaled
	tailReads bool // who reads does so at the tail: see perdure.JobSpec.TailReads

	intake   *consistency.Intake // nil: there are no rows yet
	parts    []*table.Part       // by table
	states   [][]byte            // by slot: what its program saved last, as of the applied vector
	seq      uint64              // updates that the rows contain
	waiting  []waitingGet
	acks     []*conn               // by slot: where its acknowledgements go
	dirty    []bool                // by slot: its counts have changed since they were acknowledged
	staged   []bool                // by slot: likewise what is staged, and its worker waits for that
	prompt   []perdure.Clock       // by slot: it waits until its updates of clocks below this are applied
	spoke    []perdure.Incarnation // by slot: the newest process of which the view told in this life, or that opened the shard
	opened   []perdure.Incarnation // by slot: the newest process that opened it to read
	out      pushes
	pumped   bool         // what may be applied was, since it is ready
	taken    perdure.Slot // whose update was taken last
	due      bool         // a goroutine is on its way that will pump
	large    bool         // a large update was applied since the last acknowledgements
	segments []perdure.Segment
	schedule recovery.Schedule // of cuts, as of the log
	cut      perdure.Clock     // the newest cut that the shard has gone on after
	synced   perdure.Clock     // periods after which the others were brought up to date
	mending  mending
	arrears  arrears
	problem  string

	writing   perdure.Clock        // the cut that it has gone on after and that is not known to be saved; 0: none
	behind    bool                 // it is being written here, or its word is on its way
	kept      []checkpoint.FileRef // the segments that the next one can follow; none: it has all rows
	saveTime  time.Duration        // that the last one took to be written
	saveBytes int64                // of it
}

// content is what a shard is restored to.
type content struct {
	parts   []*table.Part
	states  [][]byte
	applied []perdure.Clock
	seq     uint64
}

// waitingGet is a read that the shard's MinClock does not allow yet.
type waitingGet struct {
	c       *conn
	kind    wire.Kind // KindGet or KindScan
	request uint64
	need    perdure.Clock
	rows    wire.Rows
	push    bool // what becomes of the rows is wanted too
	since   time.Time
	others  bool // of its connection's reads wait, for the same, elsewhere: its answer goes with theirs
}

func newShard(s *Server, id perdure.ShardID, n shardName, since uint64) *shard {
	slots := s.job.Slots
	sh := &shard{
		s: s, id: id, since: since, name: n, job: *s.job, traits: s.traits, schedule: recovery.ScheduleOf(s.job.Recovery), logged: make([]int64, slots), ticked: make([]perdure.Clock, slots),
		acks: make([]*conn, slots), dirty: make([]bool, slots), staged: make([]bool, slots), prompt: make([]perdure.Clock, slots), spoke: make([]perdure.Incarnation, slots), opened: make([]perdure.Incarnation, slots),
	}
	sh.slots.Store(int32(slots))
	if sh.traits.Logged() {
		sh.stream = newStream(s.ctx)
	}
	sh.out = sh.newPushes()
	return sh
}

func (sh *shard) retired() bool { return sh.gone.Load() }

// retire ends this life of the shard. Those who read ask its successor.
func (sh *shard) retire() {
	sh.gone.Store(true)
	if sh.stream != nil {
		sh.stream.cancel()
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.opening, sh.incoming = nil, nil
	sh.stopWaiting(func(*waitingGet) bool { return true })
}

// stopWaiting forgets reads that wait. It needs sh.mu.
func (sh *shard) stopWaiting(which func(w *waitingGet) bool) {
	sh.waiting = slices.DeleteFunc(sh.waiting, func(w waitingGet) bool {
		if !which(&w) {
			return false
		}
		w.c.waits(&w, -1)
		return true
	})
}

// fill hands the restored content over.
func (sh *shard) fill(c content, v *perdure.View) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.parts, sh.states, sh.seq, sh.view, sh.problem = c.parts, c.states, c.seq, v, ""
	sh.intake = consistency.NewIntake(false, c.applied, sh.s.cfg.Weakened)
	sh.agree()
	sh.cut = v.RestoredAt(sh.id)
	sh.intake.SetCut(sh.schedule.After(sh.cut))
	sh.makeRoom()
	sh.makeSubs(sh.fromBefore())
	sh.log = chain.New(0, entryBytes, window(&sh.job))
}

// setEnd takes over the job's end, which is a cut too. It needs sh.mu.
func (sh *shard) setEnd(end perdure.Clock) {
	sh.schedule.End = end
	sh.intake.SetEnd(end)
	sh.planCut()
}

// setNamed takes over a cut that was named. It needs sh.mu.
func (sh *shard) setNamed(cut perdure.Clock) {
	sh.schedule.Named = max(sh.schedule.Named, cut)
	sh.planCut()
}

// planCut sets the next cut: of the interval, at the job's end, or one that was named;
// the shard may stand there already. One that it stands at is not moved. It needs sh.mu.
func (sh *shard) planCut() {
	if sh.traits.Saves() && !sh.intake.AtCut() {
		sh.intake.SetCut(sh.schedule.Next(sh.intake.MinClock(), sh.cut))
	}
}

func newPart(job *perdure.JobSpec, spec perdure.TableSpec, id perdure.TableID, s perdure.ShardID) *table.Part {
	if spec.Sparse {
		return table.New(spec, id, job.Seed, 0, 0)
	}
	first, rows := placement.Range(spec.Rows, job.Shards, s)
	return table.New(spec, id, job.Seed, first, rows)
}

// pump applies whatever may be applied, has the shard saved when it stands at a
// cut, and answers those who waited for either. It needs sh.mu.
func (sh *shard) pump() {
	if sh.saving {
		sh.acknowledge() // what is staged meanwhile
		return
	}
	sh.applyAll()
	sh.mend()
	if !sh.held() {
		sh.push()
	}
	sh.saveStanding()
	sh.answerWaiting()
	sh.acknowledge()
	sh.syncPeriodic()
}

// syncPeriodic has the head of a periodic chain bring the others up to it, whenever
// its MinClock has come past another multiple of the period. It needs sh.mu.
func (sh *shard) syncPeriodic() {
	if !sh.place.config.Periodic || !sh.place.config.Head || !sh.ready {
		return
	}
	if n := sh.intake.MinClock() / sh.traits.Period; n > sh.synced {
		sh.synced = n
		sh.log.Sync()
		sh.carryOut()
	}
}

// yield brings the next member up to a head that is to be dropped, and tells the
// coordinator once it is. It needs sh.mu.
func (sh *shard) yield() {
	if !sh.ready || !sh.yields() {
		return
	}
	if sh.log.Shared() {
		sh.s.notify()
	} else if sh.place.config.Periodic {
		sh.log.Sync()
		sh.carryOut()
	}
}

// applyAll applies what may be applied. It needs sh.mu.
func (sh *shard) applyAll() {
	for more := true; more; more = sh.goOn() {
		sh.applyToCut()
	}
}

// applyToCut applies what may be applied before the next cut. It needs sh.mu.
func (sh *shard) applyToCut() {
	least := sh.intake.MinClock()
	for u := sh.intake.Next(); u != nil; u = sh.intake.Next() {
		sh.scale(u, least)
		sh.apply(u)
		if now := sh.intake.MinClock(); now > least {
			least = now
			sh.evict(now)
		}
	}
}

// apply changes the rows by an update. Its payloads were checked when they came to the
// head; only a sparse table may have become full since. It needs sh.mu.
func (sh *shard) apply(u *consistency.Update) {
	size := 0
	var rows *newest
	if u.Repeats {
		rows = gather()
	}
	for i, payload := range u.Parts {
		size += len(payload)
		b := wire.ReadBlocks(payload)
		for b.Next() {
			if rows != nil && sh.fits(&b.Block, u) {
				rows.add(&b.Block, sh.parts[b.Table].Spec.Dim)
			} else if rows == nil {
				sh.applyBlock(&b.Block, u)
			}
		}
		if b.Err() != nil {
			sh.cannotApply(u, b.Err())
		}
		if b.State != nil {
			sh.states[u.Slot] = slices.Clone(b.State)
		}
		u.Parts[i] = nil
		sh.s.buffers.keep(payload)
	}
	if rows != nil {
		rows.each(func(b *wire.Block) { sh.applyBlock(b, u) })
	}
	if !u.Lost {
		sh.seq += uint64(u.Clocks)
	}
	if sh.out.seen != nil {
		sh.out.seen.Applied(u.Slot, u.Last(), sh.seq)
	}
	sh.dirty[u.Slot] = true
	sh.large = sh.large || size >= wire.PromptBytes
	sh.intake.Free(u)
}

// cannotApply ends a server that would go on without what others have applied.
func (sh *shard) cannotApply(u *consistency.Update, err error) {
	sh.s.fail(fmt.Errorf("server: shard %d cannot apply the update of slot %d, clock %d: %w", sh.id, u.Slot, u.Clock, err))
}

// fits reports whether a block is of a table that there is, with as many values as its
// rows have. It needs sh.mu.
func (sh *shard) fits(b *wire.Block, u *consistency.Update) bool {
	if int(b.Table) >= len(sh.parts) || len(b.Values) != b.Count*sh.parts[b.Table].Spec.Dim {
		sh.cannotApply(u, fmt.Errorf("%w: %d values for %d rows of table %d of %d", wire.ErrPayload, len(b.Values), b.Count, b.Table, len(sh.parts)))
		return false
	}
	return true
}

// applyBlock needs sh.mu.
func (sh *shard) applyBlock(b *wire.Block, u *consistency.Update) {
	if !sh.fits(b, u) {
		return
	}
	if err := sh.parts[b.Table].ApplyRows(b.First, b.IDs, b.Count, sh.weakened(b), u.Last()); err != nil {
		sh.cannotApply(u, err)
		return
	}
	if !sh.s.cfg.Weakened.Pushes {
		by := perdure.NoSlot
		if c := sh.acks[u.Slot]; c != nil && c.incarnation == u.Incarnation && sh.scaled.by == 1 {
			by = u.Slot // an earlier process's update is not what its successor shows, nor is a weakened one
		}
		sh.changed(b, by)
	}
}

// evict drops the rows that were not updated for long, where a table asks for it.
// It needs sh.mu.
func (sh *shard) evict(least perdure.Clock) {
	for id, p := range sh.parts {
		if p.Spec.Evict == 0 {
			continue
		}
		p.Evict(least, func(row perdure.RowID) {
			if sub := sh.out.subs[id]; sub != nil {
				sub.Changed(perdure.NoSlot, row)
			}
		})
	}
}

// acknowledge tells the slots whose counts have changed: at once where a worker
// waits for it, or keeps a large update until then; else with the next answer or
// soon. It needs sh.mu.
func (sh *shard) acknowledge() {
	now := sh.large || sh.out.seen != nil
	sh.large = false
	if sh.out.seen != nil {
		sh.newlySeen()
	}
	later := false
	for slot, dirty := range sh.dirty {
		c := sh.acks[slot]
		if c == nil || !dirty {
			continue
		}
		atOnce := now || sh.prompt[slot] != 0
		if !atOnce && !sh.staged[slot] {
			later = true
			continue
		}
		atOnce = atOnce || c.allStaged(sh.intake.Counts(perdure.Slot(slot)).Staged)
		if f, owed := sh.ack(c); owed && atOnce {
			sh.send(c, f)
		} else if owed {
			sh.sendSoon(c, f)
		}
		if sh.intake.Applied()[slot] >= sh.prompt[slot] {
			sh.prompt[slot] = 0
		}
	}
	if later {
		sh.s.tellSoon()
	}
}

// ack returns the acknowledgement that a connection is owed, if it is. It needs
// sh.mu.
func (sh *shard) ack(c *conn) (f wire.Frame, owed bool) {
	if !sh.serves(c) || !sh.dirty[c.slot] {
		return f, false
	}
	sh.dirty[c.slot], sh.staged[c.slot] = false, false
	return sh.countsFrame(c, wire.KindAck), true
}

// countsFrame tells a slot how far it has come. It needs sh.mu.
func (sh *shard) countsFrame(c *conn, kind wire.Kind) wire.Frame {
	var counts perdure.Counts
	if c.slot >= 0 {
		counts = sh.intake.Counts(c.slot)
		if counts.Seen = counts.Applied; sh.out.seen != nil {
			counts.Seen = min(counts.Applied, sh.out.seen.Seen(c.slot))
		}
	}
	f := sh.frame(kind)
	f.Slot, f.Incarnation = c.slot, c.incarnation
	f.Clock = sh.intake.MinClock()
	a := sh.s.buffers.answer(0)
	a.head = wire.AppendCounts(a.head[:0], counts)
	f.Payload, f.Release = a.head, a
	return f
}

func (sh *shard) frame(kind wire.Kind) wire.Frame {
	return wire.Frame{Header: wire.Header{
		Kind: kind, Generation: sh.name.generation, Epoch: sh.name.epoch, Shard: sh.id, Slot: perdure.NoSlot,
	}}
}

// subscribe answers an Open, once all is applied that was received before it. The slot
// has ended so many clocks.
func (sh *shard) subscribe(c *conn, writes bool, ended perdure.Clock) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return
	}
	sh.mending.tell(c.slot, ended)
	sh.arrears.tell(c.slot, ended)
	o := opening{c: c, writes: writes}
	if sh.log != nil {
		o.pos = sh.log.End()
	}
	sh.opening = append(sh.opening, o)
	sh.applyDue()
	sh.answerOpens()
	sh.mendNow()
}

// answerOpens answers the Opens that may be answered. It needs sh.mu.
func (sh *shard) answerOpens() {
	if !sh.ready {
		return
	}
	sh.opening = slices.DeleteFunc(sh.opening, func(o opening) bool {
		if o.pos > sh.log.Applied() || !sh.seats(o.c) {
			return false
		}
		sh.answerOpen(o.c, o.writes)
		return true
	})
}

// answerOpen needs sh.mu.
func (sh *shard) answerOpen(c *conn, writes bool) {
	if c.slot >= 0 && c.incarnation < sh.intake.Incarnation(c.slot) {
		return // its connection is being closed
	}
	c.beginRound()
	switch {
	case c.slot >= 0 && !writes:
		sh.replaces(c)
		sh.acks[c.slot] = c
		sh.openedBy(c)
	case sh.serves(c): // it reads from another replica now
		sh.acks[c.slot] = nil
		sh.stopPushing(c.slot)
	}
	sh.send(c, sh.countsFrame(c, wire.KindOpened))
	if sh.out.seen != nil {
		sh.acknowledge() // others need not wait for what it had cached
	}
}

// unsubscribe forgets a connection that has ended.
func (sh *shard) unsubscribe(c *conn) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.stopWaiting(func(w *waitingGet) bool { return w.c == c })
	sh.opening = slices.DeleteFunc(sh.opening, func(o opening) bool { return o.c == c })
	if sh.pred == c {
		sh.pred = nil
	}
	if c.taking != nil && sh.incoming == c.taking {
		sh.incoming = nil
	}
	if sh.serves(c) {
		sh.acks[c.slot] = nil
		sh.stopPushing(c.slot)
	}
}

// status tells the coordinator how far this shard is.
//
// A shard that is at work for long says again what it said last: every status was
// true at its time, and a server that is silent would be taken for dead.
func (sh *shard) status(v *perdure.View) (st perdure.ShardStatus, fresh bool) {
	if !sh.mu.TryLock() {
		if sh.said != nil {
			return *sh.said, false
		}
		return perdure.ShardStatus{Shard: sh.id, Generation: sh.name.generation, Epoch: sh.name.epoch, Since: sh.since}, false
	}
	defer sh.mu.Unlock()
	st = sh.fullStatus(v)
	sh.said = &st
	return st, true
}

// fullStatus needs sh.mu.
func (sh *shard) fullStatus(v *perdure.View) perdure.ShardStatus {
	st := perdure.ShardStatus{
		Shard: sh.id, Generation: sh.name.generation, Epoch: sh.name.epoch, Since: sh.since, Ready: sh.ready,
		Joined:   sh.joined(),
		Segments: slices.Clone(sh.segments), Problem: sh.problem, SaveSeconds: sh.saveTime.Seconds(), SaveBytes: sh.saveBytes,
		Unread: sh.unread(),
	}
	if !sh.ready {
		if sh.intake != nil && sh.place.config.Head && v.Shards[sh.id].Lost {
			sh.applyDue() // what is applied later is not lost
			st.Applied, st.Seq = slices.Clone(sh.intake.Applied()), sh.seq
		}
		return st
	}
	st.MinClock, st.Seq, st.Roster = sh.intake.MinClock(), sh.seq, sh.intake.Roster()
	st.Named, st.Whole = sh.schedule.Named, sh.mending.whole
	st.Missed = sh.place.config.Head && sh.writing > 0 && sh.writing >= sh.schedule.Named && !sh.behind && !sh.saving
	st.Yielded = sh.yields() && sh.log.Shared()
	for i, sl := range v.Slots {
		slot := perdure.Slot(i)
		if i >= len(sh.intake.Applied()) {
			break // its roster is on its way
		}
		if !sl.Settled {
			st.Fences = append(st.Fences, perdure.Fence{
				Slot: slot, Incarnation: sh.intake.Incarnation(slot), Counts: sh.intake.Counts(slot),
				Carried: sl.Decided && sh.intake.Carried(slot, sl.Incarnation),
			})
		}
	}
	return st
}
