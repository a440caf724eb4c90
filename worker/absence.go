package worker

// A shard is out when it has owed an answer for longer than a healthy shard takes. It is back as soon as it has
// answered, or owes nothing. An outageWatch decides which shards are out, so that the worker continues without them,
// and counts what that costs. It is pure: the caller passes the time, and how the shard behaves. It is not safe for
// concurrent use.

// outageTime is a moment, in nanoseconds since one that the caller chooses. It is never 0, and an outageWatch
// is always told later ones. Differences of two are called nanoseconds.
type outageTime int64

const (
	// slowest is how many bytes of updates a server is expected to apply in a second at least:
	// one that has more to do is not out because it takes longer.
	slowest = 32 << 20
	// A shard whose connections are whole is not out before it has been silent for this many
	// times outageWatch.After, and in addition for as many times as long as its answers take at
	// present: one that is slow, on a machine that is busy, is not away.
	silences = 4
	// An answer that took longer than this many times outageWatch.After says nothing of how long the
	// next will take: the shard was away.
	mostUsual = 10
	second    = 1e9 // nanoseconds
)

// outageWatch is what is known of all shards.
type outageWatch struct {
	// After is how many nanoseconds a shard may owe an answer whose server is gone, or does
	// not have it ready.
	After int64

	shards     int        // that are out now
	begin, end outageTime // of the present outage, or the last; end is of use while none is

	// What was counted.
	Waited int64 // nanoseconds of calls, while some shard was out
	Clocks int64 // that ended meanwhile
	Queued int64 // bytes at most for shards that were
}

// shardOutage is what is known of one shard. The zero shardOutage owes nothing, and is there.
type shardOutage struct {
	out   bool
	quiet outageTime // since when it owes an answer; 0: it owes none
	usual int64      // nanoseconds that it took to answer, lately
}

// conduct is how a shard behaves at present.
type conduct struct {
	There bool  // its connections are whole, and it is open on them
	Owes  bool  // it should have answered
	Bytes int64 // of updates that its servers have to apply, for whatever shard
}

// outageVerdict is what follows from it.
type outageVerdict int

// The verdicts.
const (
	asBefore outageVerdict = iota
	isBack                 // it owes nothing, or no longer
	isGone                 // it has been silent for too long
)

// Out reports whether the shard is out.
func (s *shardOutage) Out() bool { return s.out }

// Judge says what has become of a shard. The caller says so to it, by Answered, or Leaves.
func (w *outageWatch) Judge(s *shardOutage, c conduct, now outageTime) outageVerdict {
	switch {
	case !c.Owes:
		return isBack
	case s.quiet == 0:
		s.quiet = now
	case !s.out && int64(now-s.quiet) >= w.patience(s, c):
		return isGone
	}
	return asBefore
}

// patience is how long a shard may owe an answer until it is out: After if its server is gone,
// or does not have it ready; else, where only its silence speaks for that, several times as
// long, and as much longer as others of its answers took, and as it may take its servers to
// apply what they were sent.
func (w *outageWatch) patience(s *shardOutage, c conduct) int64 {
	if !c.There {
		return w.After
	}
	return silences*(w.After+s.usual) + int64(float64(c.Bytes)/slowest*second)
}

// Learns notes that a shard has answered. If it was there throughout, that says how long it
// takes: at once if that is longer than usual, little by little if shorter. Answered follows.
func (w *outageWatch) Learns(s *shardOutage, there bool, now outageTime) {
	took := int64(0) // less than it takes to notice that it owes an answer
	if s.quiet != 0 {
		took = int64(now - s.quiet)
	}
	if there && took <= mostUsual*w.After {
		s.usual = max(took, s.usual-(s.usual-took)/8)
	}
}

// Answered notes that a shard has shown that it is there, or that nothing shows that it is not.
// It reports whether it was out.
func (w *outageWatch) Answered(s *shardOutage, now outageTime) (back bool) {
	s.quiet = 0
	if !s.out {
		return false
	}
	s.out = false
	if w.shards--; w.shards == 0 {
		w.end = now
	}
	return true
}

// Leaves notes that a shard is out from now on.
func (w *outageWatch) Leaves(s *shardOutage, now outageTime) {
	s.out = true
	if w.shards++; w.shards == 1 {
		w.begin = now
	}
}

// Outage reports whether some shard is out, and for how many nanoseconds one has been.
func (w *outageWatch) Outage(now outageTime) (lasts int64, out bool) {
	return int64(now - w.begin), w.shards > 0
}

// CountWait counts a call that has waited since begin, as far as a shard was out.
func (w *outageWatch) CountWait(begin, now outageTime) {
	until := now
	if w.shards == 0 {
		until = w.end
	}
	w.Waited += max(0, int64(until-max(begin, w.begin)))
}

// CountClock counts a clock that has ended, if a shard is out. queued is how many bytes wait
// then for those that are.
func (w *outageWatch) CountClock(queued int64) {
	if w.shards > 0 {
		w.Clocks++
		w.Queued = max(w.Queued, queued)
	}
}
