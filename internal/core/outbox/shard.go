package outbox

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
)

// Shard is the outbox's side of one shard: the updates that are not safe there yet.
//
// Updates go to the head of the shard's chain, or to the update log. What is staged, applied
// and safe, the replica says that is read from: what it has acknowledged it shows.
type Shard struct {
	box      *Box
	id       perdure.ShardID
	kept     sequence
	acked    int       // the first of kept that were acknowledged once
	building *Update   // of the present clock, the last of kept; nil: none yet
	free     []*Update // to be used again
	most     int       // of kept at once, lately

	unacked   int64 // bytes of kept updates that are whole and were not acknowledged yet
	shown     int64 // bytes of those that are in the update log, and are kept to be shown
	retained  int64 // bytes of those that are applied, and kept until they are in a checkpoint
	condensed int64 // what retained was when they were merged last, or less

	counts words.Counts  // as acknowledged
	fed    perdure.Clock // updates of clocks below have been sent to the present head
	behind bool          // the head was not sent all that is kept yet
	out    bool          // the shard is out: what it is to get waits, and may be merged

	// What earlier processes of the slot had done when this one first opened the shard in
	// this generation: its own updates of these clocks are ignored there.
	inherited perdure.Clock
	met       bool // that is known
	// What the head had applied when it was last opened.
	headApplied perdure.Clock

	// The clock after one that an end interrupted when some of its parts had been sent. When the slot repeats that
	// clock, its update is not merged with others, so the shard recognises it as the same update. 0: there is none.
	broken perdure.Clock

	stream  stream
	holding bool // the newest update is held back from the update log, to be merged with the next
}

// Counts returns what the shard has acknowledged.
func (s *Shard) Counts() words.Counts { return s.counts }

// Owed returns how many bytes of updates the shard has not applied, as far as is known.
func (s *Shard) Owed() int64 { return s.unacked + s.shown }

// Behind reports whether its head was not sent all that is kept.
func (s *Shard) Behind() bool { return s.behind }

// SetOut says whether the shard is out.
func (s *Shard) SetOut(out bool) { s.out = out }

// Keeps returns how many updates are kept for the shard.
func (s *Shard) Keeps() int { return len(s.kept) }

// Redirect says that the shard has another head: what has left may be queued for the former
// one still.
func (s *Shard) Redirect() {
	for _, u := range s.kept {
		u.again = u.again || u.sent > 0
	}
}

// Opened takes the counts of a replica that is to be read from, as it is opened. lost says
// that the shard began anew from rows that may lack the program's saved state: that is sent
// again.
func (s *Shard) Opened(counts words.Counts, lost bool) {
	s.counts = counts
	if !s.met {
		s.met, s.inherited = true, counts.Applied
	} else if s.box.terms.traits.Partial { // a restored shard may lack it, and takes this one's
		s.inherited = min(s.inherited, counts.Staged)
	}
	if sv := &s.box.saving; lost && sv.state != nil && s.id == s.box.terms.home() {
		sv.dirty = true
	}
	s.dropSafe()
}

// Ack takes the word of the replica that is read from of how far this slot's updates have
// come.
func (s *Shard) Ack(counts words.Counts) {
	s.counts = words.Counts{
		Staged: max(s.counts.Staged, counts.Staged), Ticked: max(s.counts.Ticked, counts.Ticked),
		Applied: max(s.counts.Applied, counts.Applied), Seen: max(s.counts.Seen, counts.Seen),
	}
	s.dropSafe()
}

// HeadHas says what the head had applied when it was opened.
func (s *Shard) HeadHas(applied perdure.Clock) { s.headApplied = applied }

// own returns the clock from which on a shard has nothing of this slot that it was not sent by
// this process, and sent as it is kept.
func (s *Shard) own() perdure.Clock { return max(s.inherited, s.headApplied, s.counts.Applied) }

// An update is kept until it is safe. Under most strategies it is when it is applied (under
// vap: when all can see it). Where workers send a restored shard again what it lacks, it is
// when it is in a checkpoint: what is applied is retained until then, within a bound, and a
// cut is asked for before the bound is reached. Where that takes long, updates are merged if
// that changes nothing.

// dropSafe forgets the updates that are safe.
func (s *Shard) dropSafe() {
	for ; s.acked < len(s.kept); s.acked++ {
		u := s.kept[s.acked]
		if u.until() > s.counts.Seen || u.phase < Sent || s.box.terms.logs() && !u.logged {
			break
		}
		s.uncount(u)
		s.retain(u.bytes)
	}
	safe := s.acked
	if s.box.retains() { // a restored shard's are in transit again, also those that were seen before
		safe = min(safe, len(s.kept)-len(s.kept.from(min(s.box.terms.saved(s.id), s.counts.Seen))))
	}
	s.most = max(s.most, len(s.kept))
	for _, u := range s.kept[:safe] {
		s.retain(-u.bytes)
		s.recycle(u)
	}
	s.kept, s.acked = slices.Delete(s.kept, 0, safe), s.acked-safe
	s.condense()
}

// keep counts n more bytes of whole updates that were not acknowledged.
func (s *Shard) keep(n int64) {
	s.box.unacked += n
	s.unacked += n
}

// retain counts n more bytes of updates that are applied, and kept until they are in a
// checkpoint.
func (s *Shard) retain(n int64) {
	s.box.retained += n
	s.retained += n
}

// uncount stops counting an update among those that were not acknowledged.
func (s *Shard) uncount(u *Update) {
	switch {
	case u.logged:
		s.shown -= u.bytes
	case u.phase != Open:
		s.keep(-u.bytes)
	}
}

// forgetFrom forgets the updates of clocks from the given one on, none of which was
// acknowledged.
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

// Awaited reports whether the program waits for the shard to apply what it has ended, and it
// was asked to say so.
func (s *Shard) Awaited() bool {
	u := s.kept.ended()
	return u != nil && u.prompt && u.until() > s.counts.Applied
}

// Await notes that the program waits until the newest update is applied, and reports whether
// the shard must be asked to say so; of a large one it says so by itself.
func (s *Shard) Await() (ask bool) {
	u := s.kept.ended()
	if u == nil || u.prompt || u.payloadBytes() >= wire.PromptBytes {
		return false
	}
	u.prompt = true // also if it has to be sent again
	return true
}

// Owes reports whether the shard should have answered: it has an update that nothing holds
// back and that is not applied. One of a clock from the next cut on, after MinClock, is held
// back until all slots have come there.
func (s *Shard) Owes(minClock perdure.Clock) bool {
	for _, u := range s.kept {
		if u.until() <= s.counts.Applied {
			continue
		}
		if s.box.terms.logs() && !u.logged {
			return false // the log does
		}
		cut := s.box.terms.cuts.From(minClock)
		return u.phase >= Sent && (cut < 0 || u.clock < cut)
	}
	return false
}

// Resend appends what the shard's head has not got, by its counts, and goes on from there.
// as is what all frames about the shard have in common. The error is perdure.ErrUnkept: it
// lacks what is kept no more.
func (s *Shard) Resend(has words.Counts, as wire.Header, frames []wire.Frame) ([]wire.Frame, error) {
	b, first := s.box, s.box.clock // first: that is kept
	if len(s.kept) > 0 {
		first = s.kept[0].clock
	}
	if b.terms.traits.Retains() && b.terms.slot >= 0 && b.phase != Rolled && has.Staged < min(first, b.clock) {
		return frames, fmt.Errorf("%w: shard %d has %d clocks of slot %d, which has kept those from clock %d on",
			perdure.ErrUnkept, s.id, has.Staged, b.terms.slot, first)
	}
	if v := &b.terms.view.Shards[s.id]; (v.Lost || v.Restored) && s.id == b.terms.home() {
		s.superseded()
	}
	for _, u := range s.kept.from(has.Staged) {
		if u.sent > 0 {
			u.again = true
			b.Counters.Resent++
		}
		u.sent = 0
	}
	if b.limits.Weak.Resending {
		s.blank(has.Staged)
	}
	for _, u := range s.kept.from(has.Ticked) {
		if u.phase == Ticked && u.clock < has.Staged {
			frames = append(frames, tickFrame(as, u.clock))
		}
	}
	s.fed = min(has.Staged, b.clock)
	return s.Feed(as, frames), nil
}

// blank empties the updates of clocks from one on that were acknowledged: see weaken.Set.
func (s *Shard) blank(from perdure.Clock) {
	for _, u := range s.kept[:s.acked] {
		if u.clock >= from {
			u.parts = []piece{{}}
		}
	}
}

// Feed appends what is kept and has not left to the frames for the shard's head, in order: as
// much as the window allows beyond what is applied, since a server must have room for it.
func (s *Shard) Feed(as wire.Header, frames []wire.Frame) []wire.Frame {
	ahead := int64(0) // sent, and not applied
	if s.behind {
		for _, u := range s.kept.from(s.counts.Applied) {
			if u.clock < s.fed {
				ahead += u.bytes
			}
		}
	}
	s.behind = false
	for _, u := range s.kept.from(s.fed) {
		if u.phase == Built {
			break
		}
		if ahead += u.bytes; ahead > s.box.limits.Window && ahead > u.bytes {
			s.behind = true
			break
		}
		frames = s.frames(u, as, frames)
		if u.phase == Open {
			break
		}
		s.fed = u.until()
	}
	return frames
}

// frames appends the frames of the parts of an update that have not left.
func (s *Shard) frames(u *Update, as wire.Header, frames []wire.Frame) []wire.Frame {
	// What an earlier process of the slot did already is acknowledged at its first part,
	// or sooner: the replica that is read from hears of it by itself.
	u.again = u.again || u.clock < max(s.counts.Applied, s.headApplied)
	n := len(frames)
	frames = u.frames(as, frames)
	for i := range frames[n:] {
		s.box.Counters.Pushed += int64(wire.HeaderBytes + frames[n+i].PayloadBytes())
	}
	return frames
}

// tickFrame lets a shard apply a clock.
func tickFrame(as wire.Header, clock perdure.Clock) wire.Frame {
	as.Kind, as.Clock = wire.KindTick, clock
	return wire.Frame{Header: as}
}
