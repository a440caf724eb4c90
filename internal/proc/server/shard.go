package server

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// shard is what surrounds one replica of a shard on this server: from a restore to the next
// roll-back or move, which makes a new one. What its log gives goes into the replica, and what
// the replica wants done is carried out here.
type shard struct {
	s      *Server
	id     perdure.ShardID
	since  uint64 // as in the view's Holder
	job    perdure.JobSpec
	traits recovery.Traits
	slots  slotCount   // that entries of the log can be of
	gone   atomic.Bool // retired: whatever still comes for it is ignored
	// named is the name of link, for goroutines that do not hold the shard's lock.
	named atomic.Pointer[link.Name]

	// Server.mu guards what follows.
	said    *words.ShardStatus // its last status
	follows follows
	opening uint64 // how often Opens and Follows that wait were looked at

	mu       lock // guards what follows
	rep      *replica.Replica
	view     *words.View
	at       place // as of the view
	near     neighbours
	link     link.Link
	to       sender
	service  service
	stream   *shardstore.Stream // nil unless the update log has what this log would
	incoming *incomingCopy      // the snapshot that is to take the shard's place
	due      bool               // a goroutine is on its way that will settle
	catchUp  func()             // which that does; made once, so that an update costs no memory
	saver    *shardstore.Saver
}

func newShard(s *Server, id perdure.ShardID, n link.Name, since uint64) *shard {
	began := time.Now()
	sh := &shard{
		s: s, id: id, since: since, job: *s.job, traits: s.traits,
		link: link.New(link.Settings{Name: n, Job: s.job, Solo: s.traits.Logged(), All: s.cfg.weak.Generations}),
	}
	sh.rep = replica.New(replica.Settings{
		Shard: id, Job: *s.job, Sparing: s.cfg.Sparing, Weak: s.cfg.weak,
		Elapsed: func() float64 { return time.Since(began).Seconds() }, Progress: sh.mu.Progress,
	})
	sh.named.Store(&n)
	sh.to.soon = s.tellSoon
	sh.service = service{
		rep: sh.rep, link: &sh.link, to: &sh.to, buffers: &s.buffers, log: s.door.Connections(), began: began,
		out: newOutflows(s.ctx, &sh.mu, s.job.Shards),
	}
	sh.catchUp = func() {
		defer s.wg.Done()
		sh.mu.Lock()
		defer sh.mu.Unlock()
		sh.applyDue()
	}
	sh.slots.grow(s.job.Slots)
	sh.saver = shardstore.NewSaver(s.ctx, shardstore.SaverSettings{
		Job: &sh.job, Shard: id, Lock: &sh.mu, Store: s.cfg.Store, Turn: s.work.turn,
		Log: s.cfg.Log, Tell: s.notify, Count: &s.work.saves,
	})
	if sh.traits.Logged() {
		shards := int64(s.job.Shards)
		sh.stream = shardstore.NewStream(s.ctx, shardstore.StreamSettings{
			Shard: id, Lock: &sh.mu, Store: s.cfg.Snapshots, Limits: shardstore.SnapshotLimits{
				Job: s.job.ID, Asked: s.cfg.SnapshotBytes / shards, Within: s.cfg.LogBytes / shards,
			},
		})
	}
	return sh
}

func (sh *shard) retired() bool { return sh.gone.Load() }

// retire ends this life of the shard. Those who read ask its successor. It needs Server.mu.
func (sh *shard) retire() {
	s := sh.s
	sh.gone.Store(true)
	sh.saver.Retire()
	if sh.stream != nil {
		sh.stream.Retire()
	}
	delete(s.shards, sh.id)
	s.work.retiring[sh] = struct{}{}
	s.wg.Go(func() { // its lock may be held
		sh.mu.Lock()
		sh.incoming = nil
		sh.rep.Audience.Retire()
		sh.carryOut()
		past := doneBy(sh.rep, &sh.service)
		sh.mu.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.work.retiring, sh)
		s.work.past.add(past)
	})
}

// means reports whether a frame is for the present life of the shard. One that is not is ignored: its
// sender opens the shard again when it knows the newer view. It needs sh.mu: the shard may have come
// into another life while the frame waited for that lock.
func (sh *shard) means(f *wire.Frame) bool {
	return sh.link.Name() == link.NameOf(&f.Header) || sh.s.cfg.weak.Generations
}

// fill makes the shard what was restored as of a view, and has it follow the newest that it has seen. It needs sh.mu.
func (sh *shard) fill(c replica.Content, v *words.View) {
	sh.saver.Works()
	sh.rep.Fill(c, v)
	sh.slots.grow(len(sh.rep.State.Applied()))
	sh.link.Begin()
	sh.follow(sh.view, &sh.at)
}

// advance takes what the log gives, and carries out what follows, until neither wants
// anything more. It needs sh.mu.
func (sh *shard) advance() {
	for again := true; again; {
		large := sh.takeLog()
		if !sh.rep.State.Has() {
			return
		}
		if large && sh.s.work.parallel && !sh.due && sh.rep.Ready() && !sh.rep.Audience.Opening() {
			// Another core applies it, while this connection's next frames are received.
			sh.due = true
			sh.rep.Rest()
			sh.carryOut()
			sh.s.wg.Add(1)
			go sh.catchUp()
			return
		}
		again = false
		if sh.rep.Stirred() {
			sh.rep.Settle()
			again = sh.carryOut()
		}
		sh.rep.AnswerOpens(sh.link.Applied())
		sh.carryOut()
	}
}

// takeLog brings the replica what the log gives it, passes on what the log wants sent, and
// appends what the view says, until nothing more comes. It reports whether a large update is
// complete that the replica has not applied yet. It needs sh.mu.
func (sh *shard) takeLog() (large bool) {
	for {
		r := sh.link.Ready()
		for i := range r.Apply {
			large = sh.step(&r.Apply[i]) || large
		}
		for i := range r.Messages {
			sh.pass(&r.Messages[i])
		}
		for to, p := range sh.near.after() {
			if r.Snapshot[to] && p != nil {
				sh.copyTo(p)
			}
		}
		if before := len(r.Apply) + len(r.Messages); !sh.propose() && before == 0 {
			return large
		}
	}
}

// step brings the replica the log's next entry. It needs sh.mu.
func (sh *shard) step(g *chain.Given[replica.Entry]) (large bool) {
	f, fx := &g.Entry.Frame, sh.rep.Effects()
	sh.link.Given(&g.Entry, sh.rep.State.End())
	large = sh.rep.Step(&g.Entry, sh.s.buffers.Own(f.Body, g.Kept))
	if f.Kind == wire.KindRoster {
		sh.slots.grow(len(sh.rep.State.Applied()))
	}
	if len(fx.Spent) > 0 { // the next entry's payload may be copied there
		fx.Spent = sh.s.buffers.KeepAll(fx.Spent)
	}
	return large
}

// propose appends what the view says, and reports whether there was something. It needs sh.mu.
func (sh *shard) propose() (news bool) {
	if !sh.link.Serving() || !sh.rep.State.Has() {
		return false
	}
	if at := sh.link.Place(); sh.stream != nil &&
		(at.Joining || !sh.stream.Lives(sh.link.Name().Frame(wire.KindLife), at.Head)) {
		return false
	}
	news = sh.rep.Propose()
	if news {
		fx := sh.rep.Effects()
		for i := range fx.Facts {
			sh.appendFact(&fx.Facts[i])
		}
		fx.Facts = fx.Facts[:0]
	}
	return news
}

// carryOut does what the replica wants done, in the order of the fields of replica.Effects,
// where it says why. It reports whether the log has something to do because of that. It needs
// sh.mu.
func (sh *shard) carryOut() (again bool) {
	fx, to := sh.rep.Effects(), &sh.service
	fx.Spent = sh.s.buffers.KeepAll(fx.Spent)
	for _, c := range fx.Moved {
		to.moved(connOf(c))
	}
	for i := range fx.Torn {
		sh.refuseTorn(&fx.Torn[i])
	}
	if fx.Advanced {
		to.out.since = time.Now()
	}
	for _, slot := range fx.Pushes {
		to.push(slot)
	}
	for i := range fx.Saves {
		if sv := &fx.Saves[i]; sv.Rows != nil {
			sh.beginRound(sv)
		} else {
			sh.beginSave(sv)
		}
	}
	if took := sh.saver.Took(); fx.Calm {
		sh.s.wg.Go(func() { sh.rest(took) })
	}
	for i := range fx.Dropped {
		connOf(fx.Dropped[i].Reader).waited(&fx.Dropped[i])
	}
	for i := range fx.Answers {
		to.answerLate(&fx.Answers[i])
	}
	for i := range fx.Opened {
		to.welcome(&fx.Opened[i])
	}
	for i := range fx.Acks {
		to.acknowledge(&fx.Acks[i])
	}
	if fx.Later {
		sh.s.tellSoon()
	}
	again = fx.Sync
	if again {
		sh.link.Sync()
	}
	if fx.Tell {
		sh.s.notify()
	}
	if fx.Fail != nil {
		sh.s.fail(fmt.Errorf("server: %w", fx.Fail))
	}
	fx.Clear()
	return again
}

// refuseTorn turns away whoever has sent an update only a part of which could be applied. In an
// update log it is there for good. It needs sh.mu.
func (sh *shard) refuseTorn(t *replica.Torn) {
	switch {
	case t.From != nil:
		sh.service.refuse(t)
	case sh.stream != nil:
		sh.s.fail(fmt.Errorf("%w: shard %d: %s; all before it is whole, and nothing after it can be used: "+
			"begin the job again", ErrLog, sh.id, t.Why))
	}
}

// applyDue applies what was left to another goroutine that has not come to it yet:
// a read is answered after the updates before it. It needs sh.mu.
func (sh *shard) applyDue() {
	if sh.due && !sh.retired() {
		sh.due = false
		sh.rep.Stir()
		sh.advance()
	}
}

// mend answers those who wait until the shard has been sent all again, if nothing else
// does. It needs sh.mu.
func (sh *shard) mend() {
	if sh.rep.Mends() {
		sh.rep.Stir()
		sh.advance()
	}
}

// yield brings the next member up to a head that is to be dropped, and tells the
// coordinator once it is. It needs sh.mu.
func (sh *shard) yield() {
	if !sh.rep.Ready() || !sh.link.Yields(sh.view) {
		return
	}
	if sh.link.Yielded(sh.view) {
		sh.s.notify()
	} else if sh.link.Place().Periodic {
		sh.link.Sync()
		sh.advance()
	}
}

// follow brings the shard to what the view says of it. It needs sh.mu.
func (sh *shard) follow(v *words.View, at *place) {
	sh.view, sh.at = v, *at
	n := link.Name{Shard: sh.id, Generation: v.Generation, Epoch: at.Epoch}
	renew := n != sh.link.Name()
	if renew {
		sh.incoming = nil
		sh.named.Store(&n)
	}
	sh.near.follow(at, renew)
	sh.link.Follow(n, &at.Place, renew)
	sh.rep.Follow(v, replica.Place{Head: at.Head, Reads: at.Reads(), Periodic: at.Periodic}, renew)
	sh.carryOut()
	if !sh.link.Begun() {
		return // it is still being restored
	}
	sh.rep.Heed()
	sh.advance()
	sh.rep.TellSeen() // nobody waits for what a slot sees that has left
	sh.carryOut()
	sh.yield()
	sh.mend() // who has left is not waited for
}

// forget forgets a connection that has ended.
func (sh *shard) forget(c *conn) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.near.pred == c {
		sh.near.pred = nil
	}
	if c.taking != nil && sh.incoming == c.taking {
		sh.incoming = nil
	}
	sh.rep.Audience.Forget(&c.Reader)
	sh.carryOut()
}

// status tells the coordinator how far this shard is.
//
// A shard that is at work for long says again what it said last: every status was
// true at its time, and a server that is silent would be taken for dead. behind says that
// it has not followed the view v yet. It needs Server.mu.
func (sh *shard) status(v *words.View, behind bool) (st words.ShardStatus, fresh bool) {
	if !behind && sh.mu.TryLock() {
		defer sh.mu.Unlock()
		// Of a lost shard, what is applied later is not lost: the goroutine that is about to apply it is waited for.
		lost := sh.due && !sh.rep.Ready() && sh.link.Place().Head && v.Shards[sh.id].Lost
		if !lost {
			st = sh.fullStatus(v)
			sh.said = &st
			return st, true
		}
	}
	if sh.said != nil {
		return *sh.said, false
	}
	n := sh.named.Load()
	return words.ShardStatus{Shard: sh.id, Generation: n.Generation, Epoch: n.Epoch, Since: sh.since}, false
}

// fullStatus needs sh.mu.
func (sh *shard) fullStatus(v *words.View) words.ShardStatus {
	n := sh.link.Name()
	st := words.ShardStatus{
		Shard: sh.id, Generation: n.Generation, Epoch: n.Epoch, Since: sh.since, Joined: sh.link.Joined(),
	}
	if sh.stream != nil { // who takes the shard over has read all that was there
		st.Joined, st.Unread = sh.link.Place().Joining && sh.stream.Level(), sh.stream.Unread()
	}
	sh.saver.Status(&st)
	if sh.rep.State.Has() {
		for _, p := range sh.rep.State.Parts() {
			st.Bytes += int64(p.Stored()) * int64(p.RowBytes())
		}
	}
	sh.rep.Status(v, &st)
	st.Yielded = st.Ready && sh.link.Yielded(sh.view)
	return st
}
