// Package availability decides which shards are unavailable, so that a worker can continue without them, and counts
// what that costs. A shard is unavailable when an answer from it has been pending for longer than a healthy shard
// takes. It is available again when it has answered, or when no answer is pending. The package does no I/O and reads no
// clock: the caller passes the time and the state of each shard. Its types are not safe for concurrent use.
package availability

// Time is a moment, in nanoseconds since an origin that the caller chooses. It is never 0, and the times passed
// to one Watch never decrease. Differences of two Times are in nanoseconds.
type Time int64

const (
	// minApplyRate is the min rate, in bytes of updates per second, at which a server is expected to apply updates. A
	// server with a larger backlog may take longer before its shards count as unavailable.
	minApplyRate = 32 << 20
	// A shard with working connections is unavailable only after it has been silent for silences times the sum of
	// Watch.After and its recent answer time. A slow server on a busy machine is not an outage.
	silenceFactor = 4
	// An answer that took longer than maxUsualFactor times Watch.After does not predict the next answer time: the
	// shard was unavailable.
	maxUsualFactor = 10
	second         = 1e9 // nanoseconds
)

// Watch holds the outage state and counters over all shards.
type Watch struct {
	// After is how long, in nanoseconds, an answer may be pending if the server is gone or cannot answer yet.
	After int64

	shards     int   // unavailable now
	begin, end Time  // of the present or last outage; end is valid only between outages
	before     int64 // Clocks when the present or last outage began

	// Counters.
	Waited int64 // time that calls waited while some shard was unavailable, in nanoseconds
	Clocks int64 // clocks that ended meanwhile
	Queued int64 // peak size of updates queued for unavailable shards, in bytes
}

// Shard is the outage state of one shard. The zero value is an available shard with no pending answer.
type Shard struct {
	unavailable  bool
	pendingSince Time  // since when an answer is pending; 0: none is
	answerTime   int64 // recent answer time, in nanoseconds
}

// Health is the present state of a shard, as its caller observes it.
type Health struct {
	Connected     bool  // its connections work, and the shard is open on them
	AnswerPending bool  // an answer is pending
	Bytes         int64 // of updates that its servers have yet to apply, over all their shards
}

// Decision is the decision on a shard.
type Decision int

// The decisions.
const (
	Unchanged Decision = iota
	Recovered          // no answer is pending, or no longer
	Failed             // it has been silent for too long
)

// Unavailable reports whether the shard is unavailable.
func (s *Shard) Unavailable() bool { return s.unavailable }

// Decide decides whether a shard is unavailable. The caller applies the decision with MarkAvailable or MarkUnavailable.
func (w *Watch) Decide(s *Shard, c Health, now Time) Decision {
	switch {
	case !c.AnswerPending:
		return Recovered
	case s.pendingSince == 0:
		s.pendingSince = now
	case !s.unavailable && int64(now-s.pendingSince) >= w.timeout(s, c):
		return Failed
	}
	return Unchanged
}

// timeout returns how long an answer may be pending before the shard is unavailable. It is After if the server is gone
// or cannot answer yet. If only the silence indicates an outage, it is several times longer, and grows with the recent
// answer time and with the time its servers may need to apply the updates sent to them.
func (w *Watch) timeout(s *Shard, c Health) int64 {
	if !c.Connected {
		return w.After
	}
	return silenceFactor*(w.After+s.answerTime) + int64(float64(c.Bytes)/minApplyRate*second)
}

// RecordAnswer records that a shard has answered. If the shard was available throughout, it updates the shard's answer
// time: immediately if that grew, gradually if it shrank. The caller then calls MarkAvailable.
func (w *Watch) RecordAnswer(s *Shard, there bool, now Time) {
	took := int64(0) // answered before the watch noticed a pending answer
	if s.pendingSince != 0 {
		took = int64(now - s.pendingSince)
	}
	if there && took <= maxUsualFactor*w.After {
		s.answerTime = max(took, s.answerTime-(s.answerTime-took)/8)
	}
}

// MarkAvailable records that a shard has shown that it is available, or that nothing indicates otherwise. It reports
// whether the shard was unavailable.
func (w *Watch) MarkAvailable(s *Shard, now Time) (back bool) {
	s.pendingSince = 0
	if !s.unavailable {
		return false
	}
	s.unavailable = false
	if w.shards--; w.shards == 0 {
		w.end = now
	}
	return true
}

// MarkUnavailable records that a shard has become unavailable.
func (w *Watch) MarkUnavailable(s *Shard, now Time) {
	s.unavailable = true
	if w.shards++; w.shards == 1 {
		w.begin, w.before = now, w.Clocks
	}
}

// Outage reports whether some shard is unavailable, and for how many nanoseconds the outage has lasted.
func (w *Watch) Outage(now Time) (lasts int64, out bool) {
	return int64(now - w.begin), w.shards > 0
}

// OutageClocks returns how many clocks have ended in the present or last outage.
func (w *Watch) OutageClocks() int64 { return w.Clocks - w.before }

// CountWait counts the part of a call's wait since begin in which some shard was unavailable.
func (w *Watch) CountWait(start, now Time) {
	until := now
	if w.shards == 0 {
		until = w.end
	}
	w.Waited += max(0, int64(until-max(start, w.begin)))
}

// CountClock counts a clock that has ended, if some shard is unavailable. queued is the number of bytes queued for
// unavailable shards.
func (w *Watch) CountClock(queued int64) {
	if w.shards > 0 {
		w.Clocks++
		w.Queued = max(w.Queued, queued)
	}
}
