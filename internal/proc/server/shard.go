package server

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// shard surrounds one replica of a shard on this server. A rollback or a move replaces it by a new one. It feeds the
// replica from its log and carries out the replica's effects.
type shard struct {
	s      *Server
	id     perdure.ShardID
	since  uint64 // as in protocol.Holder
	job    perdure.JobSpec
	traits recovery.Traits
	slots  slotCount   // the number of slots that log entries may belong to
	gone   atomic.Bool // the shard is retired: later frames and events are ignored
	// publishedName is the name of link, for goroutines that do not hold the shard's lock.
	publishedName atomic.Pointer[chain.Fence]

	// Server.mu guards the fields below.
	lastStatus *protocol.ShardStatus // the last status
	follower   viewFollower
	opening    uint64 // number of calls of claimPendingOpens

	mu                lock // guards the fields below
	rep               *replica.Replica
	view              *protocol.View
	position          chainPosition // according to view
	neighbours        neighbours
	link              chain.Link
	sender            sender
	service           service
	stream            *shardstore.Stream // nil unless the update log replaces the chain's log
	incoming          *incomingCopy      // the snapshot that will replace the shard's state
	applyScheduled    bool               // a goroutine is scheduled to apply updates
	applyInBackground func()             // the body of that goroutine; allocated once so that updates allocate nothing
	saver             *shardstore.Saver
}

func newShard(s *Server, id perdure.ShardID, n chain.Fence, since uint64) *shard {
	began := time.Now()
	sh := &shard{
		s:      s,
		id:     id,
		since:  since,
		job:    *s.job,
		traits: s.traits,
		link: chain.NewLink(
			chain.LinkOptions{Fence: n, Job: s.job, Solo: s.traits.UsesLog(), AcceptAll: s.cfg.mutations.Generations}),
	}
	sh.rep = replica.New(replica.Settings{
		Shard: id, Job: *s.job, SaveChangedOnly: s.cfg.Sparing, Mutations: s.cfg.mutations,
		Elapsed: func() float64 { return time.Since(began).Seconds() }, Progress: sh.mu.Progress,
	})
	sh.publishedName.Store(&n)
	sh.sender.scheduleFlush = s.scheduleFlush
	sh.service = service{
		rep:     sh.rep,
		link:    &sh.link,
		sender:  &sh.sender,
		buffers: &s.buffers,
		log:     s.admission.Connections(),
		began:   began,
		pushes:  newPushStreams(s.ctx, &sh.mu, s.job.Shards),
	}
	sh.applyInBackground = func() {
		defer s.wg.Done()
		sh.mu.Lock()
		defer sh.mu.Unlock()
		sh.applyScheduledLocked()
	}
	sh.slots.grow(s.job.Slots)
	sh.saver = shardstore.NewSaver(s.ctx, shardstore.SaverSettings{
		Job: &sh.job, Shard: id, Lock: &sh.mu, Store: s.cfg.Store, ReadSem: s.shared.readSem,
		Log: s.cfg.Log, Notify: s.notify, Counts: &s.shared.saves,
	})
	if sh.traits.UsesLog() {
		shards := int64(s.job.Shards)
		sh.stream = shardstore.NewStream(s.ctx, shardstore.StreamSettings{
			Shard: id, Lock: &sh.mu, Store: s.cfg.Snapshots, Limits: shardstore.SnapshotLimits{
				Job: s.job.ID, Interval: s.cfg.SnapshotBytes / shards, MaxLogBytes: s.cfg.LogBytes / shards,
			},
		})
	}
	return sh
}

func (sh *shard) retired() bool { return sh.gone.Load() }

// retireLocked stops this shard. Its readers turn to its successor. The caller must hold Server.mu.
func (sh *shard) retireLocked() {
	s := sh.s
	sh.gone.Store(true)
	sh.saver.Retire()
	if sh.stream != nil {
		sh.stream.Retire()
	}
	delete(s.shards, sh.id)
	s.shared.retiring[sh] = struct{}{}
	s.wg.Go(func() { // the shard's lock may be held
		sh.mu.Lock()
		sh.incoming = nil
		sh.rep.Readers.Retire()
		sh.applyEffectsLocked()
		past := workCountsLocked(sh.rep, &sh.service)
		sh.mu.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.shared.retiring, sh)
		s.shared.retiredCounts.add(past)
	})
}

// isCurrentLocked reports whether a frame is for the current generation and epoch of the shard. Other frames are
// ignored, and their senders open the shard again once they know the newer view. The caller must hold sh.mu, because
// the epoch may have changed while the frame waited for that lock.
func (sh *shard) isCurrentLocked(f *wire.Frame) bool {
	return sh.link.Fence() == chain.FenceOf(&f.Header) || sh.s.cfg.mutations.Generations
}

// setContentLocked sets the shard's state to the content restored for view v, and then follows the newest view. The
// caller must hold sh.mu.
func (sh *shard) setContentLocked(c replica.Content, v *protocol.View) {
	sh.saver.ClearProblemLocked()
	sh.rep.SetContent(c, v)
	sh.slots.grow(len(sh.rep.State.Applied()))
	sh.link.Start()
	sh.followLocked(sh.view, &sh.position)
}

// advanceLocked takes entries from the log and carries out the effects until there are none left. The caller must hold
// sh.mu.
func (sh *shard) advanceLocked() {
	for again := true; again; {
		large := sh.processLogLocked()
		if !sh.rep.State.HasRows() {
			return
		}
		if large && sh.s.shared.parallel && !sh.applyScheduled && sh.rep.Ready() && !sh.rep.Readers.HasPendingOpens() {
			// Another core applies the update while this connection receives its next frames.
			sh.applyScheduled = true
			sh.rep.MarkClean()
			sh.applyEffectsLocked()
			sh.s.wg.Add(1)
			go sh.applyInBackground()
			return
		}
		again = false
		if sh.rep.Dirty() {
			sh.rep.Settle()
			again = sh.applyEffectsLocked()
		}
		sh.rep.AnswerOpens(sh.link.Applied())
		sh.applyEffectsLocked()
	}
}

// processLogLocked passes the log's entries to the replica, sends the log's messages, and appends the facts that follow
// from the view, until nothing is left. It reports whether there is a large complete update that the replica has not
// applied yet. The caller must hold sh.mu.
func (sh *shard) processLogLocked() (large bool) {
	for {
		r := sh.link.Ready()
		for i := range r.Apply {
			large = sh.stepLocked(&r.Apply[i]) || large
		}
		for i := range r.Messages {
			sh.sendMessageLocked(&r.Messages[i])
		}
		for to, p := range sh.neighbours.receivers() {
			if r.Snapshot[to] && p != nil {
				sh.startCopyToLocked(p)
			}
		}
		if before := len(r.Apply) + len(r.Messages); !sh.proposeLocked() && before == 0 {
			return large
		}
	}
}

// stepLocked passes the log's next entry to the replica. The caller must hold sh.mu.
func (sh *shard) stepLocked(g *chain.Delivery[replica.Entry]) (large bool) {
	f, fx := &g.Entry.Frame, sh.rep.Effects()
	sh.link.Applying(&g.Entry, sh.rep.State.End())
	large = sh.rep.Step(&g.Entry, sh.s.buffers.CopyIfShared(f.Body, g.Retained))
	if f.Kind == wire.KindMembership {
		sh.slots.grow(len(sh.rep.State.Applied()))
	}
	if len(fx.FreeBodies) > 0 { // the next entry's payload may be copied there
		fx.FreeBodies = sh.s.buffers.KeepAll(fx.FreeBodies)
	}
	return large
}

// proposeLocked appends the facts that follow from the view and reports whether there were any. The caller must hold
// sh.mu.
func (sh *shard) proposeLocked() (news bool) {
	if !sh.link.Serving() || !sh.rep.State.HasRows() {
		return false
	}
	if at := sh.link.Role(); sh.stream != nil &&
		(at.Joining || !sh.stream.ServesLocked(sh.link.Fence().Frame(wire.KindLife), at.Head)) {
		return false
	}
	news = sh.rep.Propose()
	if news {
		fx := sh.rep.Effects()
		for i := range fx.ControlEntries {
			sh.appendFactLocked(&fx.ControlEntries[i])
		}
		fx.ControlEntries = fx.ControlEntries[:0]
	}
	return news
}

// applyEffectsLocked carries out the replica's effects in the order of the fields of replica.Effects, which documents
// the reasons for that order. It reports whether the log has more work as a result. The caller must hold sh.mu.
func (sh *shard) applyEffectsLocked() (again bool) {
	fx, to := sh.rep.Effects(), &sh.service
	fx.FreeBodies = sh.s.buffers.KeepAll(fx.FreeBodies)
	for _, c := range fx.Reopen {
		to.sendMoved(connOf(c))
	}
	for i := range fx.Torn {
		sh.rejectTornLocked(&fx.Torn[i])
	}
	if fx.Advanced {
		to.pushes.reachedAt = time.Now()
	}
	for _, slot := range fx.Pushes {
		to.push(slot)
	}
	for i := range fx.Saves {
		if sv := &fx.Saves[i]; sv.Rows != nil {
			sh.startRoundLocked(sv)
		} else {
			sh.startSaveLocked(sv)
		}
	}
	if took := sh.saver.SaveTimeLocked(); fx.NothingToSave {
		sh.s.wg.Go(func() { sh.waitForNextRound(took) })
	}
	for i := range fx.Dropped {
		connOf(fx.Dropped[i].Reader).removeRead(&fx.Dropped[i])
	}
	for i := range fx.Answers {
		to.answerLate(&fx.Answers[i])
	}
	for i := range fx.Opened {
		to.sendOpened(&fx.Opened[i])
	}
	for i := range fx.Acks {
		to.sendAck(&fx.Acks[i])
	}
	if fx.AcksPending {
		sh.s.scheduleFlush()
	}
	again = fx.Sync
	if again {
		sh.link.Sync()
	}
	if fx.ReportStatus {
		sh.s.notify()
	}
	if fx.Fail != nil {
		sh.s.fail(fmt.Errorf("server: %w", fx.Fail))
	}
	fx.Clear()
	return again
}

// rejectTornLocked rejects the sender of a partly inapplicable update. In an update log, such an update
// stays permanently, so the server ends. The caller must hold sh.mu.
func (sh *shard) rejectTornLocked(t *replica.Torn) {
	switch {
	case t.From != nil:
		sh.service.rejectTorn(t)
	case sh.stream != nil:
		sh.s.fail(
			fmt.Errorf(
				"%w: shard %d: %s; the log is intact up to this record, but cannot be read beyond it: start a new job",
				ErrLog, sh.id, t.Reason),
		)
	}
}

// applyScheduledLocked applies the updates that were left to another goroutine, if it has not applied them yet. A read
// is answered after the updates before it. The caller must hold sh.mu.
func (sh *shard) applyScheduledLocked() {
	if sh.applyScheduled && !sh.retired() {
		sh.applyScheduled = false
		sh.rep.MarkDirty()
		sh.advanceLocked()
	}
}

// endResendWaitLocked settles the replica if it waits for resent updates, since a change of participants may have ended
// that wait. The caller must hold sh.mu.
func (sh *shard) endResendWaitLocked() {
	if sh.rep.AwaitsResend() {
		sh.rep.MarkDirty()
		sh.advanceLocked()
	}
}

// yieldLocked brings the successor of a head that will be dropped up to date, and notifies the coordinator when that is
// done. The caller must hold sh.mu.
func (sh *shard) yieldLocked() {
	if !sh.rep.Ready() || !sh.link.Retiring(sh.view) {
		return
	}
	if sh.link.MayRetire(sh.view) {
		sh.s.notify()
	} else if sh.link.Role().Periodic {
		sh.link.Sync()
		sh.advanceLocked()
	}
}

// followLocked applies a view to the shard. The caller must hold sh.mu.
func (sh *shard) followLocked(v *protocol.View, at *chainPosition) {
	sh.view, sh.position = v, *at
	n := chain.Fence{Shard: sh.id, Generation: v.Generation, Epoch: at.Epoch}
	renew := n != sh.link.Fence()
	if renew {
		sh.incoming = nil
		sh.publishedName.Store(&n)
	}
	sh.neighbours.follow(at, renew)
	sh.link.Follow(n, &at.Role, renew)
	sh.rep.SetView(v, replica.Role{Head: at.Head, Reads: at.Reads(), Periodic: at.Periodic}, renew)
	sh.applyEffectsLocked()
	if !sh.link.Started() {
		return // the shard is still being restored
	}
	sh.rep.ApplyView()
	sh.advanceLocked()
	sh.rep.ReportSeen() // the shard stops waiting for what departed slots see
	sh.applyEffectsLocked()
	sh.yieldLocked()
	sh.endResendWaitLocked() // the shard stops waiting for resends of departed slots
}

// removeConn removes a connection that has ended.
func (sh *shard) removeConn(c *conn) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.neighbours.predecessor == c {
		sh.neighbours.predecessor = nil
	}
	if c.taking != nil && sh.incoming == c.taking {
		sh.incoming = nil
	}
	sh.rep.Readers.Forget(&c.Reader)
	sh.applyEffectsLocked()
}

// statusLocked returns the shard's status for the coordinator. If the shard's lock is held, it returns the previous
// status: that one was true at its time, and a silent server would be considered dead. behind means that the shard has
// not followed view v yet. The caller must hold Server.mu.
func (sh *shard) statusLocked(v *protocol.View, behind bool) (st protocol.ShardStatus, fresh bool) {
	if !behind && sh.mu.TryLock() {
		defer sh.mu.Unlock()
		// Updates that will still be applied to a lost shard are not lost, so its status waits for the goroutine that
		// applies them.
		lost := sh.applyScheduled && !sh.rep.Ready() && sh.link.Role().Head && v.Shards[sh.id].Lost
		if !lost {
			st = sh.fullStatusLocked(v)
			sh.lastStatus = &st
			return st, true
		}
	}
	if sh.lastStatus != nil {
		return *sh.lastStatus, false
	}
	n := sh.publishedName.Load()
	return protocol.ShardStatus{Shard: sh.id, Generation: n.Generation, Epoch: n.Epoch, Since: sh.since}, false
}

// fullStatusLocked returns the current status. The caller must hold sh.mu.
func (sh *shard) fullStatusLocked(v *protocol.View) protocol.ShardStatus {
	n := sh.link.Fence()
	st := protocol.ShardStatus{
		Shard: sh.id, Generation: n.Generation, Epoch: n.Epoch, Since: sh.since, Joined: sh.link.Joined(),
	}
	if sh.stream != nil { // a server that takes the shard over has read the whole log
		st.Joined, st.Unread = sh.link.Role().Joining && sh.stream.IsCaughtUpLocked(), sh.stream.UnreadLocked()
	}
	sh.saver.AddStatusLocked(&st)
	if sh.rep.State.HasRows() {
		for _, p := range sh.rep.State.Parts() {
			st.Bytes += int64(p.Stored()) * int64(p.RowBytes())
		}
	}
	sh.rep.Status(v, &st)
	st.Yielded = st.Ready && sh.link.MayRetire(sh.view)
	return st
}
