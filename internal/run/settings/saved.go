package settings

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
)

// RunningCheckpoint is the running checkpoint that a run resumes from. It contains the last saved value of each row.
type RunningCheckpoint struct {
	Number uint64                 `json:"number"` // of its manifest
	Files  [][]protocol.SavedFile `json:"files"`  // by shard, oldest first
	// States are the saved slot states that the newest files refer to; nil if the files contain them all.
	States [][]protocol.SavedFile `json:"states,omitempty"`
	// a line that tells the user which checkpoint was chosen; "" if there is nothing to report
	Note string `json:"-"`
}

// ReadRunningCheckpoint makes a run resume from the newest running checkpoint of a store that is complete and
// undamaged. It returns the manifest that a checkpoint of one clock of that job would have.
func ReadRunningCheckpoint(from store.Store, s *Run) (m checkpoint.Manifest, err error) {
	r, passed, err := checkpoint.LatestCompleteRunning(from)
	if err != nil {
		return m, err
	}
	s.Saved, s.Checkpoints.From = &RunningCheckpoint{Number: r.Number}, r.Names()
	if s.Checkpoints.furthest, err = checkpoint.MaxClock(from, &r); err != nil {
		return m, err
	}
	for _, shard := range r.Shards {
		var files []protocol.SavedFile
		for _, f := range shard.Files {
			files = append(files, protocol.SavedFile(f))
		}
		s.Saved.Files = append(s.Saved.Files, files)
		s.Saved.ReferToStates(len(s.Saved.Files)-1, len(r.Shards), shard.States)
	}
	s.Saved.Note = skippedNote(from, checkpoint.RunningFile(r.Number), r.Clock, passed)
	return r.Manifest(), nil
}

// skippedNote returns a line for the user about damaged checkpoints that are newer than the one that a run starts from.
// It returns "" without any.
func skippedNote(from store.Store, manifest string, at perdure.Clock, passed []checkpoint.Defect) string {
	if len(passed) == 0 {
		return ""
	}
	more := ""
	if n := len(passed); n > 1 {
		more = fmt.Sprintf(", and %d more", n-1)
	}
	return fmt.Sprintf("%s: skipped damaged checkpoints that are newer than %s (clock %d): %s%s", from, manifest, at,
		passed[0], more)
}

// ReferToStates records the slot states that the newest file of a shard refers to, in a job with the given number of
// shards.
func (sv *RunningCheckpoint) ReferToStates(shard, shards int, states []checkpoint.FileRef) {
	for _, f := range states {
		if sv.States == nil {
			sv.States = make([][]protocol.SavedFile, shards)
		}
		sv.States[shard] = append(sv.States[shard], protocol.SavedFile(f))
	}
}

// sameForm returns an error if a run cannot resume under another strategy: one strategy saves each row at a clock of
// its own, and the other all rows at one clock.
func sameForm(was, now perdure.Recovery) error {
	if recovery.Of(was).Traits().UsesLog() && !recovery.Of(now).Traits().UsesLog() {
		return perdure.Usagef("--recovery %s: the run's updates are in a log, and only %s can resume from a log; "+
			"remove the flag", now, was)
	}
	before, after := recovery.RoundsOf(was).Any(), recovery.RoundsOf(now).Any()
	switch {
	case before == after:
		return nil
	case before:
		return perdure.Usagef("--recovery %s: the run saved each row separately, with recovery %s, and only scar can "+
			"resume from that; choose scar:C,R,SELECTOR, or remove the flag", now, was)
	}
	return perdure.Usagef("--recovery %s: the run saved all rows at one clock, with recovery %s; scar can resume "+
		"only from a scar run", now, was)
}

// validateSaved checks that a run which resumes from separately saved rows has their files, and that no other run has
// any.
func (s *Run) validateSaved() error {
	switch sv := s.Saved; {
	case sv == nil && (s.Resumed == "" && s.Checkpoints.Init == nil || !recovery.RoundsOf(s.Job.Recovery).Any()):
		return nil
	case sv == nil:
		return fmt.Errorf("it is missing, although the run was resumed or started with a model, with recovery %s",
			s.Job.Recovery)
	case s.Resumed == "" && s.Checkpoints.Init == nil || !recovery.RoundsOf(s.Job.Recovery).Any() || sv.Number < 1 ||
		len(sv.Files) != s.Job.Shards || len(sv.States) != 0 && len(sv.States) != s.Job.Shards:
		return fmt.Errorf("number %d, with the files of %d shards, does not match a run with recovery %s and %d "+
			"shards: only runs that were resumed or started with a model have this setting",
			sv.Number, len(sv.Files), s.Job.Recovery,
			s.Job.Shards)
	}
	return nil
}
