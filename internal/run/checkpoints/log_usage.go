package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/settings"
)

// logUsage returns the current size of the job's streams, and the log's address.
func logUsage(ctx context.Context, s *settings.Run) (bytes uint64, streams int, where string, err error) {
	i, err := inspectLog(ctx, s, keys.Operator)
	if err != nil {
		return 0, 0, "", err
	}
	defer i.Close()
	all, err := i.Streams(ctx)
	for _, one := range streamsOf(all, s.Job.ID) {
		bytes, streams = bytes+one.Bytes, streams+1
	}
	return bytes, streams, i.URL(), err
}

// inspectLog opens the log that the run's settings name, with a role's rights.
func inspectLog(ctx context.Context, s *settings.Run, role keys.Role) (*updatelog.Inspector, error) {
	addr := s.Job.Log
	access, err := s.LogAccess(role)
	if err != nil {
		return nil, err
	}
	if s.Job.LogSecret {
		at, err := updatelog.ReadURL(settings.LogFolder(s.Folder))
		if err != nil {
			return nil, err
		}
		addr = at
	}
	return updatelog.Inspect(ctx, addr, s.LogOptions(updatelog.Options{Shards: s.Job.Shards}, access))
}

// RemoveLogOf removes the streams of a job that has no processes left.
func RemoveLogOf(s *settings.Run) error {
	ctx, cancel := context.WithTimeout(context.Background(), LogPatience)
	defer cancel()
	i, err := inspectLog(ctx, s, keys.Coordinator)
	if err != nil {
		return err
	}
	all, err := i.Streams(ctx)
	if err == nil {
		err = i.Remove(ctx, streamsOf(all, s.Job.ID))
	}
	return errors.Join(err, i.Close())
}

// LogLine describes how full the update log of a run on this machine is and, if no process of the job serves it, its
// address. It returns "" if the run has no log.
func LogLine(ctx context.Context, run string) string {
	s, err := settings.Read(filepath.Join(run, "run.json"))
	if err != nil || s.Log == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, LogPatience)
	defer cancel()
	bytes, streams, where, err := logUsage(ctx, &s)
	if err != nil {
		return "update log: " + humanize.ErrorText(err)
	}
	line := fmt.Sprintf("update log: %.1f MB of at most %.1f, in %d streams", float64(bytes)/1e6,
		float64(s.LogBytes())/1e6, streams)
	if !s.HasOwnLog() {
		line += ", at " + where
	}
	return line
}
