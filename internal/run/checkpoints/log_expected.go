package checkpoints

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/shardstore"
	"github.com/perdure/perdure/internal/run/settings"
)

// expectedLog is what a run's directory requires of its log at least.
type expectedLog struct {
	job       string
	shards    int
	snapshots store.Store               // holds the snapshots
	before    []shardstore.SnapshotFile // by shard, the newest snapshot before the log was opened
}

// readExpectedLog reads the requirements from a run's directory, before the log is opened. It returns nil for a log's
// own directory, or if the run's log is elsewhere.
func readExpectedLog(run string) (*expectedLog, error) {
	file := filepath.Join(run, "run.json")
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	s, err := settings.Read(file)
	if err != nil {
		return nil, perdure.Usagef("%w; to inspect the log without this file, specify the directory %s", err,
			settings.LogFolder(run))
	}
	if !s.HasOwnLog() {
		return nil, nil
	}
	k := &expectedLog{job: s.Job.ID, shards: s.Job.Shards}
	if k.snapshots, err = s.OpenSnapshots(context.Background(), run); err != nil {
		return nil, err
	}
	k.before, err = k.newest()
	return k, err
}

// newest returns each shard's newest snapshot, judged by file names. Its name is empty if there is none.
func (k *expectedLog) newest() ([]shardstore.SnapshotFile, error) {
	newest := make([]shardstore.SnapshotFile, k.shards)
	for shard := range newest {
		files, err := shardstore.ListSnapshots(k.snapshots, perdure.ShardID(shard))
		if err != nil {
			return nil, err
		}
		if len(files) > 0 {
			newest[shard] = files[0]
		}
	}
	return newest, nil
}

// check marks streams that lack records. A running job writes meanwhile: its log must reach as far as the snapshots
// found before, and must begin where the current snapshots end.
func (k *expectedLog) check(found []updatelog.Stream) ([]updatelog.Stream, error) {
	after, err := k.newest()
	if err != nil {
		return nil, err
	}
	started := slices.ContainsFunc(found, func(s updatelog.Stream) bool { return s.Job == k.job && s.Next > 1 })
	for shard := range k.shards {
		i := slices.IndexFunc(found, func(s updatelog.Stream) bool { return s.Job == k.job && s.Shard == shard })
		if i < 0 {
			found = append(found, updatelog.MissingStream(k.job, shard))
			continue
		}
		if s := &found[i]; s.Damage == nil {
			s.Damage = missingRecords(s, k.before[shard], after[shard], started)
		}
	}
	slices.SortStableFunc(found, func(a, b updatelog.Stream) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Shard, b.Shard))
	})
	return found, nil
}

// missingRecords returns the damage of a stream that lacks records needed after its shard's snapshots, or nil.
func missingRecords(s *updatelog.Stream, before, after shardstore.SnapshotFile, started bool) error {
	switch {
	case before.Name != "" && uint64(s.Next) < before.Position:
		return updatelog.Damaged(s.Name, "snapshot %s contains all updates before record %d, but the stream ends "+
			"before record %d",
			before.Name, before.Position, s.Next)
	case after.Name != "" && uint64(s.First) > after.Position:
		return updatelog.Damaged(s.Name,
			"the newest snapshot, %s, contains all updates before record %d, but the "+
				"stream begins with record %d", after.Name,
			after.Position, s.First)
	case after.Name == "" && s.First > 1:
		return updatelog.Damaged(s.Name, "it begins with record %d, but no snapshot contains the updates before it",
			s.First)
	case started && s.Next == 1: // a server writes a record when it starts to serve a shard
		return updatelog.Damaged(s.Name, "it is empty, but streams of other shards are not")
	}
	return nil
}
