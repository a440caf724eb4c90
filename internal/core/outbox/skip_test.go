package outbox

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestSkipTo checks which clocks an update covers if the slot skips some: under asp with atomic clocks those up to the
// requested one or to an early end, but not if a part of the update was sent. A saved state gets the last clock, and a
// resent tick covers all of them.
func TestSkipTo(t *testing.T) {
	for name, c := range map[string]struct {
		model           string
		atomic, begun   bool
		planned, end    perdure.Clock
		to, skips, next perdure.Clock // from clock 5
	}{
		"requested":           {model: "asp", atomic: true, to: 9, skips: 9, next: 9},
		"a bound":             {model: "ssp:9", atomic: true, to: 9, skips: 6, next: 6},
		"one-step clocks":     {model: "asp", to: 9, skips: 6, next: 6},
		"an early end":        {model: "asp", atomic: true, planned: 90, end: 30, skips: 30, next: 30},
		"a planned end":       {model: "asp", atomic: true, planned: 90, end: 90, skips: 6, next: 6},
		"no end":              {model: "asp", atomic: true, skips: 6, next: 6},
		"beyond the end":      {model: "asp", atomic: true, planned: 90, end: 7, to: 9, skips: 7, next: 7},
		"a part was sent":     {model: "asp", atomic: true, begun: true, to: 9, skips: 9, next: 6},
		"more than a uint16":  {model: "asp", atomic: true, to: 90_000, skips: 90_000, next: 5 + maxMergedClocks},
		"the end of no clock": {model: "asp", atomic: true, planned: 90, end: 6, skips: 6, next: 6},
	} {
		b, s := asked(t, c.model, "none", Limits{Window: 1 << 20})
		b.jobView.job.AtomicClocks, b.jobView.job.Clocks = c.atomic, c.planned
		v := b.jobView.view
		v.End = c.end
		b.SetView(v, false)
		b.SaveState(slotstate.Pack([]byte("state"), 5))
		if c.begun {
			s.begin().u.sent = 1
		}
		if skips := b.SkipTo(c.to); skips != c.skips {
			t.Errorf("%s: skips to clock %d, want %d", name, skips, c.skips)
		}
		if err := s.Fill(consistency.Origin{Basis: -1}); err != nil {
			t.Fatal(err)
		}
		b.Seal()
		b.Next()
		if b.Clock() != c.next || s.kept[0].until() != c.next {
			t.Errorf("%s: clock %d is next, want %d, and the update covers those below %d", name, b.Clock(), c.next,
				s.kept[0].until())
		}
		state := perdure.Clock(5)
		if !c.begun {
			state = c.next - 1
		}
		if saved, err := slotstate.Unpack(s.kept[0].state); err != nil || saved.Clock != state {
			t.Errorf("%s: the state has clock %d, want %d (%v)", name, saved.Clock, state, err)
		}
		s.kept[0].phase = Ticked
		frames, err := s.Resend(protocol.Counts{Staged: c.next, Ticked: 5, Applied: 5}, wire.Header{}, nil)
		if err != nil || len(frames) != 1 || frames[0].Clock != c.next-1 {
			t.Errorf("%s: resends %v, want a tick of clock %d (%v)", name, frames, c.next-1, err)
		}
	}
}
