package server

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/consistency"
	"github.com/perdure/perdure/placement"
	"github.com/perdure/perdure/table"
	"github.com/perdure/perdure/wire"
)

// shard is one life of one shard on this server: from a restore to the next
// roll-back or move, which makes a new one.
type shard struct {
	s    *Server
	id   perdure.ShardID
	name shardName
	job  perdure.JobSpec
	gone atomic.Bool          // retired: whatever still comes for it is ignored
	said *perdure.ShardStatus // its last status; guarded by Server.mu

	mu       sync.Mutex // guards what follows
	ready    bool       // intake is there and the rows are those it counts
	filled   bool       // the rows are restored; a lost shard still waits for its base
	saving   bool       // a segment is being written: nothing is applied meanwhile
	intake   *consistency.Intake
	parts    []*table.Part // by table
	states   [][]byte      // by slot: what its program saved last, as of the applied vector
	seq      uint64        // updates that the rows contain
	restored content
	waiting  []waitingGet
	acks     []*conn // by slot: where its acknowledgements go
	dirty    []bool  // by slot: its counts have changed since they were acknowledged
	prompt   []bool  // by slot: it waits until all it has sent is applied
	out      pushes
	due      bool // a goroutine is on its way that will pump
	large    bool // a large update was applied since the last acknowledgements
	segments []perdure.Segment
	cut      perdure.Clock // the newest cut that is saved
	end      perdure.Clock // the job's, as of the newest view
	problem  string
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
}

func newShard(s *Server, id perdure.ShardID, n shardName) *shard {
	sh := &shard{
		s: s, id: id, name: n, job: *s.job,
		acks: make([]*conn, s.job.Slots), dirty: make([]bool, s.job.Slots), prompt: make([]bool, s.job.Slots),
	}
	for slot := range perdure.Slot(s.job.Slots) {
		sh.out.to = append(sh.out.to, &outflow{sh: sh, slot: slot})
	}
	return sh
}

func (sh *shard) retired() bool { return sh.gone.Load() }

// retire ends this life of the shard. Those who read ask its successor.
func (sh *shard) retire() {
	sh.gone.Store(true)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.stopWaiting(func(*waitingGet) bool { return true })
}

// stopWaiting forgets reads that wait. It needs sh.mu.
func (sh *shard) stopWaiting(which func(w *waitingGet) bool) {
	sh.waiting = slices.DeleteFunc(sh.waiting, func(w waitingGet) bool {
		if !which(&w) {
			return false
		}
		w.c.waits(-w.bytes())
		return true
	})
}

// fill hands the restored content over.
func (sh *shard) fill(c content) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.restored, sh.filled = c, true
	sh.parts, sh.states, sh.seq = c.parts, c.states, c.seq
}

// follow brings the shard to what the view says and reports whether it serves.
func (sh *shard) follow(v *perdure.View) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.filled {
		return false
	}
	for id := len(sh.parts); id < len(v.Tables); id++ {
		sh.parts = append(sh.parts, newPart(&sh.job, v.Tables[id], perdure.TableID(id), sh.id))
	}
	if !sh.ready && !sh.begin(v) {
		return false
	}
	sh.makeSubs(v.Shards[sh.id].Lost)
	for i, sl := range v.Slots {
		slot := perdure.Slot(i)
		if was := sh.intake.Incarnation(slot); sh.out.seen != nil && was > 0 && was < sl.Incarnation {
			sh.out.seen.Opened(slot) // nobody reads what its former process had cached
		}
		sh.intake.Fence(slot, sl.Incarnation)
		if c := sh.acks[i]; c != nil && c.incarnation < sl.Incarnation {
			sh.acks[i] = nil
			sh.stopPushing(slot)
		}
		if sh.out.seen != nil {
			sh.out.seen.SetActive(slot, sl.Settled && sl.Incarnation > 0)
		}
		if sl.Decided {
			sh.intake.Decide(slot, sl.Incarnation, sl.Start)
		}
	}
	sh.segments = slices.DeleteFunc(sh.segments, func(g perdure.Segment) bool { return g.Cut <= v.Durable })
	sh.setEnd(v.End)
	sh.pump()
	return true
}

// begin makes the intake, once it is known what the rows contain. It needs sh.mu.
func (sh *shard) begin(v *perdure.View) bool {
	applied := sh.restored.applied
	if mine := &v.Shards[sh.id]; mine.Lost {
		if mine.Base == nil {
			return false // the live slots have not told yet what they were acknowledged
		}
		applied = mine.Base
	}
	sh.intake = consistency.NewIntake(sh.job.TwoStep(v.Tables), applied, sh.s.cfg.Weakened)
	sh.cut = v.Cut
	sh.intake.SetCut(sh.job.Recovery.NextCut(sh.intake.MinClock()))
	sh.restored = content{}
	sh.ready = true
	return true
}

// setEnd takes over the job's end, which is a cut too. It needs sh.mu.
func (sh *shard) setEnd(end perdure.Clock) {
	sh.end = end
	sh.intake.SetEnd(end)
	if end <= 0 || sh.job.Recovery.NextCut(0) < 0 || sh.saving {
		return
	}
	least := sh.intake.MinClock()
	next := sh.job.Recovery.NextCut(least)
	if sh.cut < end && least <= end && end < next {
		next = end // the shard may stand there already
	}
	// A cut that the shard stands at is not moved.
	if !sh.intake.AtCut() {
		sh.intake.SetCut(next)
	}
}

func newPart(job *perdure.JobSpec, spec perdure.TableSpec, id perdure.TableID, s perdure.ShardID) *table.Part {
	if spec.Sparse {
		return table.New(spec, id, job.Seed, 0, 0)
	}
	first, rows := placement.Range(spec.Rows, job.Shards, s)
	return table.New(spec, id, job.Seed, first, rows)
}

// pump applies whatever may be applied, saves the shard when it stands at a
// cut, and answers those who waited for either. It needs sh.mu.
func (sh *shard) pump() {
	if sh.saving {
		sh.acknowledge() // what is staged meanwhile
		return
	}
	least := sh.intake.MinClock()
	for u := sh.intake.Next(); u != nil; u = sh.intake.Next() {
		sh.apply(u)
		if now := sh.intake.MinClock(); now > least {
			least = now
			sh.evict(now)
		}
	}
	sh.push()
	if sh.intake.AtCut() {
		sh.saving = true
		seg := sh.segment()
		sh.s.wg.Go(func() { sh.save(seg) })
	}
	sh.answerWaiting()
	sh.acknowledge()
}

// apply changes the rows by an update. Its payloads were checked when they came;
// only a sparse table may have become full since. It needs sh.mu.
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
			if rows != nil {
				rows.add(&b.Block, sh.parts[b.Table].Spec.Dim)
				continue
			}
			sh.applyBlock(&b.Block, u)
		}
		if b.Err() != nil {
			panic(fmt.Sprintf("server: an update that was checked cannot be read: %v", b.Err()))
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
		sh.seq++
	}
	if sh.out.seen != nil {
		sh.out.seen.Applied(u.Slot, u.Clock, sh.seq)
	}
	sh.dirty[u.Slot] = true
	sh.large = sh.large || size >= wire.PromptBytes
	sh.intake.Free(u)
}

// applyBlock needs sh.mu.
func (sh *shard) applyBlock(b *wire.Block, u *consistency.Update) {
	if err := sh.parts[b.Table].ApplyRows(b.First, b.IDs, b.Count, b.Values, u.Clock); err != nil {
		sh.s.fail(fmt.Errorf("server: shard %d cannot apply the update of slot %d, clock %d: %w", sh.id, u.Slot, u.Clock, err))
	}
	if !sh.s.cfg.Weakened.Pushes {
		by := perdure.NoSlot
		if c := sh.acks[u.Slot]; c != nil && c.incarnation == u.Incarnation {
			by = u.Slot // an earlier process's update is not what its successor shows
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
	now := sh.intake.TwoStep() || sh.large || sh.out.seen != nil
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
		if !now && !sh.prompt[slot] {
			later = true
			continue
		}
		if f, owed := sh.ack(c); owed {
			c.send(f)
		}
		sh.prompt[slot] = sh.prompt[slot] && len(sh.intake.Pending(perdure.Slot(slot))) > 0
	}
	if later {
		sh.s.ackSoon()
	}
}

// ack returns the acknowledgement that a connection is owed, if it is. It needs
// sh.mu.
func (sh *shard) ack(c *conn) (f wire.Frame, owed bool) {
	if c.slot < 0 || !sh.dirty[c.slot] || sh.acks[c.slot] != c {
		return f, false
	}
	sh.dirty[c.slot] = false
	return sh.countsFrame(c, wire.KindAck), true
}

// owed adds the acknowledgements that are owed, by connection.
func (sh *shard) owed(to map[*conn][]wire.Frame) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.ready || sh.retired() {
		return
	}
	for _, c := range sh.acks {
		if c == nil {
			continue
		}
		if f, owed := sh.ack(c); owed {
			to[c] = append(to[c], f)
		}
	}
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

// subscribe answers an Open, if the shard is ready.
func (sh *shard) subscribe(c *conn) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.ready || sh.retired() {
		return false
	}
	if c.slot >= 0 {
		if c.incarnation < sh.intake.Incarnation(c.slot) {
			return true // its connection is being closed
		}
		sh.acks[c.slot] = c
		sh.openedBy(c.slot)
	}
	c.send(sh.countsFrame(c, wire.KindOpened))
	if sh.out.seen != nil {
		sh.acknowledge() // others need not wait for what it had cached
	}
	return true
}

// unsubscribe forgets a connection that has ended.
func (sh *shard) unsubscribe(c *conn) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.stopWaiting(func(w *waitingGet) bool { return w.c == c })
	if c.slot >= 0 && sh.acks[c.slot] == c {
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
		return perdure.ShardStatus{Shard: sh.id, Generation: sh.name.generation, Epoch: sh.name.epoch}, false
	}
	defer sh.mu.Unlock()
	st = sh.fullStatus(v)
	sh.said = &st
	return st, true
}

// fullStatus needs sh.mu.
func (sh *shard) fullStatus(v *perdure.View) perdure.ShardStatus {
	st := perdure.ShardStatus{
		Shard: sh.id, Generation: sh.name.generation, Epoch: sh.name.epoch, Ready: sh.ready,
		Segments: slices.Clone(sh.segments), Problem: sh.problem,
	}
	if !sh.ready {
		return st
	}
	st.MinClock, st.Seq = sh.intake.MinClock(), sh.seq
	for i, sl := range v.Slots {
		slot := perdure.Slot(i)
		if !sl.Settled {
			st.Fences = append(st.Fences, perdure.Fence{
				Slot: slot, Incarnation: sh.intake.Incarnation(slot), Counts: sh.intake.Counts(slot),
				Carried: sl.Decided && sh.intake.Carried(slot, sl.Incarnation),
			})
		}
	}
	return st
}
