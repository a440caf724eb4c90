package main

import (
	"context"
	"encoding/csv"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// tallied is a run of which only the tally is there.
func tallied(t *testing.T, job perdure.JobSpec) *localJob {
	t.Helper()
	dir, err := rundir.Create(filepath.Join(t.TempDir(), "run"))
	must(t, err)
	j := &localJob{s: settings.Run{Job: job}, dir: dir, view: newView(stdout, true), complete: make(chan struct{})}
	j.tally.init()
	j.job, err = supervisor.NewJob(t.Context(), supervisor.JobConfig{})
	must(t, err)
	return j
}

// TestSummaryCounts: what the rows contain is counted when the job is complete, not while
// a shard's chain changes after that.
func TestSummaryCounts(t *testing.T) {
	j := tallied(t, perdure.JobSpec{})
	for _, c := range []struct {
		told, want int64
		complete   bool
	}{{3, 3, false}, {2, 2, false}, {9, 9, true}, {5, 9, false}, {6, 9, false}, {8, 8, true}, {1, 8, false}} {
		j.onProgress(wire.Progress{UpdatesIn: c.told, Complete: c.complete})
		if sum := j.summary(nil); *sum.UpdatesApplied != c.want {
			t.Errorf("told of %d updates (complete: %v), the summary has %d, want %d", c.told, c.complete, *sum.UpdatesApplied, c.want)
		}
	}
}

// TestSummaryStands: a summary that was made is not changed by what the
// coordinator tells afterwards.
func TestSummaryStands(t *testing.T) {
	j := tallied(t, perdure.JobSpec{})
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

// TestSpeed: the speed that a run tells and records is that of the last seconds, however
// many rows there are of one clock, and while clocks wait for an evaluation.
func TestSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := tallied(t, perdure.JobSpec{Clocks: 5000})
		defer func() { must(t, errors.Join(j.dir.Close(), j.job.Group().Stop(context.Background()))) }()
		for clock := range perdure.Clock(400) {
			time.Sleep(4 * time.Millisecond)
			j.onProgress(wire.Progress{Clock: clock, End: 5000})
			if clock%100 == 0 && clock > 0 { // while it goes on the others wait
				j.point(clock)
				time.Sleep(120 * time.Millisecond)
				j.onReport(wire.Report{Clock: clock, TestLoss: new(1.0)})
			}
			if line := status(j); clock > 10 && (!strings.Contains(line, " clocks/s") || strings.Contains(line, " 0 clocks/s") || !strings.HasSuffix(line, "s left")) {
				t.Fatalf("clock %d: %s", clock, line)
			}
		}
		rows := seriesColumn(t, j.dir.Path(), "clocks_per_second")
		for _, cell := range rows {
			if v, err := strconv.ParseFloat(cell, 64); err != nil || v < 150 || v > 260 {
				t.Errorf("clocks per second: %q; 180 to 250 were done", rows)
				break
			}
		}
		if len(rows) < 6 {
			t.Errorf("%d rows", len(rows))
		}
		time.Sleep(time.Minute)
		if line := status(j); !strings.Contains(line, "  0.") {
			t.Errorf("after a minute without a clock: %s", line)
		}
	})
}

// seriesColumn returns the cells of a column of a run's series.csv.
func seriesColumn(t *testing.T, run, name string) (cells []string) {
	t.Helper()
	f, err := os.Open(filepath.Join(run, "series.csv"))
	must(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	must(t, err)
	at := slices.Index(rows[0], name)
	if at < 0 {
		t.Fatalf("no column %s", name)
	}
	for _, row := range rows[1:] {
		cells = append(cells, row[at])
	}
	return cells
}

// TestMeasures: what worker processes count is summed over all of them, by slot
// where the summary says so, and each process's newest word holds.
func TestMeasures(t *testing.T) {
	j := tallied(t, perdure.JobSpec{Slots: 2, Consistency: perdure.Consistency{Kind: perdure.ESSP, Staleness: 2}})
	word := func(process string, slot int, compute, staleness, comm time.Duration, missing map[int64]int64) wire.PlaceProgress {
		return wire.PlaceProgress{Role: wire.RoleWorker, Index: slot, Process: process, Worker: &perdure.WorkerCounters{
			ComputeNs: int64(compute), StalenessNs: int64(staleness), CommNs: int64(comm), MissingUpdates: missing,
		}}
	}
	j.last.at = time.Now().Add(time.Hour) // no point is due, however slow the machine is
	j.onProgress(wire.Progress{Places: []wire.PlaceProgress{
		word("first", 0, time.Second, 0, 0, map[int64]int64{0: 1}),
		word("second", 1, time.Second, time.Second, time.Second, map[int64]int64{0: 5, 3: 1}),
		{Role: wire.RoleServer, Index: 0, Process: "server"},
	}})
	backdate(j)
	j.point(1)
	j.last.at = time.Now().Add(time.Hour)
	j.onProgress(wire.Progress{Places: []wire.PlaceProgress{ // slot 0 has a new process, of which nothing was heard before
		word("first", 0, 3*time.Second, 0, 0, map[int64]int64{0: 10}),
		word("second", 1, time.Second, 2*time.Second, time.Second, map[int64]int64{0: 6, 3: 1}),
		word("third", 0, 0, 0, time.Second, map[int64]int64{-1: 2}),
	}})
	backdate(j)
	sum := j.summary(nil)
	must(t, j.dir.Close())

	want := &rundir.TimeSplit{
		Compute: 0.5, Staleness: 0.25, Communication: 0.25,
		Workers: []rundir.WorkerTime{{Slot: 0, ComputeS: 3, CommunicationS: 1}, {Slot: 1, ComputeS: 1, StalenessS: 2, CommunicationS: 1}},
	}
	if !reflect.DeepEqual(sum.TimeSplit, want) {
		t.Errorf("time split %+v, want %+v", sum.TimeSplit, want)
	}
	if missing := map[string]int64{"-1": 2, "0": 16, "3": 1}; !reflect.DeepEqual(sum.MissingUpdates, missing) {
		t.Errorf("missing updates %v, want %v", sum.MissingUpdates, missing)
	}
	if sum.MissingBound == nil || *sum.MissingBound != 2*(2*2+1) {
		t.Errorf("missing bound %v, want 10", sum.MissingBound)
	}
	got := column(t, j.dir.Path(), "time_compute", "time_staleness", "time_communication")
	if want := [][]float64{{0.5, 0.25, 0.25}, {0.5, 0.25, 0.25}}; !reflect.DeepEqual(got, want) {
		t.Errorf("series: time went to %v, want %v", got, want)
	}
}

// backdate makes the last point so old that the next one has rates.
func backdate(j *localJob) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last.at = time.Now().Add(-time.Second)
}

// column reads columns of a run's series.csv: the rows in which all are there.
func column(t *testing.T, dir string, names ...string) (rows [][]float64) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "series.csv"))
	must(t, err)
	all, err := csv.NewReader(strings.NewReader(string(b))).ReadAll()
	must(t, err)
	for _, cells := range all[1:] {
		var row []float64
		for _, name := range names {
			if v, err := strconv.ParseFloat(cells[slices.Index(all[0], name)], 64); err == nil {
				row = append(row, v)
			}
		}
		if len(row) == len(names) {
			rows = append(rows, row)
		}
	}
	return rows
}

// TestNoMeasures: what no worker has told of is not known, rather than 0, and
// without a bound in clocks no number of updates bounds what a read lacks.
func TestNoMeasures(t *testing.T) {
	j := tallied(t, perdure.JobSpec{
		Slots: 2, Consistency: perdure.Consistency{Kind: perdure.BSP},
		TableConsistency: map[string]perdure.Consistency{"w": {Kind: perdure.ASP}},
	})
	sum := j.summary(nil)
	if sum.TimeSplit != nil || sum.MissingBound != nil || timeLine(sum.TimeSplit) != "not known" {
		t.Errorf("time split %v (%s), missing bound %v", sum.TimeSplit, timeLine(sum.TimeSplit), sum.MissingBound)
	}
	if got, want := timeLine(&rundir.TimeSplit{Compute: 0.714, Staleness: 0.196, Communication: 0.09}), "compute 71 %, waiting for staleness 20 %, communication 9 %"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// checkMeasures checks what a summary and a series say of time and of reads.
func checkMeasures(t *testing.T, s rundir.Summary, dir string) {
	t.Helper()
	sumsUp := func(what string, parts ...float64) {
		sum := 0.0
		for _, v := range parts {
			if v < 0 || v > 1 {
				t.Errorf("%s: a part is %g of the whole", what, v)
			}
			sum += v
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("%s: the parts sum to %g", what, sum)
		}
	}
	if s.TimeSplit == nil || len(s.MissingUpdates) == 0 {
		t.Fatalf("time split %v, missing updates %v", s.TimeSplit, s.MissingUpdates)
	}
	if split := s.TimeSplit; split != nil {
		sumsUp("summary", split.Compute, split.Staleness, split.Communication)
		var compute, all float64
		for i, w := range split.Workers {
			if w.Slot != i {
				t.Errorf("time of slot %d where that of %d should be", w.Slot, i)
			}
			compute += w.ComputeS
			all += w.ComputeS + w.StalenessS + w.CommunicationS
		}
		if len(split.Workers) != s.Workers || math.Abs(compute/all-split.Compute) > 1e-6 {
			t.Errorf("%d workers computed %g of %g s; the whole says %g", len(split.Workers), compute, all, split.Compute)
		}
	}
	for _, row := range column(t, dir, "time_compute", "time_staleness", "time_communication") {
		sumsUp("series", row...)
	}
	if s.MissingUpdates == nil || s.ClockDifferential == nil {
		t.Error("the summary has no histograms of reads")
	}
	for text := range s.MissingUpdates {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || s.MissingBound != nil && n > *s.MissingBound {
			t.Errorf("a read lacked %s updates; at most %v can be", text, s.MissingBound)
		}
	}
}
