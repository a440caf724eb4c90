package runs

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fake creates a run's directory. If accuracy is negative, it has no summary.
func fake(t testing.TB, dir string, seed uint64, accuracy float64, events ...rundir.Event) {
	t.Helper()
	d, err := rundir.Create(dir)
	must(t, err)
	job := perdure.JobSpec{
		ID: fmt.Sprint("job", seed), Workload: "softmax", Seed: seed, Slots: 4, Servers: 2, Shards: 16, Clocks: 100,
		Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverResend, Every: 20},
	}
	must(t, d.WriteRun(settings.Run{Version: "v1", Job: job, Params: workload.Params{Batch: 64}}))
	for _, e := range events {
		must(t, d.Event(e))
	}
	half, one := 0.5, 1.0
	must(t, d.Point(rundir.SeriesPoint{Seconds: 1, Clock: 10, TrainLoss: &one}))
	must(t, d.Point(rundir.SeriesPoint{Seconds: 2, Clock: 20, TrainLoss: &half, TestAccuracy: &accuracy}))
	if accuracy >= 0 {
		lost, sha := int64(3), strings.Repeat(fmt.Sprint(seed), 64)
		must(t, d.WriteSummary(rundir.Summary{
			Workload: "softmax", Workers: 4, Servers: 2, Shards: 16, Seed: seed, Clocks: 100,
			WallSeconds: float64(seed), Consistency: job.Consistency, Recovery: job.Recovery,
			TestAccuracy: &accuracy, UpdatesLost: &lost, ModelSHA256: &sha,
			Failures: []rundir.Failure{{Kind: "kill", Target: "server:0", AtClock: 30}},
		}))
	}
	must(t, d.Close())
}

// house creates runs that ended in all ways, including a damaged and an incomplete one.
func house(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	fake(t, filepath.Join(root, "a"), 2, 0.8)
	fake(t, filepath.Join(root, "deep", "b"), 1, 0.9)
	fake(t, filepath.Join(root, "c"), 3, -1, rundir.Event{Clock: 40, Kind: "closing", Text: "it is ending"},
		rundir.Event{Clock: 40, Kind: "stopped", Text: "stopped at clock 40; perdure train --resume"})
	fake(t, filepath.Join(root, "f"), 4, -1, rundir.Event{Clock: 50, Kind: "failed", Text: "it cannot continue"})
	fake(t, filepath.Join(root, "k"), 5, -1, rundir.Event{Clock: 60, Kind: "checkpoint", Text: "durable"})
	fake(t, filepath.Join(root, "x"), 6, 0.7)
	must(t, os.WriteFile(filepath.Join(root, "x", "summary.json"), []byte(`{"workload": "soft`), 0o666))
	must(t, os.MkdirAll(filepath.Join(root, "y"), 0o777))
	must(t, os.WriteFile(filepath.Join(root, "y", rundir.RunFile), nil, 0o666))
	return root
}

func found(t testing.TB, names ...string) []*Run {
	t.Helper()
	all, err := Find(names)
	must(t, err)
	return all
}

// TestList checks that each run is a line, however it ended, and that unreadable runs are reported and do not hide
// others.
func TestList(t *testing.T) {
	root := house(t)
	all := found(t, root, filepath.Join(root, "a")) // named twice, listed once
	var states []string
	for _, r := range all {
		states = append(states, filepath.Base(r.Folder)+" "+string(r.State))
	}
	want := []string{"a done", "c stopped", "b done", "f failed", "k killed", "x damaged", "y damaged"}
	if !slices.Equal(states, want) {
		t.Errorf("found %v, want %v", states, want)
	}
	var out bytes.Buffer
	must(t, List(&out, all, "result", false))
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{"RUN", "deep/b", "/a "} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %q, want %s there", i, lines[i], want)
		}
	}
	for _, want := range []string{"90.00 %", "40/100", "cannot read its summary", "a run's settings file: it is " +
		"empty"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, out.String())
		}
	}
	if err := List(&out, all, "colour", false); !errors.Is(err, perdure.ErrUsage) ||
		!strings.Contains(err.Error(), "began, faults") {
		t.Errorf("unknown order: %v", err)
	}
}

// TestLineNames checks that each field of a line is a column of the export, in the same order.
func TestLineNames(t *testing.T) {
	b, err := json.Marshal(found(t, house(t))[0].Line())
	must(t, err)
	at := -1
	for _, name := range lineNames {
		if i := strings.Index(string(b), `"`+name+`":`); name != "problem" && i <= at {
			t.Errorf("%s is out of order in %s", name, b)
		} else {
			at = max(at, i)
		}
	}
	if n := reflect.TypeFor[Line]().NumField(); n != len(lineNames) {
		t.Errorf("a line has %d fields, an export %d columns", n, len(lineNames))
	}
}

func TestNotThere(t *testing.T) {
	root := t.TempDir()
	for _, names := range [][]string{{filepath.Join(root, "gone")}, {root}} {
		if _, err := Find(names); !errors.Is(err, perdure.ErrUsage) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v", names, err)
		}
	}
	if _, err := One(root); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(),
		"not a run's directory") {
		t.Errorf("not a run's directory: %v", err)
	}
}

// TestDistributed checks the state of a job on several hosts without a result: unless it was stopped or has failed, it
// may continue without its coordinator, whether that was killed or left.
func TestDistributed(t *testing.T) {
	root := t.TempDir()
	for i, c := range []struct {
		request bool // the directory has the text that requested the job
		last    []string
		want    State
	}{
		{false, nil, Killed},
		{true, nil, Detached},
		{false, []string{"attached", "checkpoint"}, Detached},
		{true, []string{"attached", "detached"}, Detached},
		{true, []string{"attached", "closing", "stopped"}, Stopped},
		{true, []string{"stopped", "attached"}, Detached},
		{true, []string{"attached", "failed"}, Failed},
	} {
		dir := filepath.Join(root, fmt.Sprint(i))
		var events []rundir.Event
		for _, kind := range c.last {
			events = append(events, rundir.Event{Kind: kind})
		}
		fake(t, dir, 1, -1, events...)
		if c.request {
			must(t, os.WriteFile(filepath.Join(dir, rundir.RequestFile), nil, 0o666))
		}
		if got := Read(dir).State; got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestShow(t *testing.T) {
	root := house(t)
	fake(t, filepath.Join(root, "d"), 7, -1, rundir.Event{Clock: 41, Kind: "stopped"},
		rundir.Event{Kind: "attached"}, rundir.Event{Clock: 45, Kind: "detached"})
	for name, want := range map[string][]string{
		"a": {"has ended", "test accuracy    0.8000", "server:0", "train loss"},
		"c": {"was stopped at clock 40 of 100", "perdure train --resume"},
		"d": {"has no coordinator, last at clock 45 of 100"},
		"f": {"failed at clock 50", "it cannot continue"},
		"k": {"ended without a result at clock 60"},
		"x": {"is damaged", "cannot read its summary"},
	} {
		r, err := One(filepath.Join(root, name))
		must(t, err)
		var out bytes.Buffer
		must(t, r.Show(&out, false))
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s lacks %q:\n%s", name, w, out.String())
			}
		}
		out.Reset()
		must(t, r.Show(&out, true))
		if !json.Valid(out.Bytes()) {
			t.Errorf("%s: %s", name, out.String())
		}
	}
	r, err := One(filepath.Join(root, "y"))
	must(t, err)
	if err := r.Show(&bytes.Buffer{}, false); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("a run without settings: %v", err)
	}
}

// TestShowFailedProcesses checks that a run whose summary has no failures counts those of its events, as a job on
// several hosts has them: each death once, and programs that failed after they had left. A process that was only
// suspected, or that left its slot, has not failed.
func TestShowFailedProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	left := func(target string) rundir.Event {
		return rundir.Event{Kind: "detected", Target: target, Details: map[string]any{"vacated": true}}
	}
	fake(t, dir, 1, 0.8, rundir.Event{Kind: "suspected", Target: "server:1"},
		rundir.Event{Kind: "detected", Target: "server:1"}, rundir.Event{Kind: "detected", Target: "worker:2"},
		rundir.Event{Kind: "detected", Target: "shards"}, rundir.Event{Kind: "serving", Target: "worker:0"},
		rundir.Event{Kind: "failure", Target: "worker:2"}, rundir.Event{Kind: "suspected", Target: "worker:0"},
		left("worker:1"), left("worker:3"), rundir.Event{Kind: "failure", Target: "worker:3"},
		rundir.Event{Kind: "detected", Target: "worker:2"})
	r, err := One(dir)
	must(t, err)
	for _, c := range []struct {
		failures []rundir.Failure
		want     string
	}{
		{r.Summary.Failures, "1 kill, "},
		{nil, "failed processes: 4 (see events.jsonl), "},
	} {
		r.Summary.Failures = c.failures
		var out bytes.Buffer
		must(t, r.Show(&out, false))
		if !strings.Contains(out.String(), "\n"+c.want) {
			t.Errorf("the run lacks %q:\n%s", c.want, out.String())
		}
	}
}

// TestExport reads back what was written, and checks that nothing is overwritten.
func TestExport(t *testing.T) {
	root, to := house(t), t.TempDir()
	all := found(t, root)
	exports := Exports{
		CSV: filepath.Join(to, "runs.csv"), Series: filepath.Join(to, "series.csv"),
		TensorBoard: filepath.Join(to, "board"),
	}
	var out bytes.Buffer
	must(t, Export(&out, all, exports, false))
	read := func(file string) [][]string {
		b, err := os.ReadFile(file)
		must(t, err)
		rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
		must(t, err)
		return rows
	}
	rows := read(exports.CSV)
	if len(rows) != 1+len(all) || rows[1][slices.Index(rows[0], "result")] != "0.8" ||
		rows[7][slices.Index(rows[0], "problem")] == "" || rows[1][slices.Index(rows[0], "params.Batch")] != "64" {
		t.Errorf("runs: %v", rows)
	}
	rows = read(exports.Series)
	if len(rows) != 1+2*6 || rows[2][0] != all[0].Folder || rows[2][slices.Index(rows[0], "clock")] != "20" {
		t.Errorf("series: %v", rows)
	}
	files, err := filepath.Glob(filepath.Join(to, "board", root, "a", "events.out.tfevents.*"))
	must(t, err)
	if len(files) != 1 {
		t.Fatalf("the board has %v", files)
	}
	b, err := os.ReadFile(files[0])
	must(t, err)
	if got := records(t, b); len(got) != 3 || !strings.Contains(string(got[0]), "brain.Event:2") ||
		step(t, got[2]) != 20 || !strings.Contains(string(got[2]), "accuracy/test") {
		t.Errorf("the board has %q", got)
	}
	if err := Export(&out, all, exports, false); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("a file was replaced: %v", err)
	}
	exports.Force = true
	must(t, Export(&out, all, exports, false))
	if err := Export(&out, all, Exports{CSV: filepath.Join(to, "x.csv"), TensorBoard: exports.CSV},
		false); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("a file with the name of a directory: %v", err)
	}
	if _, err := os.Stat(filepath.Join(to, "x.csv")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a rejected export has written: %v", err)
	}
	first := filepath.Join(to, "first.csv") // not written if the other file cannot be
	for _, second := range []string{exports.Series, filepath.Join(to, "nothere", "series.csv"), first} {
		if err := Export(&out, all, Exports{CSV: first, Series: second}, false); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%s: %v", second, err)
		}
		if _, err := os.Stat(first); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a rejected export has written %s: %v", first, err)
		}
	}
	if err := Export(&out, all, Exports{}, false); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("without anything to write: %v", err)
	}
}

// records returns the records of a TFRecord file.
func records(t *testing.T, b []byte) (all [][]byte) {
	t.Helper()
	for len(b) > 0 {
		n := binary.LittleEndian.Uint64(b)
		if binary.LittleEndian.Uint32(b[8:]) != masked(b[:8]) ||
			binary.LittleEndian.Uint32(b[12+n:]) != masked(b[12:12+n]) {
			t.Fatal("a checksum is wrong")
		}
		all = append(all, b[12:12+n])
		b = b[16+n:]
	}
	return all
}

func step(t *testing.T, event []byte) (n uint64) {
	t.Helper()
	for len(event) > 0 {
		number, kind, size := protowire.ConsumeTag(event)
		event = event[size:]
		if number == eventStep {
			n, _ = protowire.ConsumeVarint(event)
		}
		event = event[protowire.ConsumeFieldValue(number, kind, event):]
	}
	return n
}

// TestMasked compares with the checksum of TensorBoard's own reader.
func TestMasked(t *testing.T) {
	if got := masked([]byte("123456789")); got != 0xc78ab0e5 {
		t.Errorf("%#x", got)
	}
}

// TestRemove checks that a run that has ended is deleted, except for files of others in its directory, and that a
// running one is not.
func TestRemove(t *testing.T) {
	root := house(t)
	remove := func(name string, dry bool) (string, error) {
		var out bytes.Buffer
		err := Remove(&out, []string{filepath.Join(root, name)}, dry, false)
		return out.String(), err
	}
	if out, err := remove("a", true); err != nil || !strings.Contains(out, "would be deleted") {
		t.Errorf("%s, %v", out, err)
	}
	notes := filepath.Join(root, "a", "notes.txt")
	must(t, os.WriteFile(notes, []byte("mine"), 0o666))
	if out, err := remove("a", false); err != nil || !strings.Contains(out, "it contains notes.txt") {
		t.Errorf("%s, %v", out, err)
	}
	if left, err := os.ReadDir(filepath.Join(root, "a")); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	if out, err := remove("k", false); err != nil {
		t.Errorf("%s, %v", out, err)
	}
	if _, err := os.Stat(filepath.Join(root, "k")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory: %v", err)
	}
	for name, text := range map[string]string{"empty": "{}", "other": `{"goal": 5}`, "text": "run"} {
		logs := filepath.Join(root, name, "logs")
		must(t, os.MkdirAll(logs, 0o777))
		must(t, os.WriteFile(filepath.Join(root, name, "run.json"), []byte(text), 0o666))
		for _, dry := range []bool{true, false} {
			if out, err := remove(name, dry); !errors.Is(err, perdure.ErrUsage) ||
				!strings.Contains(err.Error(), "does not look like a run's: ") {
				t.Errorf("%s, with an unrelated run.json: %s, %v", name, out, err)
			}
		}
		if _, err := os.Stat(logs); err != nil {
			t.Error(err)
		}
		must(t, os.WriteFile(filepath.Join(root, name, "lock"), nil, 0o666))
		if out, err := remove(name, false); err != nil {
			t.Errorf("%s, with a damaged run.json: %s, %v", name, out, err)
		}
	}
	d, err := rundir.Create(filepath.Join(root, "live"))
	must(t, err)
	defer d.Close()
	must(t, d.WriteRun(map[string]int{"of a newer version": 1})) // an unreadable run may be running, too
	for _, dry := range []bool{true, false} {
		out, err := remove("live", dry)
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "is still running") {
			t.Errorf("running run: %s, %v", out, err)
		}
	}
}

// BenchmarkList lists a thousand runs.
func BenchmarkList(b *testing.B) {
	root := b.TempDir()
	for i := range 1000 {
		fake(b, filepath.Join(root, fmt.Sprint(i)), uint64(i), 0.8, make([]rundir.Event, 40)...)
	}
	for b.Loop() {
		must(b, List(&bytes.Buffer{}, found(b, root), "result", false))
	}
}
