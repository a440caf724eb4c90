package worker

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
)

// shardLink is this client's side of one shard: which life of it is meant, and which servers
// it talks to about it.
//
// Updates and ticks go to the head of the shard's chain. All else goes to the replica that is
// read from, which also says what is staged, applied and safe: what it has acknowledged it
// shows. They may be one server, and are where the shard has no followers.
type shardLink struct {
	id        perdure.ShardID
	as        wire.Header   // what all frames about it have in common: its life, and the speaker
	head      *peer         // where updates go
	headOpen  bool          // it has said Opened for that life on the present connection
	reader    *peer         // to the replica that is read from
	open      bool          // the same of the reader
	next      *peer         // to one that joins the chain, and may be read from soon; nil: there is none
	out       *outbox.Shard // what it is to get
	rows      *reads.Shard  // what was read of it
	rest      rest
	absence   shardOutage
	stuck     bool      // it is out, and some calls that wait for it have not been told
	heldSince time.Time // since when updates are held back from the update log; zero: none is
}

// frame begins a frame about the shard.
func (sh *shardLink) frame(kind wire.Kind) wire.Frame {
	f := wire.Frame{Header: sh.as}
	f.Kind = kind
	return f
}

// sync asks to be told at once when what this slot has done is applied. clock is the present
// one.
func (sh *shardLink) sync(clock perdure.Clock) wire.Frame {
	f := sh.frame(wire.KindSync)
	f.Clock = clock
	return f
}

// uses reports whether a shard's updates go to a peer, or its rows come from it.
func (sh *shardLink) uses(p *peer) bool { return sh.head == p || sh.reader == p }

// there reports whether the connections to the shard are whole, and it is open on them.
func (sh *shardLink) there() bool { return sh.open && sh.headOpen }

// links are all shards' links, by shard.
type links []*shardLink

// open reports whether every shard can be read.
func (all links) open() bool {
	return !slices.ContainsFunc(all, func(sh *shardLink) bool { return !sh.open })
}

// use reports whether some shard uses a peer, or soon may.
func (all links) use(p *peer) bool {
	return slices.ContainsFunc(all, func(sh *shardLink) bool { return sh.uses(p) || sh.next == p })
}

// fresh reports whether some shard was opened a short time ago.
func (all links) fresh(now time.Time) bool {
	return slices.ContainsFunc(all, func(sh *shardLink) bool { return now.Sub(sh.rest.opened) < freshFor })
}

// opens returns how often shards have been opened to be read.
func (all links) opens() (n int) {
	for _, sh := range all {
		n += sh.rest.opens
	}
	return n
}

// answered reports whether every shard has answered a request to say whether it is behind,
// and whether one has said that it is, then or before.
func (all links) answered(request uint64) (answered, behind bool) {
	answered = true
	for _, sh := range all {
		answered = answered && sh.rest.request == request
		behind = behind || sh.rest.behind
	}
	return answered, behind
}

// owed returns how many bytes of updates the servers of a shard have to apply, for whatever
// shard.
func (all links) owed(sh *shardLink) (bytes int64) {
	for _, other := range all {
		if other.head == sh.head || other.reader == sh.reader {
			bytes += other.out.Owed()
		}
	}
	return bytes
}

// direct points a shard at its present head, and at the replica to read from.
func (l *locked) direct(sh *shardLink, sv *words.ShardView) {
	head, reader := sh.head, sh.reader // of a shard that nobody has now nobody answers for this life
	lane := int(sh.id) % l.cfg.Connections
	if sh.next = nil; sv.Joining != nil && !l.traits.Eager {
		sh.next = l.servers.to(route{sv.Joining.Addr, lane}) // now, since nobody waits for it yet
	}
	if sv.Replicas() > 0 {
		from := source(sv, l.traits.Eager, l.job.TailReads(l.view.Tables), l.slot, sh.id)
		reader = l.servers.to(route{from.Addr, lane})
		if head = reader; !l.cfg.Observer && !l.traits.Logged() { // else it has no updates for a head
			head = l.servers.to(route{sv.Addr, lane})
		}
	}
	if sh.head == head && sh.reader == reader && sh.as.Epoch == sv.Epoch && sh.as.Generation == l.generation {
		return
	}
	sh.out.Redirect()
	sh.head, sh.reader = head, reader
	sh.as = wire.Header{
		Generation: l.generation, Epoch: sv.Epoch, Shard: sh.id, Slot: l.slot, Incarnation: l.session.incarnation,
	}
	if reader != nil {
		l.reads.Direct(sh.rows, &reader.answers, sv.Epoch)
	}
	if head != nil {
		l.sendOpen(sh, head)
	}
	if reader != head {
		l.sendOpen(sh, reader)
	}
}

// source is the member of a shard's chain that a slot reads from. A head that acknowledges
// early is ahead of all others. Else, where readers want the one that knows first or knows all
// (tail), it is the tail; and where not, the slots spread over the members, and an observer
// reads as slot 0 does.
func source(sv *words.ShardView, early, tail bool, slot perdure.Slot, id perdure.ShardID) words.Holder {
	switch {
	case early:
		return sv.Holder
	case tail:
		return sv.Tail()
	}
	return sv.Replica((int(max(slot, 0)) + int(id)) % sv.Replicas())
}

// sendOpen asks the shard's head, the replica that is read from, or the server that is both,
// for the shard's present life; all else to it waits for the answer.
func (l *locked) sendOpen(sh *shardLink, to *peer) {
	f := sh.frame(wire.KindOpen)
	if f.Clock = l.out.Clock(); l.out.Phase() == outbox.Rolled || l.slot < 0 {
		f.Clock = 0 // nothing is in this generation of it
	}
	if to == sh.head {
		sh.headOpen = false
	}
	if to == sh.reader {
		sh.open = false // until it has said Opened
		l.reads.Closed(sh.rows)
		l.carryOut()
	} else {
		f.Flags = wire.FlagWrites
	}
	l.servers.post(to, f)
}

// fromServer handles a frame from a server.
func (l *locked) fromServer(p *peer, f *wire.Frame) error {
	l.settle(p)
	if int(f.Shard) < 0 || int(f.Shard) >= len(l.shards) {
		return nil
	}
	sh := l.shards[f.Shard]
	isHead, isReader := p == sh.head, p == sh.reader
	if l.cfg.weak.Generations {
		isHead, isReader = true, true
	} else if sh.as.Generation != f.Generation || sh.as.Epoch != f.Epoch {
		return nil // of another life of the shard
	}
	var err error
	switch {
	case f.Kind == wire.KindMoved && sh.uses(p):
		l.sendOpen(sh, p)
	case f.Kind == wire.KindOpened && (isHead || isReader):
		return l.onOpened(sh, f, isHead, isReader)
	case !isReader: // a server that only takes updates has no say in what is read, or safe
	case f.Kind == wire.KindAck:
		return l.onAck(sh, f)
	case f.Kind == wire.KindRows:
		err = l.reads.Take(sh.rows, f, l.out)
	case f.Kind == wire.KindState:
		l.reads.TakeState(f)
	case f.Kind == wire.KindEcho:
		sh.rest.answers(f)
		l.waits.Wake()
	case f.Kind == wire.KindIDs:
		err = l.reads.TakeIDs(f)
	case f.Kind == wire.KindPush:
		err = l.reads.TakePush(sh.rows, f, l.out)
	}
	l.carryOut()
	return err
}

// onOpened goes on with a shard: with what it is to be sent, where its head has
// answered, with all else, where the replica that is read from has.
func (l *locked) onOpened(sh *shardLink, f *wire.Frame, isHead, isReader bool) error {
	counts, err := wire.ParseCounts(f.Payload)
	if err != nil {
		return err
	}
	was := sh.out.Counts().Applied
	if isReader && l.traits.Logged() && counts.Applied < was && sh.as.Generation == l.generation {
		// No server that has read the job's log goes back behind what was acknowledged.
		err := updatelog.Damaged(updatelog.StreamName(l.job.ID, int(sh.id)),
			"shard %d has %d clocks of slot %d where it had %d: the log has lost some, or is another one",
			sh.id, counts.Applied, l.slot, was)
		l.fail(logFailed(err))
		return nil
	}
	if isReader {
		sh.open = true
		sh.rest.isOpened(time.Now())
		sh.out.Opened(counts, l.view.Shards[sh.id].Lost)
		l.acknowledged(sh, f.Clock)
	}
	if isHead {
		sh.headOpen = true
		sh.out.HeadHas(counts.Applied)
	}
	if isHead && !l.traits.Logged() {
		if sh.head.batch, err = sh.out.Resend(counts, sh.as, sh.head.batch); err != nil {
			l.waits.Err = err
			l.waits.Wake()
		}
	}
	if isReader {
		l.greet(sh)
	}
	if sh.there() {
		l.isThere(sh, l.outages.at(time.Now()))
	}
	l.servers.flush()
	return nil
}

// onAck takes the word of the replica that is read from of how far this slot's
// updates have come.
func (l *locked) onAck(sh *shardLink, f *wire.Frame) error {
	counts, err := wire.ParseCounts(f.Payload)
	if err != nil {
		return err
	}
	if l.outages.on && counts.Applied > sh.out.Counts().Applied { // else no clock is looked at
		now := l.outages.at(time.Now())
		l.outages.Learns(&sh.absence, sh.there(), now)
		l.isThere(sh, now)
	}
	sh.out.Ack(counts)
	l.acknowledged(sh, f.Clock)
	return nil
}

// acknowledged follows up on a shard's new counts and MinClock.
func (l *locked) acknowledged(sh *shardLink, minClock perdure.Clock) {
	sh.rows.Heard(minClock)
	if sh.out.Behind() {
		l.sendParts(sh, false)
		l.servers.flush()
	}
	if l.out.Crowds() || l.out.IsLast() {
		l.notify()
	}
	l.waits.Wake()
}

// greet tells the replica that is read from what it needs to know as it is opened, and asks
// it for what is wanted of it. A shard that has come back is to know how many clocks this slot
// has ended without it: whoever judges the model then waits until it has them.
func (l *locked) greet(sh *shardLink) {
	syncs := 0
	if l.outages.on && sh.out.EndedUnapplied() {
		syncs++
	}
	if sh.out.Awaited() {
		syncs++ // what was asked of another is forgotten
	}
	for range syncs {
		sh.reader.batch = append(sh.reader.batch, sh.sync(l.out.Clock()))
	}
	l.reads.Opened(sh.rows)
	l.carryOut()
}
