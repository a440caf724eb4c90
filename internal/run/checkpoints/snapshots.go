package checkpoints

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/proc/shardstore"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/settings"
)

// A run with an update log keeps snapshots of its shards instead of checkpoints.

// snapshotsOf returns the store of a run's snapshots and their names. There are none if the run keeps checkpoints, or
// has no snapshot yet. Without a run's directory it looks in the store that the user named.
func snapshotsOf(dir string, named store.Store) (in store.Store, names []string, err error) {
	in = named
	if dir != "" {
		run, err := settings.Read(filepath.Join(dir, "run.json"))
		if err != nil || !recovery.Of(run.Job.Recovery).Traits().UsesLog() {
			return nil, nil, nil // a run that has just started has no settings; the caller reads its checkpoints
		}
		if in, err = run.OpenSnapshots(context.Background(), dir); err != nil {
			return nil, nil, err
		}
	}
	names, err = shardstore.AllSnapshots(in)
	return in, names, err
}

// snapshotVerifyResult is the JSON output of Verify for a snapshot.
type snapshotVerifyResult struct {
	File    string   `json:"file"`
	Whole   bool     `json:"whole"`
	Defects []string `json:"defects"`
}

// verifySnapshots reads snapshots and the other files of their store. It ignores snapshots that the job has deleted
// since they were listed.
func verifySnapshots(tell *humanize.Printer, in store.Store, names []string) error {
	began, bytes, bad := time.Now(), int64(0), 0
	all, job := []snapshotVerifyResult{}, ""
	for _, name := range names {
		n, of, err := shardstore.CheckSnapshot(in, name, job)
		if err != nil && !checkpoint.Exists(in, name) {
			continue
		}
		v := snapshotVerifyResult{File: name, Whole: err == nil, Defects: []string{}}
		if err != nil {
			bad++
			v.Defects = append(v.Defects, checkpoint.Defect{File: name, Err: err}.String())
		} else {
			job, bytes = of, bytes+n
		}
		all = append(all, v)
		tell.Line("%s", strings.Join(append([]string{name + ": " + wholeText(v.Whole)}, v.Defects...), "\n  "))
	}
	others, err := strays(in, checkpoint.NewAudit(in), &checkpoint.Listing{})
	if err != nil {
		return err
	}
	for _, d := range others {
		bad++
		all = append(all, snapshotVerifyResult{File: d.File, Defects: []string{d.String()}})
		tell.Line("%s", d)
	}
	tellSpeed(tell, bytes, len(all), began)
	if err := tell.End(all); err != nil {
		return err
	}
	if bad > 0 {
		return fmt.Errorf("%s: %s, %d damaged", in, humanize.Count(len(all), "file"), bad)
	}
	return nil
}

func wholeText(whole bool) string {
	if whole {
		return "whole"
	}
	return "damaged"
}
