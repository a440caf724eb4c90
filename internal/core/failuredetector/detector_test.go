package failuredetector

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
)

// room is a detector with processes that were all heard from at every tick for a while.
type room struct {
	Detector
	all     []Subject
	answers func() (runs, answers bool) // answers of the parents that are asked; nil: no parent answers
	asked   int
}

func newRoom(n int) *room {
	r := &room{Detector: NewDetector(patience), all: make([]Subject, n)}
	for i := range r.all {
		r.all[i] = Subject{Liveness: &Liveness{}, Present: true, Sends: true}
		r.RecordConnected(r.all[i].Liveness)
	}
	r.ticks(40, 0, 0)
	return r
}

// ticks advances the time by n ticks while the job is at clock. The first quiet processes are silent, and all others
// send at every tick. It returns the new suspects, and after how many ticks the first one was suspected.
func (r *room) ticks(n int, clock perdure.Clock, quiet int) (suspects []int, after int) {
	for t := range n {
		for i := quiet; i < len(r.all); i++ {
			if r.MayBeCutOff() {
				r.RestartAllSilence(r.all)
			}
			r.RecordSignOfLife(r.all[i].Liveness, true)
			r.all[i].RecordStatus()
		}
		r.Tick()
		found, ask := r.Suspects(r.all, clock)
		for _, i := range ask {
			if r.asked++; r.answers == nil {
				continue
			}
			if runs, answers := r.answers(); answers {
				r.all[i].RecordAnswer(r.all[i].AskedAt(), runs)
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

// usual is the limit, in ticks of silence, for a process that sent at every tick.
const usual = 5

// TestSuspects checks which processes are suspected, and when, depending on how many are silent at the same time.
func TestSuspects(t *testing.T) {
	succeed := func(r *room) { r.all[0].ResetForReplacement(); r.RecordConnected(r.all[0].Liveness) }
	breaks := func(r *room) { succeed(r); r.RecordDisconnected(r.all[0].Liveness) }
	for name, c := range map[string]struct {
		places, quiet int
		change        func(r *room) // before the silence
		allowed       int           // ticks since it was last heard from; 0: no process is suspected
	}{
		"one of many":                         {places: 17, quiet: 1, allowed: usual},
		"one of two":                          {places: 2, quiet: 1, allowed: usual},
		"two of 17":                           {places: 17, quiet: 2, allowed: usual},
		"three of 17, more than one in eight": {places: 17, quiet: 3, allowed: usual + patience},
		"two of 16, exactly one in eight":     {places: 16, quiet: 2, allowed: usual + patience},
		"four of 17, one with a broken connection": {places: 17, quiet: 4, allowed: usual, change: func(r *room) {
			r.RecordDisconnected(r.all[0].Liveness) // suspected without delay; the others follow later
		}},
		"both of two":                          {places: 2, quiet: 2, allowed: usual + patience},
		"all of three, so the detector itself": {places: 3, quiet: 3, allowed: 5 * patience},
		"three whose connections broke": {places: 17, quiet: 3, allowed: usual, change: func(r *room) {
			for i := range 3 {
				r.RecordDisconnected(r.all[i].Liveness)
			}
		}},
		"one that is starting":          {places: 5, quiet: 1, allowed: MaxStartingFactor * patience, change: succeed},
		"one that broke while starting": {places: 5, quiet: 1, allowed: patience, change: breaks},
		"one that redials while starting": {
			places: 5, quiet: 1, allowed: MaxStartingFactor * patience,
			change: func(r *room) {
				breaks(r)
				r.all[0].MayReconnect = true
			},
		},
		"one that is not expected to send": {places: 5, quiet: 1, change: func(r *room) { r.all[0].Sends = false }},
		"one that is dead":                 {places: 5, quiet: 1, change: func(r *room) { r.all[0].Present = false }},
	} {
		r := newRoom(c.places)
		if c.change != nil {
			c.change(r)
		}
		suspects, after := r.ticks(30*patience, 0, c.quiet)
		if c.change == nil {
			after++ // all were heard from one tick earlier
		}
		if after != c.allowed && (c.allowed > 0 || len(suspects) > 0) {
			t.Errorf("%s: suspected after a silence of %d ticks, want %d", name, after, c.allowed)
		}
		if c.allowed > 0 && len(slices.Compact(slices.Sorted(slices.Values(suspects)))) != c.quiet {
			t.Errorf("%s: suspects %v, want the first %d", name, suspects, c.quiet)
		}
	}
}

// A process whose parent can be asked is suspected when the parent reports it as idle or does not answer. A runnable
// process is given three times as long.
func TestAsk(t *testing.T) {
	for name, c := range map[string]struct {
		answers       func() (runs, answers bool)
		allowed, asks int
	}{
		"idle":      {func() (bool, bool) { return false, true }, usual, 1},
		"no answer": {nil, usual + answerTicks, 1},
		"runnable":  {func() (bool, bool) { return true, true }, RunnableFactor * usual, 0},
	} {
		r := newRoom(17)
		r.all[0].CanAsk, r.answers = true, c.answers
		suspects, after := r.ticks(30*patience, 0, 1)
		if len(suspects) != 1 || after+1 < c.allowed || after+1 > c.allowed+askAgain {
			t.Errorf("%s: %v suspected after a silence of %d ticks, want %d", name, suspects, after+1, c.allowed)
		}
		if c.asks > 0 && r.asked != c.asks {
			t.Errorf("%s: asked %d times, want %d", name, r.asked, c.asks)
		}
	}
	r := newRoom(17)
	r.all[0].CanAsk, r.answers = true, func() (bool, bool) { return true, true }
	if s, _ := r.ticks(2*usual, 0, 1); s != nil {
		t.Fatalf("%v suspected, although it is runnable", s)
	}
	r.ticks(1, 0, 0) // it sends
	if s, after := r.ticks(2*usual, 0, 1); s != nil {
		t.Errorf("%v suspected %d ticks after it was heard from", s, after)
	}
	r.ticks(1, 0, 0)
	r.answers = func() (bool, bool) { return false, true }
	if s, _ := r.ticks(4*patience, 0, 1); len(s) != 1 {
		t.Errorf("%v suspected, want one suspect, because it is idle now", s)
	}
}

// When a detector that was cut off receives its first sign of life, it excuses the silence of all processes.
func TestExcuse(t *testing.T) {
	r := newRoom(4)
	if s, _ := r.ticks(2*patience, 0, 4); s != nil {
		t.Fatalf("the detector is cut off, but suspects %v", s)
	}
	if s, after := r.ticks(9, 0, 3); s != nil {
		t.Errorf("%v suspected %d ticks after the detector was cut off", s, after)
	}
}

// While the job makes no progress, the limit doubles each time a process of one slot is given up, up to a bound. Once
// the job has progressed, the limit is the usual one again.
func TestBackOff(t *testing.T) {
	r := newRoom(17)
	for round := range 8 {
		suspects, after := r.ticks(30*patience, 3, 1)
		if want := min(usual<<round, MaxBackOffFactor*patience); len(suspects) != 1 || after+1 != want {
			t.Fatalf("round %d: %v suspected after a silence of %d ticks, want %d", round, suspects, after+1, want)
		}
		if !r.all[0].GiveUp(3) || r.all[0].GiveUp(3) {
			t.Fatal("GiveUp must return true exactly once")
		}
		r.all[0].ResetForReplacement()
		r.RecordConnected(r.all[0].Liveness)
		r.ticks(60, 3, 0)
	}
	if _, after := r.ticks(30*patience, 4, 1); after+1 != usual {
		t.Errorf("suspected after a silence of %d ticks, although the job has progressed", after+1)
	}
}
