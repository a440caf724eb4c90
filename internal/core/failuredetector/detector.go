// Package failuredetector implements two decisions as pure code: which processes have probably failed, judged by how
// long they have been silent ([Detector]), and which process to exclude when two of them cannot reach each other
// although the coordinator can reach both ([Partitions]).
//
// A [Detector] counts ticks. A [Liveness] records, for each process, how regularly it has been heard from. Only ticks
// during which the detector itself was listening count as silence. If every process falls silent, or one in eight of
// them at the same time, the detector suspects itself first. If a process is given up repeatedly while the job makes no
// progress, the tolerated silence doubles each time.
//
// The package only names suspects; the caller (package membership) acts on them. No type is safe for concurrent use.
package failuredetector

import (
	"slices"

	"github.com/perdure/perdure"
)

// Upper bounds on the tolerated silence in special cases, in multiples of the patience.
const (
	// MaxStartingFactor applies to a process that was admitted and has not sent its first status: it may have much to
	// load.
	MaxStartingFactor = 20
	// MaxBackOffFactor bounds the back-off of a slot whose processes were given up while the job made no progress.
	MaxBackOffFactor = 20
)

// On a busy machine, a process may be silent only because it does not get the CPU.
const (
	// RunnableFactor multiplies the tolerated silence of a process that its parent reports as runnable.
	RunnableFactor = 3
	// answerTicks is how long the parent may take to answer an inquiry about its process. askAgain is the number of
	// ticks between inquiries about a runnable process.
	answerTicks, askAgain = 3, 2
)

// commonShare is the fraction of processes, one in commonShare, that must be quiet simultaneously before the detector
// suspects itself first.
const commonShare = 8

// Detector counts ticks and decides which processes have been silent for too long.
type Detector struct {
	patience int64 // ticks of silence after which a process without any history is suspected
	now      int64 // number of ticks during which the detector was listening
	heard    int64 // tick of the latest sign of life from any process
	doubtful int64 // tick since which the detector suspects itself; 0: it does not
}

// NewDetector returns a detector with the given patience: the ticks of silence after which a process without any
// history is suspected. Once a process has a history, the limit is a third to four times the patience, depending on how
// regular its signs of life are.
func NewDetector(patience int64) Detector { return Detector{patience: patience} }

// Patience returns the patience passed to NewDetector.
func (w *Detector) Patience() int64 { return w.patience }

// Tick advances the time by one tick, during which the detector was listening.
func (w *Detector) Tick() { w.now++ }

// Liveness records the signs of life of the process that holds one server index or worker slot. The zero Liveness has
// recorded none.
type Liveness struct {
	last       int64 // tick of the latest sign of life
	starting   bool  // it has sent no status since it was assigned
	broken     bool  // its connection broke and it has not reconnected
	suspect    bool
	givenUp    bool  // the suspect has been given up
	asked      int64 // tick of the latest inquiry to its parent since its latest sign of life; 0: none
	answer     answer
	heartbeats heartbeatStats
	backOff    backOff
}

// answer is the parent's report on a process.
type answer int

const (
	none     answer = iota // the parent has not answered yet
	idle                   // stopped or blocked: a healthy process would have sent its status
	runnable               // running, or waiting for the CPU
)

// AskedAt returns the tick of the latest inquiry to the parent of the process. It is 0 if the parent has not been asked
// since the latest sign of life.
func (e *Liveness) AskedAt() int64 { return e.asked }

// RecordAnswer records the parent's answer to the inquiry of tick asked. An answer is ignored if the process has been
// heard from since that inquiry, because it does not describe the current silence.
func (e *Liveness) RecordAnswer(asked int64, runs bool) {
	switch {
	case e.asked == 0, e.asked != asked:
	case runs:
		e.answer = runnable
	default:
		e.answer = idle
	}
}

// IsSuspect reports whether the process is a suspect: it was silent for too long or was accused, and has not been heard
// from since.
func (e *Liveness) IsSuspect() bool { return e.suspect }

// ResetForReplacement resets the record for the replacement process. It keeps how often the predecessors were given up.
func (e *Liveness) ResetForReplacement() { *e = Liveness{backOff: e.backOff, starting: true} }

// RecordStatus records that the process has sent its status. It reports whether the process was a suspect.
func (e *Liveness) RecordStatus() (suspect bool) {
	suspect = e.suspect
	e.suspect, e.givenUp, e.starting = false, false, false
	return suspect
}

// MarkSuspect makes the process a suspect for a reason other than silence. It reports whether the process was not one
// already.
func (e *Liveness) MarkSuspect() (news bool) {
	news = !e.suspect
	e.suspect = true
	return news
}

// ExtendTimeout lengthens a timeout of a process, up to most ticks, by how often its predecessors were given up while
// the job was at this clock.
func (e *Liveness) ExtendTimeout(ticks, most int64, clock perdure.Clock) int64 {
	return e.backOff.extend(ticks, most, clock)
}

// GiveUp records that the suspect is given up while the job is at clock. It returns false if that was recorded before.
func (e *Liveness) GiveUp(clock perdure.Clock) bool {
	if e.givenUp {
		return false
	}
	e.givenUp = true
	e.backOff.record(clock)
	return true
}

// RecordConnected records that a process has connected or reconnected.
func (w *Detector) RecordConnected(e *Liveness) {
	e.last, e.suspect, e.givenUp, e.broken, e.asked, e.answer = w.now, false, false, false, 0, none
}

// RecordDisconnected records that the connection to a process broke. Its silence counts from now on, because it may
// have had no reason to send anything before.
func (w *Detector) RecordDisconnected(e *Liveness) { e.last, e.broken = w.now, true }

// RestartSilence counts the silence of a process from now on, because it had no reason to send anything before.
func (w *Detector) RestartSilence(e *Liveness) { e.last = w.now }

// Silence returns for how many ticks the process has been silent.
func (w *Detector) Silence(e *Liveness) int64 { return w.now - e.last }

// Subject is a server index or worker slot whose process is watched for silence.
type Subject struct {
	*Liveness
	Present bool // a process holds it and is not known to be dead
	Sends   bool // the process is expected to send
	// MayReconnect is set if the process may lose its connection while it starts, and then reconnects.
	MayReconnect bool
	// CanAsk is set if its parent, on the same machine, can be asked about it before it is suspected.
	CanAsk bool
}

// RecordSignOfLife records a sign of life. regularly is true for the periodic status: only its intervals determine how
// long the process may be silent.
func (w *Detector) RecordSignOfLife(e *Liveness, regularly bool) {
	if regularly {
		e.heartbeats.record(w.now-e.last, w.patience)
	}
	e.last, w.heard = w.now, w.now
	e.asked, e.answer = 0, none
}

// IsCutOff reports whether the detector itself is probably cut off: at least three processes are watched, and none of
// them has sent anything for a fifth of the patience. The detector then suspects no process, for up to four times the
// patience. all must list every subject.
func (w *Detector) IsCutOff(all []Subject) bool {
	if !w.MayBeCutOff() {
		return false
	}
	there := 0
	for i := range all {
		if all[i].Present && !all[i].suspect {
			there++
		}
	}
	return there >= 3
}

// MayBeCutOff reports whether every process has been silent for so long that the detector itself may be cut off.
func (w *Detector) MayBeCutOff() bool {
	silent := w.now - w.heard
	return silent > max(1, w.patience/5) && silent < 4*w.patience
}

// RestartAllSilence is called before a sign of life is recorded. If the detector was cut off until now, the silence of
// the other processes proves nothing, so it restarts.
func (w *Detector) RestartAllSilence(all []Subject) {
	if !w.IsCutOff(all) {
		return
	}
	for i := range all {
		all[i].last = w.now
	}
}

// Suspects returns the indices of the subjects that become suspects now, while the job is at clock.
//
// If several processes, and at least one in commonShare of all, are quiet at the same time, the likely cause is a busy
// machine or the detector itself. The detector then suspects itself first, and suspects the processes only if this
// lasts for another patience. This grace does not apply to a process whose connection broke.
//
// ask lists the subjects whose parents must be asked before they can be suspected.
func (w *Detector) Suspects(all []Subject, clock perdure.Clock) (suspects, ask []int) {
	if w.IsCutOff(all) {
		return nil, nil
	}
	there, quiet := 0, 0
	for i := range all {
		s := &all[i]
		if !s.Present || !s.Sends || s.suspect {
			continue
		}
		there++
		silence, allowed := w.Silence(s.Liveness), w.limit(s, clock)
		if !s.broken && 2*silence > allowed {
			quiet++
		}
		if silence >= allowed {
			suspects = append(suspects, i)
		}
	}
	if !w.trustsSilence(len(suspects) > 0 && quiet > 1 && quiet*commonShare >= there) {
		suspects = slices.DeleteFunc(suspects, func(i int) bool { return !all[i].broken })
	}
	suspects = slices.DeleteFunc(suspects, func(i int) bool {
		waits, asks := w.deferSuspicion(&all[i], clock)
		if asks {
			ask = append(ask, i)
		}
		all[i].suspect = !waits
		return waits
	})
	return suspects, ask
}

// deferSuspicion reports whether a process that has been silent for too long is not suspected yet, and whether its
// parent must be asked now. A process whose parent reports it as stopped or blocked is suspected immediately.
func (w *Detector) deferSuspicion(s *Subject, clock perdure.Clock) (waits, asks bool) {
	since := w.now - s.asked
	switch {
	case !s.CanAsk || s.broken || s.answer == idle:
		return false, false
	case s.asked == 0, s.answer == runnable && since >= askAgain:
		if s.answer == runnable && w.Silence(s.Liveness) >= RunnableFactor*w.limit(s, clock) {
			return false, false
		}
		s.asked, s.answer = w.now, none
		return true, true
	}
	return s.answer == runnable || since < answerTicks, false
}

// trustsSilence reports whether the detector may act on the silence that it observes: either the silence is not common
// to several processes, or it has been for a whole patience.
func (w *Detector) trustsSilence(common bool) bool {
	switch {
	case !common:
		w.doubtful = 0
		return true
	case w.doubtful == 0:
		w.doubtful = w.now
	}
	return w.now-w.doubtful >= w.patience
}

// limit returns the ticks of silence after which a process is suspected. A process that redials counts as starting
// until its first status. Any other process whose connection breaks before its first status is most likely dead, so it
// gets only the usual limit.
func (w *Detector) limit(s *Subject, clock perdure.Clock) int64 {
	silence := s.heartbeats.limit(w.patience)
	if s.starting && (!s.broken || s.MayReconnect) {
		silence = MaxStartingFactor * w.patience
	}
	return s.backOff.extend(silence, MaxBackOffFactor*w.patience, clock)
}
