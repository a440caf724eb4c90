package membership

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// For a running checkpoint the coordinator records which files hold the last saved rows of each shard, and how much was
// saved and lost so far. A RunningCheckpoint's lists are never changed in place, so that copies of it stay what they
// were. Nothing else here is safe for concurrent use.

// RunningCheckpoint is the running checkpoint of a job. The zero one is of a job that has none.
type RunningCheckpoint struct {
	Number uint64              `json:"number"` // of its manifests, from 1; 0: nothing has been saved yet
	Files  [][]words.SavedFile `json:"files"`  // by shard, the oldest first
	// States are what slots have saved that lies in the store, and that a shard's newest file refers
	// to, by shard; nil: there is none.
	States [][]words.SavedFile `json:"states,omitempty"`
	Saving words.RowSaving     `json:"saving"` // of the job so far
	Told   []savedCount        `json:"told"`   // by shard: what of its word is in Saving
	// Unbegun counts the shards, of a job that goes on from another one's files, of which it is
	// not known yet what they begin with.
	Unbegun int `json:"unbegun,omitempty"`
	// Current says that the job begins with rows as they were at its cut: what was saved of them before is in the
	// files, for whoever loses them.
	Current bool `json:"current,omitempty"`
}

// savedCount is how much of what a shard's holder has saved is counted already.
type savedCount struct {
	Since  uint64  `json:"since"` // as in the view's Holder
	Bytes  int64   `json:"bytes"`
	Paused float64 `json:"paused"`
}

// NewRunning returns that of a job of a number of shards, of which nothing is saved.
func NewRunning(shards int) RunningCheckpoint {
	return RunningCheckpoint{Files: make([][]words.SavedFile, shards), Told: make([]savedCount, shards)}
}

// ResumedRunning returns that of a job which goes on from the running checkpoint of that number, and
// its files by shard, and the states of slots that the newest ones refer to; nil: there are none.
func ResumedRunning(number uint64, files, states [][]words.SavedFile) RunningCheckpoint {
	c := NewRunning(len(files))
	c.Number, c.Files, c.States, c.Unbegun = number, files, states, len(files)
	return c
}

// ForkedRunning returns that of a job which goes on from a cut of another one, as if that one had saved rows in
// these files before, by shard.
func ForkedRunning(number uint64, files, states [][]words.SavedFile) RunningCheckpoint {
	c := NewRunning(len(files))
	c.Number, c.Files, c.States, c.Current = number, files, states, true
	return c
}

// Begins returns with which files a shard begins when the job does, and whether its rows are those of the files,
// so that what they lack of it is to be counted: it is so where there was a job before, and no cut of it.
func (c RunningCheckpoint) Begins(shard int) (lost bool, saved []words.SavedFile) {
	if c.Number == 0 {
		return false, nil
	}
	return !c.Current, c.Files[shard]
}

// Begun says with which rows a job goes on from another one's, where that was not known before
// and now is; lost is how many updates they lack, all together. Else it returns "".
func (c RunningCheckpoint) Begun(before *RunningCheckpoint, lost int64) string {
	if c.Unbegun > 0 || before.Unbegun == 0 {
		return ""
	}
	s := &c.Saving
	text := fmt.Sprintf("each row is as it was last saved: of %d rows, %.1f clocks before in the mean, and %d at most",
		s.Restored+s.Initial, s.MeanAge(), s.Oldest)
	if s.Initial > 0 {
		text += fmt.Sprintf("; %d were never saved, and begin again", s.Initial)
	}
	return text + fmt.Sprintf("; %d updates are lost, and %d in part", lost, s.PartlyLost)
}

// nextToDrain returns the checkpoint with what the shards have saved since, given what each says of
// itself; nil: its word is not known. It reports whether that is any news.
func (c RunningCheckpoint) Next(said func(shard int) *words.ShardWord) (next RunningCheckpoint, news bool) {
	next = c
	for i := range c.Files {
		st := said(i)
		if st == nil || !st.Ready || len(st.Segments) == 0 {
			continue
		}
		s := &st.Segments[0]
		newest := words.SavedFile{File: s.File, Bytes: s.Bytes, CRC: s.CRC}
		if had := c.Files[i]; len(had) > 0 && had[len(had)-1] == newest {
			continue
		}
		if !news {
			news = true
			next.Number++
			next.Files, next.Told = slices.Clone(c.Files), slices.Clone(c.Told)
		}
		next.Files[i] = append(slices.Clone(s.Base), newest)
		next.refers(i, s.States)
		next.count(i, &st.ShardStatus)
	}
	return next, news
}

// refers notes to which states a shard's newest file refers.
func (c *RunningCheckpoint) refers(shard int, states []words.SavedFile) {
	if len(states) == 0 && c.States == nil {
		return
	}
	c.States = slices.Clone(c.States)
	c.States = append(c.States, make([][]words.SavedFile, len(c.Files)-len(c.States))...)
	c.States[shard] = states
}

// StatesOf returns to which states a shard's newest file refers.
func (c *RunningCheckpoint) StatesOf(shard int) []words.SavedFile {
	if c.States == nil {
		return nil
	}
	return c.States[shard]
}

// count takes over how much a shard's holder has saved since it is one.
func (c *RunningCheckpoint) count(shard int, st *words.ShardStatus) {
	before := &c.Told[shard]
	if before.Since != st.Since {
		*before = savedCount{Since: st.Since}
	}
	c.Saving.Bytes += st.SaveBytes - before.Bytes
	c.Saving.PausedSeconds += st.SaveSeconds - before.Paused
	before.Bytes, before.Paused = st.SaveBytes, st.SaveSeconds
}

// Lost returns the checkpoint with the count of the rows that a lost shard begins with, given
// what its new holder says of itself and the MinClock with which the shard goes on.
func (c RunningCheckpoint) Lost(st *words.ShardStatus, least perdure.Clock) RunningCheckpoint {
	oldest := st.Seq
	for _, k := range st.Kept {
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
	c.Unbegun = max(0, c.Unbegun-1)
	return c
}
