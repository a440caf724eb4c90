package shardstore

import (
	"time"

	"github.com/perdure/perdure/internal/data/updatelog"
)

// snapshotPlan are the snapshots of a shard that are written, so that not all of its stream need
// be read again, nor kept.
type snapshotPlan struct {
	limits  SnapshotLimits
	bytes   int64              // read from the stream since the newest was begun, as it counts them
	at      updatelog.Position // of the last record that was read
	between int64              // read before that, and after the one before it
	before  int64              // what between was when the one was begun that is being written
	size    int64              // of its rows
	writing bool
	files   []SnapshotFile // the newest first
	full    bool           // the log takes nothing until it is cut
}

// SnapshotLimits are a shard's part of what is asked for.
type SnapshotLimits struct {
	Job    string
	Asked  int64 // bytes of updates after which it is written
	Within int64 // bytes that the log takes of it at most; 0: there is no bound
}

// keptSnapshots is how many snapshots are kept of a shard: should the newest be damaged, there is
// another one, and the stream still has what follows that.
const keptSnapshots = 2

// parts is how often a shard is written, at least, while its log fills up: two
// snapshots are kept with what follows the older, and a third may be on its way. If more
// than mostParts of these parts follow the older, it is given up: updates would soon find
// no room, and a snapshot begins only when something is read.
const (
	parts     = 5
	mostParts = 3
)

// newSnapshotPlan begins with no snapshots.
func newSnapshotPlan(l SnapshotLimits) snapshotPlan { return snapshotPlan{limits: l} }

// Restore says which snapshots there are, the newest first: the state is of that one.
func (s *snapshotPlan) Restore(files []SnapshotFile) { s.files = files }

// Count counts what an entry takes in the stream. Small ones take much less than the
// records that they are in, by which the stream is bounded.
func (s *snapshotPlan) Count(e *updatelog.Entry) {
	s.bytes += int64(len(e.Payload))
	if e.Position > s.at && s.at > 0 {
		s.bytes += int64(e.Position-s.at) * int64(updatelog.Overhead(s.limits.Job))
	}
	s.at = e.Position
}

// Due reports whether enough was read since the last snapshot for another one: as much as is
// asked for, and as it is to write, but never so much that the log could fill up.
func (s *snapshotPlan) Due() bool {
	least := max(s.limits.Asked, s.size)
	if part := s.limits.Within / parts; part > 0 {
		least = min(least, part)
	}
	if s.full {
		least = 1
	}
	return !s.writing && s.bytes >= least
}

// Begin says that a snapshot is being written, whose rows have size bytes.
func (s *snapshotPlan) Begin(size int64) {
	s.writing, s.size = true, size
	s.before, s.between, s.bytes = s.between, s.bytes, 0
}

// End says that it is written, or could not be.
func (s *snapshotPlan) End(written bool) {
	s.writing = false
	if !written {
		s.bytes, s.between = s.bytes+s.between, s.before
	}
}

// Written takes the file of a snapshot, and returns the oldest that is kept, and the one whose
// position the log may be cut to, if any.
func (s *snapshotPlan) Written(file SnapshotFile) (oldest SnapshotFile, cut *SnapshotFile) {
	s.files = append([]SnapshotFile{file}, s.files...)
	s.files = s.files[:min(len(s.files), keptSnapshots)]
	oldest = s.files[len(s.files)-1]
	most := mostParts * (s.limits.Within / parts)
	switch {
	case s.full || most > 0 && s.between+s.bytes > most:
		return oldest, &s.files[0]
	case len(s.files) == keptSnapshots:
		return oldest, &s.files[keptSnapshots-1]
	}
	return oldest, nil
}

// Full notes whether the log waits for room. Then a snapshot is due as soon as anything was read,
// and the log may be cut to a single one: else nobody could go on.
func (s *snapshotPlan) Full(full bool) { s.full = full }

// Newest returns the newest snapshot, unless another one is being written.
func (s *snapshotPlan) Newest() (file SnapshotFile, ok bool) {
	if s.writing || len(s.files) == 0 {
		return file, false
	}
	return s.files[0], true
}

// streamLength is how far a shard is behind its stream.
type streamLength struct {
	taken updatelog.Position // no entry up to there is missing in the state
	last  updatelog.Position // of the last record there was
	asked time.Time          // when that was heard; zero: never
}

// lookEvery is how often a server asks how long the streams are that it reads. What it
// heard says nothing any more when it is three times as old.
const lookEvery = time.Second

// Taken says that no entry up to a position is missing.
func (l *streamLength) Taken(pos updatelog.Position) { l.taken = max(l.taken, pos) }

// Heard says where the last record of the stream was at a time.
func (l *streamLength) Heard(last updatelog.Position, now time.Time) { l.last, l.asked = last, now }

// Unread returns how many records the shard's rows lack; nil: that is not known.
func (l *streamLength) Unread(now time.Time) *int64 {
	if now.Sub(l.asked) > 3*lookEvery {
		return nil
	}
	n := max(0, int64(l.last)-int64(l.taken))
	return &n
}
