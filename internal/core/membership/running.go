package membership

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// For a running checkpoint the coordinator records which files hold the last saved rows of each shard, and how much has
// been saved and lost so far. A RunningCheckpoint's lists are never changed in place, so its copies stay valid. Nothing
// else here is safe for concurrent use.

// RunningCheckpoint is the running checkpoint of a job. The zero value belongs to a job without one.
type RunningCheckpoint struct {
	Number uint64 `json:"number"` // of its manifest, from 1; 0: nothing has been saved yet
	// Published is the number of the newest manifest that was written. It may lag: see Core.Published.
	Published uint64                 `json:"published,omitempty"`
	Files     [][]protocol.SavedFile `json:"files"` // by shard, the oldest first
	// States lists, by shard, the slot states in the store that the shard's newest file refers to; nil: none.
	States  [][]protocol.SavedFile `json:"states,omitempty"`
	Saving  protocol.RowSaving     `json:"saving"` // statistics of the job so far
	Counted []savedCount           `json:"told"`   // by shard: the part of its statistics that Saving contains
	// UnknownStarts counts the shards whose initial rows are not known yet, in a job that resumes from another job's
	// files.
	UnknownStarts int `json:"unbegun,omitempty"`
	// Current is set if the job starts with the rows of its cut. The files then contain earlier versions of them, for
	// shards that are lost.
	Current bool `json:"current,omitempty"`
}

// savedCount is the part of a holder's statistics that has been counted.
type savedCount struct {
	Since  uint64  `json:"since"` // as in the view's Holder
	Bytes  int64   `json:"bytes"`
	Paused float64 `json:"paused"`
}

// NewRunningCheckpoint returns an empty running checkpoint for a number of shards.
func NewRunningCheckpoint(shards int) RunningCheckpoint {
	return RunningCheckpoint{Files: make([][]protocol.SavedFile, shards), Counted: make([]savedCount, shards)}
}

// ResumeRunningCheckpoint returns the running checkpoint of a job that resumes from the one with the given number.
// files lists its files by shard, and states the slot states that the newest ones refer to, or nil.
func ResumeRunningCheckpoint(number uint64, files, states [][]protocol.SavedFile) RunningCheckpoint {
	c := NewRunningCheckpoint(len(files))
	c.Number, c.Published, c.Files, c.States, c.UnknownStarts = number, number, files, states, len(files)
	return c
}

// ForkRunningCheckpoint returns the running checkpoint of a job that continues from a cut of another job which had
// saved rows to these files, by shard.
func ForkRunningCheckpoint(number uint64, files, states [][]protocol.SavedFile) RunningCheckpoint {
	c := NewRunningCheckpoint(len(files))
	c.Number, c.Published, c.Files, c.States, c.Current = number, number, files, states, true
	return c
}

// StartFiles returns the files with which a shard starts at the beginning of the job. lost reports whether the rows
// come from these files, so that the updates that they lack must be counted: this is so if the job resumes another one
// without a cut.
func (c RunningCheckpoint) StartFiles(shard int) (lost bool, saved []protocol.SavedFile) {
	if c.Number == 0 {
		return false, nil
	}
	return !c.Current, c.Files[shard]
}

// StartMessage returns a message about the initial rows of a resumed job, if these have just become known, and ""
// otherwise. lost is the total number of updates that the rows lack.
func (c RunningCheckpoint) StartMessage(before *RunningCheckpoint, lost int64) string {
	if c.UnknownStarts > 0 || before.UnknownStarts == 0 {
		return ""
	}
	s := &c.Saving
	text := fmt.Sprintf("%d rows start as last saved, on average %.1f and at most %d clocks earlier",
		s.Restored+s.Initial, s.MeanAge(), s.Oldest)
	if s.Initial > 0 {
		text += fmt.Sprintf("; %d of them were never saved and start with their initial values", s.Initial)
	}
	return text + fmt.Sprintf("; %d updates are lost completely, and %d partly", lost, s.PartlyLost)
}

// Next returns the checkpoint with what the shards have saved since, given the status of each; nil: unknown. news
// reports whether anything has changed.
func (c RunningCheckpoint) Next(said func(shard int) *protocol.ObservedShard) (next RunningCheckpoint, news bool) {
	next = c
	for i := range c.Files {
		st := said(i)
		if st == nil || !st.Ready || len(st.Segments) == 0 {
			continue
		}
		s := &st.Segments[0]
		newest := protocol.SavedFile{File: s.File, Bytes: s.Bytes, CRC: s.CRC}
		if had := c.Files[i]; len(had) > 0 && had[len(had)-1] == newest {
			continue
		}
		if !news {
			news = true
			next.Number++
			next.Files, next.Counted = slices.Clone(c.Files), slices.Clone(c.Counted)
		}
		next.Files[i] = append(slices.Clone(s.Base), newest)
		next.setStates(i, s.States)
		next.count(i, &st.ShardStatus)
	}
	return next, news
}

// setStates records which states a shard's newest file refers to.
func (c *RunningCheckpoint) setStates(shard int, states []protocol.SavedFile) {
	if len(states) == 0 && c.States == nil {
		return
	}
	c.States = slices.Clone(c.States)
	c.States = append(c.States, make([][]protocol.SavedFile, len(c.Files)-len(c.States))...)
	c.States[shard] = states
}

// StatesOf returns the states that a shard's newest file refers to.
func (c *RunningCheckpoint) StatesOf(shard int) []protocol.SavedFile {
	if c.States == nil {
		return nil
	}
	return c.States[shard]
}

// count adds the statistics of a shard's holder, which start when it becomes the holder.
func (c *RunningCheckpoint) count(shard int, st *protocol.ShardStatus) {
	before := &c.Counted[shard]
	if before.Since != st.Since {
		*before = savedCount{Since: st.Since}
	}
	c.Saving.Bytes += st.SaveBytes - before.Bytes
	c.Saving.PausedSeconds += st.SaveSeconds - before.Paused
	before.Bytes, before.Paused = st.SaveBytes, st.SaveSeconds
}

// Lost returns the checkpoint with the rows of a lost shard counted, given the status of its new holder and the
// MinClock with which the shard continues.
func (c RunningCheckpoint) Lost(st *protocol.ShardStatus, least perdure.Clock) RunningCheckpoint {
	oldest := st.Seq
	for _, k := range st.SavedRows {
		if k.Rows == 0 {
			continue
		}
		if k.Seq == 0 {
			c.Saving.Initial += k.Rows
		} else {
			c.Saving.Restored += k.Rows
		}
		age := max(0, least-k.Cut)
		c.Saving.AgeClocks += int64(age) * k.Rows
		c.Saving.Oldest = max(c.Saving.Oldest, age)
		oldest = min(oldest, k.Seq)
	}
	c.Saving.PartlyLost += int64(st.Seq - oldest)
	c.UnknownStarts = max(0, c.UnknownStarts-1)
	return c
}
