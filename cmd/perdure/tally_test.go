package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/rundir"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/wire"
)

// TestSummaryStands: a summary that was made is not changed by what the
// coordinator tells afterwards.
func TestSummaryStands(t *testing.T) {
	dir, err := rundir.Create(filepath.Join(t.TempDir(), "run"))
	must(t, err)
	j := &localJob{dir: dir, view: newView(os.Stdout, true), complete: make(chan struct{})}
	j.tally.init()
	j.job, err = supervisor.NewJob(t.Context(), supervisor.JobConfig{})
	must(t, err)
	tell := func(n int64) {
		loss := float64(n)
		j.onReport(wire.Report{TrainLoss: &loss})
		j.onProgress(wire.Progress{ClocksRedone: n, UpdatesIn: n})
	}
	tell(1)
	sum := j.summary(nil)
	before := *sum.ClocksRedone + *sum.UpdatesApplied + int64(*sum.TrainLoss)
	tell(10)
	if after := *sum.ClocksRedone + *sum.UpdatesApplied + int64(*sum.TrainLoss); before != 3 || after != before {
		t.Errorf("the summary's figures sum to %d, then to %d, want 3", before, after)
	}
}
