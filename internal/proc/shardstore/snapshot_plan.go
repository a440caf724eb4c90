package shardstore

import (
	"time"

	"github.com/perdure/perdure/internal/data/updatelog"
)

// snapshotPlan decides when snapshots of a shard are written, so that its log can be trimmed and need not be read
// completely.
type snapshotPlan struct {
	limits  SnapshotLimits
	bytes   int64              // bytes read since the newest snapshot was started, as counted in the log
	at      updatelog.Position // position of the last record read
	between int64              // bytes read between the last two snapshots
	before  int64              // between before the current snapshot was started
	size    int64              // size of its rows
	writing bool
	files   []SnapshotFile // newest first
	full    bool           // the log accepts no records until it is trimmed
}

// SnapshotLimits are one shard's share of the job's limits.
type SnapshotLimits struct {
	Job         string
	Interval    int64 // bytes of updates between snapshots
	MaxLogBytes int64 // maximum size of the shard's log; 0: no limit
}

// keptSnapshots is how many snapshots of a shard are kept. If the newest is damaged, the previous one can be used, and
// the log still has the records after it.
const keptSnapshots = 2

// logFractions is the minimum number of snapshots of a shard per capacity of its log. Two snapshots are kept with the
// records after the older one, and a third may be in progress. If more than maxLogFractions of these parts follow the
// older one, it is discarded. Otherwise the log could soon be full, and snapshots are started only after a record was
// read.
const (
	logFractions    = 5
	maxLogFractions = 3
)

// newSnapshotPlan returns a plan without snapshots.
func newSnapshotPlan(l SnapshotLimits) snapshotPlan { return snapshotPlan{limits: l} }

// Restore sets the existing snapshots, newest first. The state is that of the first one.
func (s *snapshotPlan) Restore(files []SnapshotFile) { s.files = files }

// Count adds the size of an entry in the log. For small entries, the overhead of their records is most of it.
func (s *snapshotPlan) Count(e *updatelog.Entry) {
	s.bytes += int64(len(e.Payload))
	if e.Position > s.at && s.at > 0 {
		s.bytes += int64(e.Position-s.at) * int64(updatelog.RecordOverhead(s.limits.Job))
	}
	s.at = e.Position
}

// Due reports whether a snapshot is due. It is due after as many bytes as configured, and at least the size of a
// snapshot, but always before the log could become full.
func (s *snapshotPlan) Due() bool {
	least := max(s.limits.Interval, s.size)
	if part := s.limits.MaxLogBytes / logFractions; part > 0 {
		least = min(least, part)
	}
	if s.full {
		least = 1
	}
	return !s.writing && s.bytes >= least
}

// Start records that a snapshot with size bytes of rows is being written.
func (s *snapshotPlan) Start(size int64) {
	s.writing, s.size = true, size
	s.before, s.between, s.bytes = s.between, s.bytes, 0
}

// End records whether the snapshot was written.
func (s *snapshotPlan) End(written bool) {
	s.writing = false
	if !written {
		s.bytes, s.between = s.bytes+s.between, s.before
	}
}

// Written records a new snapshot. It returns the oldest one to keep, and the one to whose position the log may be
// trimmed, if any.
func (s *snapshotPlan) Written(file SnapshotFile) (oldest SnapshotFile, cut *SnapshotFile) {
	s.files = append([]SnapshotFile{file}, s.files...)
	s.files = s.files[:min(len(s.files), keptSnapshots)]
	oldest = s.files[len(s.files)-1]
	most := maxLogFractions * (s.limits.MaxLogBytes / logFractions)
	switch {
	case s.full || most > 0 && s.between+s.bytes > most:
		return oldest, &s.files[0]
	case len(s.files) == keptSnapshots:
		return oldest, &s.files[keptSnapshots-1]
	}
	return oldest, nil
}

// SetFull records whether the log is full. If it is, a snapshot is due after any record, and the log may be trimmed to
// the newest snapshot alone. Without that, no process could append any more.
func (s *snapshotPlan) SetFull(full bool) { s.full = full }

// Newest returns the newest snapshot, unless another one is being written.
func (s *snapshotPlan) Newest() (file SnapshotFile, ok bool) {
	if s.writing || len(s.files) == 0 {
		return file, false
	}
	return s.files[0], true
}

// streamLength measures how many records of the log a shard lacks.
type streamLength struct {
	applied updatelog.Position // all entries up to this position are in the state
	last    updatelog.Position // position of the log's last record
	asked   time.Time          // when last was reported; zero: never
}

// lookEvery is how often a server asks for the length of its logs. An answer expires after three times as long.
const lookEvery = time.Second

// SetApplied records that all entries up to a position are in the state.
func (l *streamLength) SetApplied(pos updatelog.Position) { l.applied = max(l.applied, pos) }

// SetLast records the position of the log's last record at a time.
func (l *streamLength) SetLast(last updatelog.Position, now time.Time) { l.last, l.asked = last, now }

// Unread returns how many records the shard lacks, or nil if that is unknown.
func (l *streamLength) Unread(now time.Time) *int64 {
	if now.Sub(l.asked) > 3*lookEvery {
		return nil
	}
	return new(max(0, int64(l.last)-int64(l.applied)))
}
