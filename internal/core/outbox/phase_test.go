package outbox

import (
	"fmt"
	"slices"
	"testing"

	"github.com/perdure/perdure"
)

// TestCourse checks every step from every phase: the resulting phase, or that the step is invalid. It restates course
// in the simplest way.
func TestCourse(t *testing.T) {
	want := func(s step, p Phase) (Phase, bool) {
		switch {
		case s == roll: // whatever the clock's phase, it is void
			return RolledBack, true
		case s == turn: // Clock restarts, after a rollback or at the job's end
			return Open, true
		case p == RolledBack: // nothing else is valid
			return 0, false
		case s == build && p == Open:
			return Built, true
		case s == send && p == Built:
			return Sent, true
		case s == stage && (p == Sent || p == Staged): // can be repeated
			return Staged, true
		case s == unstage && (p == Sent || p == Staged):
			return Sent, true
		case s == tick && p == Staged: // never before all shards have staged it
			return Ticked, true
		case s == next && (p == Sent || p == Ticked): // never between: a staged clock is ticked first
			return Open, true
		}
		return 0, false
	}
	for s := range steps {
		for p := Open; p <= RolledBack; p++ {
			got, ok := p.after(s)
			if to, may := want(s, p); ok != may || ok && got != to {
				t.Errorf("%v of a clock that is %v: %v, %v; want %v, %v", s, p, got, ok, to, may)
			}
		}
	}
}

// A clock is over where the job ends, in any phase, unless it was rolled back. It is no longer over if the job's end is
// moved to a later clock. Only a clock that is over or rolled back has ended. An invalid step is a bug in the caller.
func TestEnds(t *testing.T) {
	for p := Open; p <= RolledBack; p++ {
		for end := range 5 {
			at := progress{clock: 2, phase: p, end: perdure.Clock(end)}
			want := p
			if p != RolledBack && (end == 1 || end == 2) {
				want = Over
			}
			got := at.Phase()
			if got != want || got.IsOver() != slices.Contains([]Phase{RolledBack, Over}, want) {
				t.Errorf("clock 2, %v, the job ends at %d: %v, want %v", p, end, got, want)
			}
			if got.InFlight() != slices.Contains([]Phase{Built, Sent, Staged, Ticked}, want) {
				t.Errorf("a clock that is %v: UnderWay is %v", got, got.InFlight())
			}
			for s := range steps {
				err := tryStep(&progress{clock: 2, phase: p, end: at.end}, s)
				if _, may := p.after(s); may != (err == nil) {
					t.Errorf("%v of a clock that is %v: %v", s, p, err)
				}
			}
		}
	}
}

func tryStep(p *progress, s step) (err any) {
	defer func() { err = recover() }()
	p.step(s)
	return nil
}

func TestPhasesHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for p := Open; p <= Over; p++ {
		seen[p.String()] = true
	}
	for s := range steps {
		seen[fmt.Sprint(s)] = true
	}
	if len(seen) != int(Over)+1+int(steps) || seen[""] {
		t.Error(seen)
	}
}
