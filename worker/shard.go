package worker

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/availability"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
)

// shardLink is this client's side of one shard: the epoch and generation it refers to, and the servers it talks to.
//
// Updates and ticks go to the head of the shard's chain. All other frames go to the replica that is read from. That
// replica also reports which updates are staged, applied and safe, so that rows read from it contain all updates that
// it has acknowledged. Both may be the same server, and are if the shard has no followers.
type shardLink struct {
	id        perdure.ShardID
	as        wire.Header   // common header of all frames for the shard
	head      *peer         // receives updates
	headOpen  bool          // head has sent Opened for this epoch on the present connection
	reader    *peer         // the replica that is read from
	open      bool          // the same for reader
	next      *peer         // a joiner, which may be read from soon; nil: none
	out       *outbox.Shard // outgoing updates
	rows      *reads.Shard  // rows read
	lag       lagReport
	outage    availability.Shard
	stuck     bool      // unavailable, and some calls that wait for it have not been woken
	heldSince time.Time // since when updates are held back from the update log; zero: none are
}

// frame returns a frame with the shard's header.
func (sh *shardLink) frame(kind wire.Kind) wire.Frame {
	f := wire.Frame{Header: sh.as}
	f.Kind = kind
	return f
}

// sync returns a frame that requests an immediate reply when all updates of this slot are applied. clock is the current
// clock.
func (sh *shardLink) sync(clock perdure.Clock) wire.Frame {
	f := sh.frame(wire.KindSync)
	f.Clock = clock
	return f
}

// uses reports whether a shard sends its updates to p, or reads its rows from p.
func (sh *shardLink) uses(p *peer) bool { return sh.head == p || sh.reader == p }

// connected reports whether the connections to the shard work, and the shard is open on them.
func (sh *shardLink) connected() bool { return sh.open && sh.headOpen }

// links holds the link of each shard, by shard.
type links []*shardLink

// open reports whether every shard can be read.
func (all links) open() bool {
	return !slices.ContainsFunc(all, func(sh *shardLink) bool { return !sh.open })
}

// use reports whether some shard uses p, or may soon.
func (all links) use(p *peer) bool {
	return slices.ContainsFunc(all, func(sh *shardLink) bool { return sh.uses(p) || sh.next == p })
}

// fresh reports whether some shard was opened less than freshFor ago.
func (all links) fresh(now time.Time) bool {
	return slices.ContainsFunc(all, func(sh *shardLink) bool { return now.Sub(sh.lag.opened) < freshFor })
}

// opens returns how often shards have been opened for reading.
func (all links) opens() (n int) {
	for _, sh := range all {
		n += sh.lag.opens
	}
	return n
}

// answered reports whether every shard has answered the request whether it lags, and whether the last report of any
// shard says that it does.
func (all links) answered(request uint64) (answered, behind bool) {
	answered = true
	for _, sh := range all {
		answered = answered && sh.lag.request == request
		behind = behind || sh.lag.lagging
	}
	return answered, behind
}

// pendingBytes returns how many bytes of updates the servers of a shard have yet to apply, over all their shards.
func (all links) pendingBytes(sh *shardLink) (bytes int64) {
	for _, other := range all {
		if other.head == sh.head || other.reader == sh.reader {
			bytes += other.out.UnappliedBytes()
		}
	}
	return bytes
}

// direct points a shard at its present head, and at the replica to read from.
func (l *locked) direct(sh *shardLink, sv *protocol.ShardView) {
	head, reader := sh.head, sh.reader // kept while no server holds the shard: none answers for this epoch
	lane := int(sh.id) % l.cfg.Connections
	if sh.next = nil; sv.Joining != nil && !l.traits.EarlyAck {
		sh.next = l.servers.to(route{sv.Joining.Addr, lane}) // connect early, while no call waits for it
	}
	if sv.Replicas() > 0 {
		from := source(sv, l.traits.EarlyAck, l.job.TailReads(l.view.Tables), l.slot, sh.id)
		reader = l.servers.to(route{from.Addr, lane})
		if head = reader; !l.cfg.Observer && !l.traits.UsesLog() { // otherwise there are no updates for a head
			head = l.servers.to(route{sv.Addr, lane})
		}
	}
	if sh.head == head && sh.reader == reader && sh.as.Epoch == sv.Epoch && sh.as.Generation == l.generation {
		return
	}
	sh.out.HeadChanged()
	sh.head, sh.reader = head, reader
	sh.as = wire.Header{
		Generation: l.generation, Epoch: sv.Epoch, Shard: sh.id, Slot: l.slot, Incarnation: l.session.incarnation,
	}
	if reader != nil {
		l.reads.SetSource(sh.rows, &reader.answers, sv.Epoch)
	}
	if head != nil {
		l.sendOpen(sh, head)
	}
	if reader != head {
		l.sendOpen(sh, reader)
	}
}

// source returns the replica of a shard's chain from which a slot reads. A head that acknowledges early is ahead of all
// others. Otherwise, if tail is set, readers need the replica that is first to know what is committed, which is the
// tail. In all other cases the slots spread over the replicas, and an observer reads as slot 0 does.
func source(sv *protocol.ShardView, early, tail bool, slot perdure.Slot, id perdure.ShardID) protocol.Holder {
	switch {
	case early:
		return sv.Holder
	case tail:
		return sv.Tail()
	}
	return sv.Replica((int(max(slot, 0)) + int(id)) % sv.Replicas())
}

// sendOpen asks the shard's head, its reader, or the server that is both, to open the shard in its present epoch. All
// other frames wait for the answer.
func (l *locked) sendOpen(sh *shardLink, to *peer) {
	f := sh.frame(wire.KindOpen)
	if f.Clock = l.out.Clock(); l.out.Phase() == outbox.RolledBack || l.slot < 0 {
		f.Clock = 0 // no update of this slot exists in this generation
	}
	if to == sh.head {
		sh.headOpen = false
	}
	if to == sh.reader {
		sh.open = false // until it has sent Opened
		l.reads.Closed(sh.rows)
		l.carryOut()
	} else {
		f.Flags = wire.FlagWriteOnly
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
	if l.cfg.mutations.Generations {
		isHead, isReader = true, true
	} else if sh.as.Generation != f.Generation || sh.as.Epoch != f.Epoch {
		return nil // from another epoch or generation of the shard
	}
	var err error
	switch {
	case f.Kind == wire.KindMoved && sh.uses(p):
		l.sendOpen(sh, p)
	case f.Kind == wire.KindOpened && (isHead || isReader):
		return l.onOpened(sh, f, isHead, isReader)
	case !isReader: // a head that is not the reader does not decide what is read or safe
	case f.Kind == wire.KindAck:
		return l.onAck(sh, f)
	case f.Kind == wire.KindRows:
		err = l.reads.HandleAnswer(sh.rows, f, l.out)
	case f.Kind == wire.KindState:
		l.reads.HandleState(f)
	case f.Kind == wire.KindEcho:
		sh.lag.answers(f)
		l.waits.Wake()
	case f.Kind == wire.KindIDs:
		err = l.reads.HandleIDs(f)
	case f.Kind == wire.KindPush:
		err = l.reads.HandlePush(sh.rows, f, l.out)
	}
	l.carryOut()
	return err
}

// onOpened resumes a shard: it resends updates if the head has answered, and does everything else if the reader has.
func (l *locked) onOpened(sh *shardLink, f *wire.Frame, isHead, isReader bool) error {
	counts, err := wire.ParseCounts(f.Payload)
	if err != nil {
		return err
	}
	was := sh.out.Counts().Applied
	if isReader && l.traits.UsesLog() && counts.Applied < was && sh.as.Generation == l.generation {
		// A server that has read the job's log never has fewer clocks than were acknowledged.
		err := updatelog.Damaged(updatelog.StreamName(l.job.ID, int(sh.id)),
			"shard %d has %d clocks of slot %d, and had %d before: the log has lost some, or is a different log",
			sh.id, counts.Applied, l.slot, was)
		l.fail(logFailed(err))
		return nil
	}
	if isReader {
		sh.open = true
		sh.lag.isOpened(time.Now())
		sh.out.Opened(counts, l.view.Shards[sh.id].Lost)
		l.acknowledged(sh, f.Clock)
	}
	if isHead {
		sh.headOpen = true
		sh.out.SetHeadApplied(counts.Applied)
	}
	if isHead && !l.traits.UsesLog() {
		if sh.head.batch, err = sh.out.Resend(counts, sh.as, sh.head.batch); err != nil {
			l.waits.Err = err
			l.waits.Wake()
		}
	}
	if isReader {
		l.resumeReader(sh)
	}
	if sh.connected() {
		l.markAvailable(sh, l.outages.at(time.Now()))
	}
	l.servers.flush()
	return nil
}

// onAck handles a report by the reader of how far this slot's updates have come.
func (l *locked) onAck(sh *shardLink, f *wire.Frame) error {
	counts, err := wire.ParseCounts(f.Payload)
	if err != nil {
		return err
	}
	if l.outages.on && counts.Applied > sh.out.Counts().Applied { // avoid reading the time otherwise
		now := l.outages.at(time.Now())
		l.outages.RecordAnswer(&sh.outage, sh.connected(), now)
		l.markAvailable(sh, now)
	}
	sh.out.Ack(counts)
	l.acknowledged(sh, f.Clock)
	return nil
}

// acknowledged acts on a shard's new counts and MinClock.
func (l *locked) acknowledged(sh *shardLink, minClock perdure.Clock) {
	sh.rows.RecordMinClock(minClock)
	if sh.out.HasUnsent() {
		l.sendParts(sh, false)
		l.servers.flush()
	}
	if l.out.Ticks().Advance() {
		l.sendTicks()
	}
	if l.out.CheckCutWanted() || l.out.IsLast() {
		l.notify()
	}
	l.waits.Wake()
}

// resumeReader sends a newly opened reader its requests. After an outage the shard must learn how many clocks this slot
// has ended without it, so that programs that evaluate the model wait until the shard has them.
func (l *locked) resumeReader(sh *shardLink) {
	syncs := 0
	if l.outages.on && sh.out.EndedUnapplied() {
		syncs++
	}
	if sh.out.IsAwaited() {
		syncs++ // the previous reader's pending sync is lost
	}
	for range syncs {
		sh.reader.batch = append(sh.reader.batch, sh.sync(l.out.Clock()))
	}
	l.reads.Opened(sh.rows)
	l.carryOut()
}
