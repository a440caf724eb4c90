package outbox

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// Shard is the outbox of one shard: the updates that are not safe there yet.
//
// Updates are sent to the head of the shard's chain, or to the update log. The replica that is read from reports which
// of them are staged, applied and safe. So reads already show every acknowledged update.
type Shard struct {
	outbox   *Outbox
	id       perdure.ShardID
	kept     sequence
	acked    int       // number of updates at the start of kept that have been acknowledged
	building *Update   // the last of kept, for the current clock; nil: none yet
	free     []*Update // for reuse
	maxKept  int       // recent maximum length of kept

	unacked     int64 // bytes of complete updates in kept that are not acknowledged yet
	loggedBytes int64 // bytes of those that are in the update log but not yet applied
	retained    int64 // bytes of those that are applied, and kept until they are in a checkpoint
	condensed   int64 // retained after the last merge, or less

	counts      protocol.Counts // as acknowledged
	sentBelow   perdure.Clock   // updates of clocks below this have been sent to the current head
	hasUnsent   bool            // the head has not been sent everything in kept
	unavailable bool            // the shard is unavailable: its updates wait, and may be merged

	// What earlier processes of the slot had done when this one first opened the shard in this generation. The shard
	// ignores this process's updates of these clocks.
	inherited      perdure.Clock
	inheritedKnown bool // inherited is known
	// What the head had applied when it was last opened.
	headApplied perdure.Clock

	// The clock after one that the job's end interrupted when some of its parts had been sent. When the slot repeats
	// that clock, its update is not merged with others, so that the shard recognizes it as the same update. 0: none.
	broken perdure.Clock

	stream  stream
	holding bool // the newest update is held back from the update log, to be merged with the next
}

// Counts returns the counts that the shard has acknowledged.
func (s *Shard) Counts() protocol.Counts { return s.counts }

// UnappliedBytes returns the bytes of updates that the shard has not applied, as far as is known.
func (s *Shard) UnappliedBytes() int64 { return s.unacked + s.loggedBytes }

// HasUnsent reports whether the head has not been sent everything that is kept.
func (s *Shard) HasUnsent() bool { return s.hasUnsent }

// SetUnavailable records whether the shard is unavailable.
func (s *Shard) SetUnavailable(out bool) { s.unavailable = out }

// NumKept returns the number of updates kept for the shard.
func (s *Shard) NumKept() int { return len(s.kept) }

// HeadChanged records that the shard has another head. Sent updates may still be queued for the former head.
func (s *Shard) HeadChanged() {
	for _, u := range s.kept {
		u.again = u.again || u.sent > 0
	}
}

// Opened records the counts of the replica to read from, when it is opened. lost means that the shard restarted from
// rows that may lack the program's saved state, which is then resent.
func (s *Shard) Opened(counts protocol.Counts, lost bool) {
	s.counts = counts
	s.outbox.transitChanges++
	if !s.inheritedKnown {
		s.inheritedKnown, s.inherited = true, counts.Applied
	} else if s.outbox.jobView.traits.Partial { // a restored shard accepts this process's instead
		s.inherited = min(s.inherited, counts.Staged)
	}
	s.outbox.ticks.countBehind()
	if sv := &s.outbox.saving; lost && sv.state != nil && s.id == s.outbox.jobView.home() {
		sv.dirty = true
	}
	s.dropSafe()
}

// Ack handles an acknowledgement: the counts of this slot's updates on the replica that is read from.
func (s *Shard) Ack(counts protocol.Counts) {
	before := s.outbox.ticks.staged(s)
	if counts.Seen > s.counts.Seen {
		s.outbox.transitChanges++
	}
	s.counts = protocol.Counts{
		Staged: max(s.counts.Staged, counts.Staged), Ticked: max(s.counts.Ticked, counts.Ticked),
		Applied: max(s.counts.Applied, counts.Applied), Seen: max(s.counts.Seen, counts.Seen),
	}
	s.outbox.ticks.stagedMore(s, before)
	s.dropSafe()
}

// SetHeadApplied records what the head had applied when it was opened.
func (s *Shard) SetHeadApplied(applied perdure.Clock) { s.headApplied = applied }

// ownFrom returns the first clock for which everything that the shard may have from this slot was sent by this process,
// as it is kept.
func (s *Shard) ownFrom() perdure.Clock { return max(s.inherited, s.headApplied, s.counts.Applied) }

// An update is kept until it is safe. Under most strategies it is safe when it is applied, or under vap when all slots
// can see it. If workers resend updates to restored shards, it is safe when it is in a checkpoint. Applied updates are
// then retained up to a limit, and a cut is requested before the limit is reached. If the cut takes long, updates are
// merged, provided that the result is the same.

// dropSafe drops the updates that are safe.
func (s *Shard) dropSafe() {
	for ; s.acked < len(s.kept); s.acked++ {
		u := s.kept[s.acked]
		if u.until() > s.counts.Seen || u.phase < Sent || s.outbox.jobView.logs() && !u.logged {
			break
		}
		s.uncount(u)
		s.retain(u.bytes)
	}
	safe := s.acked
	if s.outbox.retains() { // those of a restored shard are in transit again, even if they had been seen before
		safe = min(safe, len(s.kept)-len(s.kept.from(min(s.outbox.jobView.saved(s.id), s.counts.Seen))))
	}
	s.maxKept = max(s.maxKept, len(s.kept))
	for _, u := range s.kept[:safe] {
		s.retain(-u.bytes)
		s.recycle(u)
	}
	s.kept, s.acked = slices.Delete(s.kept, 0, safe), s.acked-safe
	s.dropTransient()
	s.mergeRetained()
}

// keep adds n to the bytes of complete updates that are not acknowledged.
func (s *Shard) keep(n int64) {
	s.outbox.unacked += n
	s.unacked += n
}

// retain adds n to the bytes of applied updates that are kept until they are in a checkpoint.
func (s *Shard) retain(n int64) {
	s.outbox.retained += n
	s.retained += n
}

// uncount removes an update from the byte counts of unacknowledged updates.
func (s *Shard) uncount(u *Update) {
	switch {
	case u.logged:
		s.loggedBytes -= u.bytes
	case u.phase != Open:
		s.keep(-u.bytes)
	}
}

// forgetFrom drops the updates of clocks from the given one on. None of them may be acknowledged.
func (s *Shard) forgetFrom(clock perdure.Clock) {
	late := s.kept.from(clock)
	for _, u := range late {
		s.uncount(u)
		if u.sent > 0 {
			s.broken = u.until()
		}
	}
	s.kept = s.kept[:len(s.kept)-len(late)]
	s.acked, s.building = min(s.acked, len(s.kept)), nil
}

// EndedUnapplied reports whether the shard lacks clocks that this slot has ended.
func (s *Shard) EndedUnapplied() bool {
	u := s.kept.ended()
	return u != nil && u.until() > s.counts.Applied
}

// IsAwaited reports whether the program waits for the shard to apply the clocks that it has ended, and the shard has
// been asked to confirm that.
func (s *Shard) IsAwaited() bool {
	u := s.kept.ended()
	return u != nil && u.prompt && u.until() > s.counts.Applied
}

// Await records that the program waits until the newest update is applied. It reports whether the shard must be asked
// to confirm that. A shard confirms large updates without being asked.
func (s *Shard) Await() (ask bool) {
	u := s.kept.ended()
	if u == nil || u.prompt || u.payloadBytes() >= wire.AckNowBytes {
		return false
	}
	u.prompt = true // also if it has to be resent
	return true
}

// OwesAnswer reports whether the shard should have answered by now, because it has an unapplied update that nothing
// holds back. MinClock must pass the next cut before updates of that clock and later ones are applied, so these are
// held back until all slots have reached the cut.
func (s *Shard) OwesAnswer(minClock perdure.Clock) bool {
	for _, u := range s.kept {
		if u.until() <= s.counts.Applied {
			continue
		}
		if s.outbox.jobView.logs() && !u.logged {
			return false // the log should have answered
		}
		if s.outbox.jobView.mode == perdure.ClockAtomic && u.phase != Ticked {
			return u.until() > s.counts.Staged && u.until() <= s.sentBelow
		}
		cut := s.outbox.jobView.cuts.From(minClock)
		return u.phase >= Sent && (cut < 0 || u.clock < cut)
	}
	return false
}

// Resend appends the frames that the shard's head lacks according to its counts, and continues from there. as is the
// common header of all frames for the shard. It returns perdure.ErrNoCopy if the head lacks updates that are no longer
// kept.
func (s *Shard) Resend(has protocol.Counts, as wire.Header, frames []wire.Frame) ([]wire.Frame, error) {
	b, first := s.outbox, s.outbox.clock // first kept clock
	if len(s.kept) > 0 {
		first = s.kept[0].clock
	}
	if b.jobView.traits.RetainsUpdates() && b.jobView.slot >= 0 && b.phase != RolledBack &&
		has.Staged < min(first, b.clock) {
		return frames, fmt.Errorf("%w: shard %d has applied %d clocks of slot %d, but the slot keeps only updates "+
			"from clock %d on",
			perdure.ErrNoCopy, s.id, has.Staged, b.jobView.slot, first)
	}
	if v := &b.jobView.view.Shards[s.id]; (v.Lost || v.Restored) && s.id == b.jobView.home() {
		s.superseded()
	}
	for _, u := range s.kept.from(has.Staged) {
		if u.sent > 0 {
			u.again = true
			b.Counters.Resent++
		}
		u.sent = 0
	}
	if b.limits.Mutations.Resending {
		s.blank(has.Staged)
	}
	for _, u := range s.kept.from(has.Ticked) {
		if u.phase == Ticked && u.clock < has.Staged {
			frames = append(frames, tickFrame(as, u.until()-1))
		}
	}
	s.sentBelow = min(has.Staged, b.clock)
	return s.NextFrames(as, frames), nil
}

// blank empties the acknowledged updates of clocks from the given one on: see mutation.Set.
func (s *Shard) blank(from perdure.Clock) {
	for _, u := range s.kept[:s.acked] {
		if u.clock >= from {
			u.parts = []partPayload{{}}
		}
	}
}

// NextFrames appends the frames of updates that have not been sent to the shard's head, in order. It stops when the
// unapplied ones fill the window, because the server must hold them.
func (s *Shard) NextFrames(as wire.Header, frames []wire.Frame) []wire.Frame {
	ahead := int64(0) // bytes sent and not applied
	if s.hasUnsent {
		for _, u := range s.kept.from(s.counts.Applied) {
			if u.clock < s.sentBelow {
				ahead += u.bytes
			}
		}
	}
	s.hasUnsent = false
	for _, u := range s.kept.from(s.sentBelow) {
		if u.phase == Built {
			break
		}
		if ahead += u.bytes; ahead > s.outbox.limits.Window && ahead > u.bytes {
			s.hasUnsent = true
			break
		}
		frames = s.frames(u, as, frames)
		if u.phase == Open {
			break
		}
		s.sentBelow = u.until()
	}
	return frames
}

// frames appends the frames of an update's parts that have not been sent.
func (s *Shard) frames(u *Update, as wire.Header, frames []wire.Frame) []wire.Frame {
	// Updates that an earlier process of the slot has made are acknowledged at their first part, or earlier, when the
	// replica to read from reports them. So they may be safe while their parts are still queued.
	u.again = u.again || u.clock < max(s.counts.Applied, s.headApplied)
	n := len(frames)
	frames = u.frames(as, frames)
	for i := range frames[n:] {
		s.outbox.Counters.Pushed += int64(wire.HeaderBytes + frames[n+i].PayloadBytes())
	}
	return frames
}

// tickFrame returns the frame that tells a shard to apply a clock.
func tickFrame(as wire.Header, clock perdure.Clock) wire.Frame {
	as.Kind, as.Clock = wire.KindTick, clock
	return wire.Frame{Header: as}
}
