package settings

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
)

// Saved is the running checkpoint that a run goes on from: of each row the value that was saved
// of it last.
type Saved struct {
	Number uint64              `json:"number"` // of its manifest
	Files  [][]words.SavedFile `json:"files"`  // by shard, the oldest first
	// States are what slots have saved, where the newest files refer to it; nil: they have it all.
	States [][]words.SavedFile `json:"states,omitempty"`
	// Current says that the run begins with all rows as they were at its cut, which is a checkpoint beside this one:
	// what is in these files a shard begins with that is lost.
	Current bool   `json:"current,omitempty"`
	Note    string `json:"-"` // a line that people are told of what was chosen; "": there is nothing to tell
}

// ReadSaved has a run go on from the newest running checkpoint of a store that is whole, to the last byte.
// It returns what a manifest of one clock would say of the job that made it.
func ReadSaved(from store.Store, s *Run) (m checkpoint.Manifest, err error) {
	r, passed, err := checkpoint.WholeRunning(from)
	if err != nil {
		return m, err
	}
	s.Saved, s.Checkpoints.From = &Saved{Number: r.Number}, r.Names()
	if s.Checkpoints.furthest, err = checkpoint.Furthest(from, &r); err != nil {
		return m, err
	}
	for _, shard := range r.Shards {
		var files []words.SavedFile
		for _, f := range shard.Files {
			files = append(files, words.SavedFile(f))
		}
		s.Saved.Files = append(s.Saved.Files, files)
		s.Saved.Refer(len(s.Saved.Files)-1, len(r.Shards), shard.States)
	}
	s.Saved.Note = passedOver(from, checkpoint.RunningFile(r.Number), r.Clock, passed)
	return r.Manifest(), nil
}

// passedOver is a line for the user about damaged checkpoints that are newer than the one that a run starts from; "" if
// there are none.
func passedOver(from store.Store, manifest string, at perdure.Clock, passed []checkpoint.Defect) string {
	if len(passed) == 0 {
		return ""
	}
	more := ""
	if n := len(passed); n > 1 {
		more = fmt.Sprintf(", and %d more", n-1)
	}
	return fmt.Sprintf("%s: what is newer than %s, of clock %d, is damaged, and passed over: %s%s", from, manifest, at,
		passed[0], more)
}

// Refer notes to which states of slots the newest file of a shard refers, in a job of that many shards.
func (sv *Saved) Refer(shard, shards int, states []checkpoint.FileRef) {
	for _, f := range states {
		if sv.States == nil {
			sv.States = make([][]words.SavedFile, shards)
		}
		sv.States[shard] = append(sv.States[shard], words.SavedFile(f))
	}
}

// sameForm refuses another strategy than a run had, where it cannot go on from what that has
// saved: rows that are each of a clock of their own, or all of one.
func sameForm(was, now perdure.Recovery) error {
	if recovery.Of(was).Traits().Logged() && !recovery.Of(now).Traits().Logged() {
		return fmt.Errorf("%w: --recovery %s: the run has its updates in a log, and only %s goes on from that; "+
			"leave it out", perdure.ErrUsage, now, was)
	}
	before, after := recovery.RoundsOf(was).Any(), recovery.RoundsOf(now).Any()
	switch {
	case before == after:
		return nil
	case before:
		return fmt.Errorf("%w: --recovery %s: the run has saved each row by itself, under %s, and only scar goes on "+
			"from that; choose scar:C,R,SELECTOR, or leave it out", perdure.ErrUsage, now, was)
	}
	return fmt.Errorf("%w: --recovery %s: the run has saved all rows of one clock, under %s; scar goes on from "+
		"its own runs only", perdure.ErrUsage, now, was)
}

// oddSaved: who goes on from rows that were saved by themselves does the same.
func (s *Run) oddSaved() error {
	switch sv := s.Saved; {
	case sv == nil && (s.Resumed == "" && s.Checkpoints.Init == nil || !recovery.RoundsOf(s.Job.Recovery).Any()):
		return nil
	case sv == nil:
		return fmt.Errorf("it is not there, and the run goes on from another one, or begins with a model, under %s",
			s.Job.Recovery)
	case s.Resumed == "" && s.Checkpoints.Init == nil || !recovery.RoundsOf(s.Job.Recovery).Any() || sv.Number < 1 ||
		len(sv.Files) != s.Job.Shards || len(sv.States) != 0 && len(sv.States) != s.Job.Shards:
		return fmt.Errorf("number %d, with the files of %d shards, is of no run under %s with %d shards that went "+
			"on from another, or began with a model", sv.Number, len(sv.Files), s.Job.Recovery, s.Job.Shards)
	}
	return nil
}
