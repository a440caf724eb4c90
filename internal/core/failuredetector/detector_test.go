package failuredetector

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
)

// room is a detector with processes, all of which were heard at every tick for a while.
type room struct {
	Detector
	all     []Subject
	answers func() (runs, answers bool) // of parents that are asked; nil: no parent answers
	asked   int
}

func newRoom(n int) *room {
	r := &room{Detector: NewDetector(patience), all: make([]Subject, n)}
	for i := range r.all {
		r.all[i] = Subject{Ear: &Ear{}, There: true, Speaks: true}
		r.Comes(r.all[i].Ear)
	}
	r.ticks(40, 0, 0)
	return r
}

// ticks lets ticks pass, the job being at a clock, in which the first few are quiet and all
// others are heard. It returns who became a suspect, and after how many ticks the first did.
func (r *room) ticks(n int, clock perdure.Clock, quiet int) (suspects []int, after int) {
	for t := range n {
		for i := quiet; i < len(r.all); i++ {
			if r.Hushed() {
				r.Excuse(r.all)
			}
			r.Sign(r.all[i].Ear, true)
			r.all[i].Says()
		}
		r.Pass()
		found, ask := r.Suspects(r.all, clock)
		for _, i := range ask {
			if r.asked++; r.answers == nil {
				continue
			}
			if runs, answers := r.answers(); answers {
				r.all[i].Answers(r.all[i].Asked(), runs)
			}
		}
		if len(ask) > 0 {
			more, _ := r.Suspects(r.all, clock)
			found = append(found, more...)
		}
		if len(found) > 0 {
			if suspects = append(suspects, found...); after == 0 {
				after = t + 1
			}
		}
	}
	return suspects, after
}

// usual is the silence in ticks after which who was heard at every tick is suspected.
const usual = 5

// Who is suspected, and when, by what the silent ones have in common.
func TestSuspects(t *testing.T) {
	succeed := func(r *room) { r.all[0].Succeed(); r.Comes(r.all[0].Ear) }
	breaks := func(r *room) { succeed(r); r.Breaks(r.all[0].Ear) }
	for name, c := range map[string]struct {
		places, quiet int
		change        func(r *room) // before the silence
		allowed       int           // ticks since it was heard; 0: nobody is suspected
	}{
		"one of many":                   {places: 17, quiet: 1, allowed: usual},
		"one of two":                    {places: 2, quiet: 1, allowed: usual},
		"two of 17":                     {places: 17, quiet: 2, allowed: usual},
		"three of 17, which a share is": {places: 17, quiet: 3, allowed: usual + patience},
		"two of 16, a share just so":    {places: 16, quiet: 2, allowed: usual + patience},
		"four of 17, one of which broke": {places: 17, quiet: 4, allowed: usual, change: func(r *room) {
			r.Breaks(r.all[0].Ear) // it is in no doubt, and the others are told later
		}},
		"both of two":                {places: 2, quiet: 2, allowed: usual + patience},
		"all of three, so the watch": {places: 3, quiet: 3, allowed: 5 * patience},
		"three whose connections broke": {places: 17, quiet: 3, allowed: usual, change: func(r *room) {
			for i := range 3 {
				r.Breaks(r.all[i].Ear)
			}
		}},
		"one that is starting":          {places: 5, quiet: 1, allowed: MostStarting * patience, change: succeed},
		"one that broke while starting": {places: 5, quiet: 1, allowed: patience, change: breaks},
		"one that redials while starting": {
			places: 5, quiet: 1, allowed: MostStarting * patience,
			change: func(r *room) {
				breaks(r)
				r.all[0].Redials = true
			},
		},
		"one that has nothing to say": {places: 5, quiet: 1, change: func(r *room) { r.all[0].Speaks = false }},
		"one that is dead":            {places: 5, quiet: 1, change: func(r *room) { r.all[0].There = false }},
	} {
		r := newRoom(c.places)
		if c.change != nil {
			c.change(r)
		}
		suspects, after := r.ticks(30*patience, 0, c.quiet)
		if c.change == nil {
			after++ // all were heard a tick before
		}
		if after != c.allowed && (c.allowed > 0 || len(suspects) > 0) {
			t.Errorf("%s: suspected after a silence of %d ticks, want %d", name, after, c.allowed)
		}
		if c.allowed > 0 && len(slices.Compact(slices.Sorted(slices.Values(suspects)))) != c.quiet {
			t.Errorf("%s: suspects %v, want the first %d", name, suspects, c.quiet)
		}
	}
}

// A process whose parent can be asked is suspected when the parent says that it is idle, or says nothing; if it wants
// to run it has three times as long.
func TestAsk(t *testing.T) {
	for name, c := range map[string]struct {
		answers       func() (runs, answers bool)
		allowed, asks int
	}{
		"idle":      {func() (bool, bool) { return false, true }, usual, 1},
		"no answer": {nil, usual + answerTicks, 1},
		"runnable":  {func() (bool, bool) { return true, true }, Runnable * usual, 0},
	} {
		r := newRoom(17)
		r.all[0].Asks, r.answers = true, c.answers
		suspects, after := r.ticks(30*patience, 0, 1)
		if len(suspects) != 1 || after+1 < c.allowed || after+1 > c.allowed+askAgain {
			t.Errorf("%s: %v suspected after a silence of %d ticks, want %d", name, suspects, after+1, c.allowed)
		}
		if c.asks > 0 && r.asked != c.asks {
			t.Errorf("%s: asked %d times, want %d", name, r.asked, c.asks)
		}
	}
	r := newRoom(17)
	r.all[0].Asks, r.answers = true, func() (bool, bool) { return true, true }
	if s, _ := r.ticks(2*usual, 0, 1); s != nil {
		t.Fatalf("%v suspected, though it wants to run", s)
	}
	r.ticks(1, 0, 0) // it is heard
	if s, after := r.ticks(2*usual, 0, 1); s != nil {
		t.Errorf("%v suspected %d ticks after it was heard", s, after)
	}
	r.ticks(1, 0, 0)
	r.answers = func() (bool, bool) { return false, true }
	if s, _ := r.ticks(4*patience, 0, 1); len(s) != 1 {
		t.Errorf("%v suspected, though it is idle now", s)
	}
}

// A watch that was deaf excuses everybody once it hears one of them.
func TestExcuse(t *testing.T) {
	r := newRoom(4)
	if s, _ := r.ticks(2*patience, 0, 4); s != nil {
		t.Fatalf("a deaf watch suspects %v", s)
	}
	if s, after := r.ticks(9, 0, 3); s != nil {
		t.Errorf("%v suspected %d ticks after the watch was deaf", s, after)
	}
}

// Who is given up again and again while the job stands is waited for twice as long each
// time, to a bound; and as long as ever once the job has gone on.
func TestBackOff(t *testing.T) {
	r := newRoom(17)
	for round := range 8 {
		suspects, after := r.ticks(30*patience, 3, 1)
		if want := min(usual<<round, MostBackOff*patience); len(suspects) != 1 || after+1 != want {
			t.Fatalf("round %d: %v suspected after a silence of %d ticks, want %d", round, suspects, after+1, want)
		}
		if !r.all[0].GiveUp(3) || r.all[0].GiveUp(3) {
			t.Fatal("it is not given up once")
		}
		r.all[0].Succeed()
		r.Comes(r.all[0].Ear)
		r.ticks(60, 3, 0)
	}
	if _, after := r.ticks(30*patience, 4, 1); after+1 != usual {
		t.Errorf("suspected after a silence of %d ticks, though the job has gone on", after+1)
	}
}
