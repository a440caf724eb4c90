// Package failuredetector decides, purely, which processes have probably failed: how long silence is
// tolerated ([Detector]), and which processes are excluded when two of them cannot reach each other
// although the coordinator can reach both ([Partitions]).
//
// A [Detector] counts ticks, and each process has an [Ear] that remembers how regularly it was heard.
// Silence counts only in ticks during which the detector itself was listening. A detector that hears
// nobody at all, or misses one in eight of all processes at once, suspects itself first. If a process
// was given up before and the job has made no progress since, the detector waits twice as long.
//
// The package only names suspects; the caller (package membership) acts. No type is safe for concurrent use.
package failuredetector

import (
	"slices"

	"github.com/perdure/perdure"
)

// What a process may take beyond the patience, in patiences.
const (
	// MostStarting is until its first status, once it was let in: it may have much to load.
	MostStarting = 20
	// MostBackOff is where it was given up before, and the job has come no further since.
	MostBackOff = 20
)

// On a busy machine a process may be silent only because it does not get the processor.
const (
	// Runnable is how many times its silence a process may take that wants to run, as its parent sees it.
	Runnable = 3
	// answerTicks is how long a parent has to answer how its process is, and askAgain after how many ticks it is asked
	// again about one that wants to run.
	answerTicks, askAgain = 3, 2
)

// commonShare is the share of all processes, one in this many, that have to be quiet at
// once for the watch to suspect itself first.
const commonShare = 8

// Detector counts the time, and knows how well it hears.
type Detector struct {
	patience int64 // ticks of silence after which a process is suspected that nothing is known of
	now      int64 // ticks in which it was listening, so far
	heard    int64 // when it heard anybody last
	doubtful int64 // since when it suspects itself; 0: it does not
}

// NewDetector returns a detector with a patience: the silence, in ticks, after which a process is
// suspected of which nothing is known yet. Later it is a third to four times that, by how
// regularly the process was heard.
func NewDetector(patience int64) Detector { return Detector{patience: patience} }

// Patience returns the patience that the detector was made with.
func (w *Detector) Patience() int64 { return w.patience }

// Pass lets a tick pass in which the detector was listening.
func (w *Detector) Pass() { w.now++ }

// Ear is what is known of one place's process by listening. The zero Ear has heard nothing.
type Ear struct {
	last     int64 // when it was heard last, by Detector.now
	starting bool  // it has said nothing of itself since it was given its place
	broken   bool  // its connection broke, and it has not come back
	suspect  bool
	givenUp  bool  // as a suspect
	asked    int64 // tick of the last inquiry to its parent since its last sign of life; 0: none
	answer   answer
	pulse    pulse
	strikes  backOff
}

// answer is what the parent of a process says of it.
type answer int

const (
	none     answer = iota // it has not answered yet
	idle                   // stopped, or waiting for something: if it were well, it would have been heard
	runnable               // it runs, or waits for the processor
)

// Asked returns the tick at which the parent of the process was asked how it is; 0: it was not, since the process was
// heard last.
func (e *Ear) Asked() int64 { return e.asked }

// Answers notes what the parent of a process says that was asked how it is at a tick. If the process was heard
// meanwhile, the answer comes too late, and says nothing of a silence that has begun since.
func (e *Ear) Answers(asked int64, runs bool) {
	switch {
	case e.asked == 0, e.asked != asked:
	case runs:
		e.answer = runnable
	default:
		e.answer = idle
	}
}

// Suspect reports whether the process was silent for too long, and was not heard since.
func (e *Ear) Suspect() bool { return e.suspect }

// Succeed begins anew for the next process of the place. How often its predecessors were
// given up stays known.
func (e *Ear) Succeed() { *e = Ear{strikes: e.strikes, starting: true} }

// Says notes that the process has said how it is. It reports whether it was a suspect.
func (e *Ear) Says() (suspect bool) {
	suspect = e.suspect
	e.suspect, e.givenUp, e.starting = false, false, false
	return suspect
}

// Accuse makes the process a suspect for another reason than silence, and reports whether that is new.
func (e *Ear) Accuse() (news bool) {
	news = !e.suspect
	e.suspect = true
	return news
}

// Stretch makes a number of ticks that a process was given longer, up to most, by how often its predecessors were
// given up while the job came no further than a clock.
func (e *Ear) Stretch(ticks, most int64, clock perdure.Clock) int64 {
	return e.strikes.stretch(ticks, most, clock)
}

// GiveUp notes that a suspect is given up, when the job is at a clock. False: it was
// before.
func (e *Ear) GiveUp(clock perdure.Clock) bool {
	if e.givenUp {
		return false
	}
	e.givenUp = true
	e.strikes.struck(clock)
	return true
}

// Comes notes that a process has come, or has come back.
func (w *Detector) Comes(e *Ear) {
	e.last, e.suspect, e.givenUp, e.broken, e.asked, e.answer = w.now, false, false, false, 0, none
}

// Breaks notes that the connection to a process broke. Until now it may have had nothing to
// say.
func (w *Detector) Breaks(e *Ear) { e.last, e.broken = w.now, true }

// Await counts a process's silence from now on: it has had nothing to say before.
func (w *Detector) Await(e *Ear) { e.last = w.now }

// Silence returns for how many ticks a process has been silent.
func (w *Detector) Silence(e *Ear) int64 { return w.now - e.last }

// Subject is a place whose silence is judged.
type Subject struct {
	*Ear
	There  bool // a process has it, which is not known to be dead
	Speaks bool // it is one that has something to say
	// Redials says that while it is starting its connection may break, and it comes again.
	Redials bool
	// Asks says that its parent, on the same machine, can be asked how it is before it is suspected.
	Asks bool
}

// Sign notes a sign of life of a process. One that says how it is does so regularly: the
// intervals teach how long its silence may be.
func (w *Detector) Sign(e *Ear, regularly bool) {
	if regularly {
		e.pulse.heard(w.now-e.last, w.patience)
	}
	e.last, w.heard = w.now, w.now
	e.asked, e.answer = 0, none
}

// Deaf reports whether nobody at all, of three or more, has been heard for a fifth of the
// patience: most likely it is the watch that is cut off. It then suspects nobody, for up
// to four times the patience. all are the subjects of all places.
func (w *Detector) Deaf(all []Subject) bool {
	if !w.Hushed() {
		return false
	}
	there := 0
	for i := range all {
		if all[i].There && !all[i].suspect {
			there++
		}
	}
	return there >= 3
}

// Hushed reports whether nobody has been heard for long enough that the watch may be deaf.
func (w *Detector) Hushed() bool {
	silent := w.now - w.heard
	return silent > max(1, w.patience/5) && silent < 4*w.patience
}

// Excuse is called when somebody is heard. If the watch was deaf until now the others were
// not silent either, as far as can be known.
func (w *Detector) Excuse(all []Subject) {
	if !w.Deaf(all) {
		return
	}
	for i := range all {
		all[i].last = w.now
	}
}

// Suspects returns the numbers of the subjects that become suspects now, the job being at a
// clock. Where several are quiet at once, and these are a share of all, what they have in
// common is most likely a machine that is busy, or the watch: it suspects itself first,
// and them only if that is so for another patience. One whose connection is broken is not in
// doubt. Ask are the numbers of subjects whose parents must be asked first.
func (w *Detector) Suspects(all []Subject, clock perdure.Clock) (suspects, ask []int) {
	if w.Deaf(all) {
		return nil, nil
	}
	there, quiet := 0, 0
	for i := range all {
		s := &all[i]
		if !s.There || !s.Speaks || s.suspect {
			continue
		}
		there++
		silence, allowed := w.Silence(s.Ear), w.allows(s, clock)
		if !s.broken && 2*silence > allowed {
			quiet++
		}
		if silence >= allowed {
			suspects = append(suspects, i)
		}
	}
	if !w.trusts(len(suspects) > 0 && quiet > 1 && quiet*commonShare >= there) {
		suspects = slices.DeleteFunc(suspects, func(i int) bool { return !all[i].broken })
	}
	suspects = slices.DeleteFunc(suspects, func(i int) bool {
		waits, asks := w.hesitates(&all[i], clock)
		if asks {
			ask = append(ask, i)
		}
		all[i].suspect = !waits
		return waits
	})
	return suspects, ask
}

// hesitates reports whether a process that has been silent for too long is not suspected yet, and whether its parent is
// to be asked now. One that is frozen, or waits, is suspected as soon as its parent says so.
func (w *Detector) hesitates(s *Subject, clock perdure.Clock) (waits, asks bool) {
	since := w.now - s.asked
	switch {
	case !s.Asks || s.broken || s.answer == idle:
		return false, false
	case s.asked == 0, s.answer == runnable && since >= askAgain:
		if s.answer == runnable && w.Silence(s.Ear) >= Runnable*w.allows(s, clock) {
			return false, false
		}
		s.asked, s.answer = w.now, none
		return true, true
	}
	return s.answer == runnable || since < answerTicks, false
}

// trusts reports whether the watch trusts what it hears, or has not for a whole patience.
// common says that several are silent, and have that in common.
func (w *Detector) trusts(common bool) bool {
	switch {
	case !common:
		w.doubtful = 0
		return true
	case w.doubtful == 0:
		w.doubtful = w.now
	}
	return w.now-w.doubtful >= w.patience
}

// allows returns the silence, in ticks, after which a process is suspected. One that
// redials is starting all the while until it has said how it is. Another one whose
// connection broke before its first status is most likely dead, and is waited for.
func (w *Detector) allows(s *Subject, clock perdure.Clock) int64 {
	silence := s.pulse.allows(w.patience)
	if s.starting && (!s.broken || s.Redials) {
		silence = MostStarting * w.patience
	}
	return s.strikes.stretch(silence, MostBackOff*w.patience, clock)
}
