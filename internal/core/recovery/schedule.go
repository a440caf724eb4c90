package recovery

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// Schedule says of which clocks there are cuts. A cut is of all updates of clocks below it,
// and of none other. The zero Schedule has none.
type Schedule struct {
	Every perdure.Clock // one every Every clocks; 0: those alone that are named
	Named perdure.Clock // one that was asked for; 0: none
	End   perdure.Clock // of the job, which is one too; 0: not known
}

// ScheduleOf returns the schedule of a job that keeps checkpoints, with nothing named yet.
func ScheduleOf(r perdure.Recovery) Schedule {
	if t := Of(r).Traits(); !t.Saves() || t.Timed {
		return Schedule{}
	}
	return Schedule{Every: r.Every}
}

// After returns the first cut of the interval after a clock; -1: there is none.
func (s Schedule) After(c perdure.Clock) perdure.Clock {
	if s.Every == 0 {
		return -1
	}
	return (c/s.Every + 1) * s.Every
}

// Has reports whether there is a cut of a clock, of the interval or named. The end, which
// nothing comes after, is not asked for.
func (s Schedule) Has(c perdure.Clock) bool {
	return c > 0 && (s.Every > 0 && c%s.Every == 0 || s.Named == c)
}

// From returns the first cut of a clock ≥ c, of the interval or named; -1: there is none.
func (s Schedule) From(c perdure.Clock) perdure.Clock {
	next := s.After(max(0, c-1))
	if s.Named > 0 && s.Named >= c && (next < 0 || s.Named < next) {
		return s.Named
	}
	return next
}

// Progress is how far a shard has come, as far as it matters to when it is saved.
type Progress struct {
	MinClock perdure.Clock // all updates of earlier clocks are applied
	Left     perdure.Clock // the newest cut that it has gone on after
}

// Next returns the next cut of a shard: of the interval after its MinClock, or named, or the
// end, at which it may stand already; -1: there is none.
func (s Schedule) Next(p Progress) perdure.Clock {
	next := s.After(p.MinClock)
	for _, at := range []perdure.Clock{s.End, s.Named} {
		if p.Left < at && p.MinClock <= at && (at < next || next < 0) {
			next = at
		}
	}
	return next
}

// Rounds says when a shard saves some of its rows: the k-th time, k ≥ 1, when its MinClock
// comes to k·R·C, which need not be a whole number (SCAR paper, section 4.2). The zero Rounds
// has none.
type Rounds struct {
	Share float64       // R
	Every perdure.Clock // C; 0: as often as whoever saves allows it
}

// RoundsOf returns the rounds of a job; none unless it saves rows.
func RoundsOf(r perdure.Recovery) Rounds {
	if Of(r).Traits().Form != Rows {
		return Rounds{}
	}
	return Rounds{Share: r.Share, Every: r.Every}
}

// Any reports whether there are rounds.
func (r Rounds) Any() bool { return r.Share > 0 }

// Timed reports whether it is not of clocks when the next round is.
func (r Rounds) Timed() bool { return r.Any() && r.Every == 0 }

// Done returns how many rounds are due by a MinClock, in all.
func (r Rounds) Done(min perdure.Clock) int64 {
	if r.Every == 0 {
		return 0
	}
	return int64(float64(min)/(r.Share*float64(r.Every)) + roundingOff)
}

// roundingOff is less than a clock's share of any round: 20 clocks of 1/8 · 20 clocks each
// are 8 rounds, though 1/8 · 20 may be a little more than 2.5 where it is computed.
const roundingOff = 1e-9

// Saving returns what people are told of how a job saves, given the interval that was chosen and
// what rows were saved; nil: its strategy says it all.
func Saving(r perdure.Recovery, chosen words.Saving, rows words.RowSaving) *words.Saving {
	switch {
	case RoundsOf(r).Any():
		return &words.Saving{Rows: &rows}
	case Of(r).Traits().Timed:
		return &chosen
	}
	return nil
}
