package rundir

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/disk"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func create1(t *testing.T) *Dir {
	t.Helper()
	d, err := Create(filepath.Join(t.TempDir(), "runs", "first"))
	must(t, err)
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// isUsage checks for a usage error of one line.
func isUsage(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v; want one line of usage with %q", err, want)
	}
}

// full writes a run with all values known, and bare one without any.
func full(t *testing.T, d *Dir) {
	t.Helper()
	must(t, d.WriteRun(map[string]any{"seed": 7, "faults": []string{"kill:server:0@clock:10"}}))
	must(t, d.Event(Event{Seconds: 0, Kind: "begin", Text: "the first clock began"}))
	must(t, d.Event(Event{
		Seconds: 1.25, Clock: 10, Kind: "exit", Target: "server:0", Text: "killed by SIGKILL\nat once",
		Details: map[string]any{"pid": 42, "at": "x"},
	}))
	must(t, d.Point(SeriesPoint{
		Seconds: 0.5, Clock: 3, TrainLoss: new(2.25), TestLoss: new(2.5), TestAccuracy: new(0.125),
		ClocksPerSecond: new(6.0), SamplesPerSecond: new(1e6), MBPushedPerSecond: new(7.5), MBPulledPerSecond: new(8.5),
		CPUServer: new(0.1), CPUWorker: new(1.2), CPUCoordinator: new(0.3), MBServer: new(4.0), MBWorker: new(5.0),
		MBCoordinator: new(6.5),
		TimeCompute:   new(0.5), TimeStaleness: new(0.375), TimeCommunication: new(0.125),
		TrainRMSE: new(1.25), TestRMSE: new(1.5),
		OutageClocks: new(12.0), StaleRows: new(120.0), OutageQueuedMB: new(3.5), OutageWaitedS: new(0.25),
		Backlog: new(true),
	}))
	must(t, d.Point(SeriesPoint{
		Seconds: 1, Clock: 6, TrainLoss: new(math.NaN()), TestLoss: new(math.Inf(1)),
		Backlog: new(false),
	}))
	must(t, d.Clocks(ClocksPoint{Seconds: 1, Clock: 6, Slots: []perdure.Clock{6, 9, NoProcess, 5}}))
	must(t, d.WriteSummary(Summary{
		Workload: "softmax", Data: "digits", Workers: 2, Servers: 3, Shards: 8,
		Consistency: perdure.Consistency{Kind: perdure.SSP, Staleness: 2},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 20},
		OnOutage:    perdure.OnOutage{Continue: true, Clocks: 300}, OutageRows: perdure.RowsFrozen,
		StaleScale: perdure.ScaleInverse,
		Outage:     &Outage{Clocks: 12, StaleRows: 120, QueuedBytes: 3_500_000, WaitedS: 0.25},
		Goal:       &Goal{Metric: "accuracy", Value: 0.9, Clock: 98, Seconds: 11.5, Met: new(0.91), Final: new(0.9)},
		Saving:     &protocol.Saving{Failures: 2, Ran: 61.5, Interval: 9.5, Why: "Young"},
		Seed:       7, Clocks: 100, WallSeconds: 12.5,
		TableConsistency: map[string]perdure.Consistency{
			"b": {Kind: perdure.BSP},
			"a": {Kind: perdure.VAP, Bound: 0.5},
		},
		TimeSplit: &TimeSplit{
			Compute: 0.5, Staleness: 0.375, Communication: 0.125,
			Workers: []WorkerTime{{0, 6, 1.5, 1}, {1, 2, 4.5, 1}},
		},
		TrainLoss: new(0.25), TestLoss: new(0.5), TestAccuracy: new(0.9), TrainRMSE: new(0.75), TestRMSE: new(0.875),
		UpdatesSent: new(int64(1600)), UpdatesApplied: new(int64(1600)), UpdatesLost: new(int64(0)),
		ClocksRedone: new(int64(10)), BytesPushed: new(int64(1 << 40)), BytesPulled: new(int64(2)),
		ClockDifferential: map[string]int64{"-1": 5, "0": 2}, ReadLag: map[string]int64{"0": 7},
		Usage: map[string]RoleUsage{"server": {
			CPUSeconds: 1.5, MBPeak: 25, MBWritten: new(100.5),
			MBStored: new(0.0),
		}, "worker": {CPUSeconds: 3}},
		MissingUpdates: map[string]int64{"0": 6, "3": 1}, MissingBound: new(int64(10)),
		Failures: []Failure{
			{
				Kind: "kill", Target: "server:0", AtSeconds: 1.25, AtClock: 10, DetectedAfterMs: new(1.5),
				ServingAgainAfterMs: new(250.0), UpdatesLost: new(int64(0)), ClocksRedone: new(int64(10)),
			},
			{Kind: "kill", Target: "worker:1", AtSeconds: 2, AtClock: 12},
		},
		ModelSHA256: new("ab12"),
	}))
}

// TestGolden compares the bytes of every file.
func TestGolden(t *testing.T) {
	for name, write := range map[string]func(*testing.T, *Dir){
		"full": full,
		"bare": func(t *testing.T, d *Dir) {
			must(t, d.WriteSummary(Summary{
				TrainLoss: new(math.NaN()), TestLoss: new(math.Inf(-1)), TestRMSE: new(math.NaN()),
				Consistency: perdure.Consistency{Kind: perdure.BSP},
				Recovery:    perdure.Recovery{Kind: perdure.RecoverNone},
			}))
		},
	} {
		d := create1(t)
		write(t, d)
		must(t, d.Close())
		var got bytes.Buffer
		for _, file := range []string{RunFile, eventsFile, seriesFile, clocksFile, summaryFile} {
			b, err := os.ReadFile(filepath.Join(d.Path(), file))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			fmt.Fprintf(&got, "== %s\n%s", file, b)
		}
		golden := filepath.Join("testdata", name+".golden")
		if *update {
			must(t, os.WriteFile(golden, got.Bytes(), 0o666))
		}
		want, err := os.ReadFile(golden)
		must(t, err)
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s: the files are\n%s\nwant\n%s", name, &got, want)
		}
	}
}

// TestFolders checks that directories are where processes expect them.
func TestFolders(t *testing.T) {
	d := create1(t)
	defer d.Close()
	for _, dir := range []string{filepath.Join(d.Path(), checkpointDir), filepath.Dir(d.LogFile("server-0"))} {
		info, err := os.Stat(dir)
		must(t, err)
		if !info.IsDir() || filepath.Dir(dir) != d.Path() {
			t.Errorf("%s is not a directory of the run", dir)
		}
	}
	if got := filepath.Base(d.LogFile("server-0")); got != "server-0.log" {
		t.Errorf("log file %s", got)
	}
}

// TestCreateRefuses checks for an error of one line for each unsuitable directory.
func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o666))
	_, err := Create(dir)
	isUsage(t, err, "is not empty (it contains file)")
	_, err = Create(file)
	isUsage(t, err, "is a file")
	_, err = Create(filepath.Join(file, "below"))
	isUsage(t, err, "not a directory")
	_, err = Create("")
	isUsage(t, err, "no name")

	locked := filepath.Join(dir, "locked")
	must(t, os.Mkdir(locked, 0o555))
	if os.Geteuid() != 0 { // root may write anywhere
		_, err = Create(locked)
		isUsage(t, err, "permission denied")
	}

	d := create1(t)
	must(t, d.Close())
	_, err = Create(d.Path())
	isUsage(t, err, "is not empty")
}

// TestOneRunEach checks that only one of many concurrent runs gets an empty directory.
func TestOneRunEach(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	won := make(chan *Dir, 8)
	var all sync.WaitGroup
	for range cap(won) {
		all.Go(func() {
			d, err := Create(path)
			if err == nil {
				won <- d
			} else if !errors.Is(err, perdure.ErrUsage) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(won) != 1 {
		t.Fatalf("%d runs in one directory", len(won))
	}
	must(t, (<-won).Close())
}

// TestConcurrent appends whole lines from many goroutines.
func TestConcurrent(t *testing.T) {
	d := create1(t)
	const writers, each = 8, 50
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for range each {
				if err := errors.Join(
					d.Event(Event{Kind: "k", Text: strings.Repeat("x", 100*i)}),
					d.Point(SeriesPoint{Seconds: float64(i)}),
					d.WriteRun(map[string]int{"seed": i}),
				); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	must(t, d.Close())
	for file, extra := range map[string]int{eventsFile: 0, seriesFile: 1} {
		b, err := os.ReadFile(filepath.Join(d.Path(), file))
		must(t, err)
		lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
		if len(lines) != writers*each+extra {
			t.Errorf("%s has %d lines", file, len(lines))
		}
		for _, line := range lines {
			if file == eventsFile && !json.Valid([]byte(line)) || file == seriesFile &&
				strings.Count(line, ",") != strings.Count(seriesHeader, ",") {
				t.Fatalf("%s: torn line %q", file, line)
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(d.Path(), ".*.tmp"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestErrors checks that errors of writing, syncing and encoding are returned.
func TestErrors(t *testing.T) {
	d := create1(t)
	if d.Event(Event{Details: map[string]any{"x": math.NaN()}}) == nil {
		t.Error("an event without a JSON form was written")
	}
	if d.WriteRun(func() {}) == nil || d.WriteRun(1) == nil {
		t.Error("a run without a JSON form, or not an object, was written")
	}
	must(t, d.Close())
	if !errors.Is(d.Event(Event{}), os.ErrClosed) || !errors.Is(d.Point(SeriesPoint{}), os.ErrClosed) ||
		!errors.Is(d.Close(), os.ErrClosed) {
		t.Error("writing to a closed run succeeded")
	}
	must(t, os.RemoveAll(d.Path()))
	if !errors.Is(d.WriteRun(map[string]int{"seed": 1}), os.ErrNotExist) ||
		!errors.Is(d.WriteSummary(Summary{}), os.ErrNotExist) {
		t.Error("writing to a run without a directory succeeded")
	}
}

// TestFullDisk checks that lines are kept in order while they do not fit on the disk.
func TestFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full here")
	}
	open := func() *os.File {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		must(t, err)
		t.Cleanup(func() { full.Close() })
		return full
	}
	d := create1(t)
	room := d.events.File
	d.events.File = open()
	must(t, d.Event(Event{Kind: "first"}))
	must(t, d.Event(Event{Kind: "second"}))
	if !d.DiskFull() {
		t.Error("no line waits on a full disk")
	}
	d.events.File = room
	must(t, d.Event(Event{Kind: "third"}))
	if d.DiskFull() {
		t.Error("lines wait although they fit")
	}
	d.events.File = open()
	must(t, d.Event(Event{Kind: "fourth"}))
	d.events.File = room
	must(t, d.Close())
	b, err := os.ReadFile(filepath.Join(d.Path(), eventsFile))
	must(t, err)
	var kinds []string
	for line := range strings.Lines(string(b)) {
		var e Event
		must(t, json.Unmarshal([]byte(line), &e))
		kinds = append(kinds, e.Kind)
	}
	if want := []string{"first", "second", "third", "fourth"}; !slices.Equal(kinds, want) {
		t.Errorf("events %q, want %q", kinds, want)
	}

	d = create1(t)
	must(t, d.events.Close())
	d.events.File = open()
	must(t, d.Event(Event{}))
	if err := d.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Close on a full disk returns %v", err)
	}
	if !errors.Is(d.series.Close(), os.ErrClosed) {
		t.Error("Close leaves a file open after an error")
	}
	d = create1(t)
	defer d.Close()
	d.events.File, d.events.pending = open(), make([]byte, maxPending)
	if err := d.Event(Event{}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the limit for waiting lines is exceeded: %v", err)
	}
}

// TestHoldEnded checks that a run counts as ended once neither its parent nor its coordinator holds a lock, and that no
// process can acquire one while the run is held.
func TestHoldEnded(t *testing.T) {
	d := create1(t)
	alive := func(want string) {
		t.Helper()
		if _, holder, err := LockEnded(d.Path()); !errors.Is(err, ErrRunning) || !strings.Contains(holder, want) {
			t.Errorf("%v, in %q; want %s", err, holder, want)
		}
	}
	alive("pid ")
	must(t, d.Close())
	must(t, os.Mkdir(filepath.Join(d.Path(), "registry"), 0o777))
	locker := disk.OS().(disk.Locker)
	coordinator := filepath.ToSlash(filepath.Join(d.Path(), coordinatorLock))
	lock, err := locker.Lock(coordinator, "a coordinator")
	must(t, err)
	alive("a coordinator")
	must(t, lock.Close())
	hold, _, err := LockEnded(d.Path())
	must(t, err)
	again, _, err := LockEnded(d.Path()) // the lock can be shared
	must(t, err)
	must(t, again.Close())
	if _, err := locker.Lock(coordinator, "another"); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("a coordinator started: %v", err)
	}
	must(t, hold.Close())
	lock, err = locker.Lock(coordinator, "another")
	must(t, err)
	must(t, lock.Close())
	if _, _, err := LockEnded(filepath.Join(d.Path(), "nothing")); err != nil {
		t.Errorf("without locks: %v", err)
	}
}

// TestStartTime checks that a run started when its settings were written, even if a later coordinator has locked it
// again, or when it was locked, if its settings were copied later.
func TestStartTime(t *testing.T) {
	dir, first := t.TempDir(), time.Date(2026, time.November, 26, 7, 0, 0, 0, time.UTC)
	file := filepath.Join(dir, RunFile)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]time.Time{{first, first.Add(time.Hour)}, {first.Add(time.Hour), first}} {
		line := "pid 7 since " + c[0].Format(time.RFC3339)
		err := os.WriteFile(filepath.Join(dir, lockName), []byte(line), 0o600)
		if err := errors.Join(err, os.Chtimes(file, c[1], c[1])); err != nil {
			t.Fatal(err)
		}
		if at := StartTime(dir); !at.Equal(first) {
			t.Errorf("locked at %v, settings of %v: started at %v", c[0], c[1], at)
		}
	}
}
