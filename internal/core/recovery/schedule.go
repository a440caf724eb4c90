package recovery

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// Schedule says at which clocks there are cuts. A cut contains all updates of clocks below it and none of later ones.
// The zero Schedule has none.
type Schedule struct {
	Every perdure.Clock // a cut every Every clocks; 0: named cuts only
	Named perdure.Clock // a requested cut; 0: none
	End   perdure.Clock // the end of the job, which is also a cut; 0: unknown
}

// ScheduleOf returns the schedule of a job that keeps checkpoints, without a named cut. Cuts by slot are not known in
// advance.
func ScheduleOf(job *perdure.JobSpec) Schedule {
	if t := TraitsOf(job); !t.SavesCuts() || t.Timed || t.CutsBySlot {
		return Schedule{}
	}
	return Schedule{Every: job.Recovery.Every}
}

// After returns the first regular cut after a clock; -1: none.
func (s Schedule) After(c perdure.Clock) perdure.Clock {
	if s.Every == 0 {
		return -1
	}
	return (c/s.Every + 1) * s.Every
}

// Has reports whether there is a regular or named cut at a clock. It ignores the end, which has no clock after it.
func (s Schedule) Has(c perdure.Clock) bool {
	return c > 0 && (s.Every > 0 && c%s.Every == 0 || s.Named == c)
}

// From returns the first regular or named cut at a clock ≥ c; -1: none.
func (s Schedule) From(c perdure.Clock) perdure.Clock {
	next := s.After(max(0, c-1))
	if s.Named > 0 && s.Named >= c && (next < 0 || s.Named < next) {
		return s.Named
	}
	return next
}

// Progress is a shard's progress, as far as it determines when the shard is saved.
type Progress struct {
	MinClock perdure.Clock // all updates of earlier clocks are applied
	Left     perdure.Clock // the newest cut that the shard has continued after
}

// Next returns a shard's next cut: the first regular one after its MinClock, the named one, or the end, at which the
// shard may already be; -1: none.
func (s Schedule) Next(p Progress) perdure.Clock {
	next := s.After(p.MinClock)
	for _, at := range []perdure.Clock{s.End, s.Named} {
		if p.Left < at && p.MinClock <= at && (at < next || next < 0) {
			next = at
		}
	}
	return next
}

// Rounds says when a shard saves some of its rows: for the k-th time, k ≥ 1, when its MinClock reaches k·R·C, which
// need not be a whole number (SCAR paper, section 4.2). Under asp, the mean of its clocks counts. The zero Rounds has
// none.
type Rounds struct {
	Share float64       // R
	Every perdure.Clock // C; 0: as often as the process that saves permits
}

// RoundsOf returns the rounds of a job, or none if the job does not save rows separately.
func RoundsOf(r perdure.Recovery) Rounds {
	if Of(r).Traits().SaveMode != SaveRows {
		return Rounds{}
	}
	return Rounds{Share: r.Share, Every: r.Every}
}

// Any reports whether there are rounds.
func (r Rounds) Any() bool { return r.Share > 0 }

// Timed reports whether the next round depends on the time rather than on clocks.
func (r Rounds) Timed() bool { return r.Any() && r.Every == 0 }

// Done returns the total number of rounds that are due at a clock.
func (r Rounds) Done(at perdure.Clock) int64 {
	if r.Every == 0 {
		return 0
	}
	return int64(float64(at)/(r.Share*float64(r.Every)) + roundingOff)
}

// roundingOff is less than one clock's share of any round: 20 clocks at rounds of 1/8 · 20 clocks are 8 rounds,
// although 1/8 · 20 may be computed as slightly more than 2.5.
const roundingOff = 1e-9

// Saving returns what to show users about how a job saves, given the chosen interval and the statistics of saved rows;
// nil: the strategy says it all.
func Saving(r perdure.Recovery, chosen protocol.Saving, rows protocol.RowSaving) *protocol.Saving {
	switch {
	case RoundsOf(r).Any():
		return &protocol.Saving{Rows: &rows}
	case Of(r).Traits().Timed:
		return &chosen
	}
	return nil
}
