package localrun

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/internal/run/workload/logreg"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// small returns the settings of a job that ends quickly.
func small(t *testing.T, recovery string) settings.Run {
	t.Helper()
	startsItself(t)
	shape := settings.Shape{
		Workers: 2, Servers: 2, Shards: 4, Consistency: "bsp", Recovery: recovery, Clocks: 30,
		Seed: 7,
	}
	job, err := shape.Job(logreg.SoftmaxName)
	must(t, err)
	s := settings.Run{
		Job: job, Reach: settings.Reach{Listen: AnyPort}, CacheMB: settings.DefaultCacheMB,
		RetainMB:    settings.DefaultRetainMB,
		Checkpoints: settings.Checkpoints{Keep: 1},
		Params: workload.Params{
			Seed: job.Seed, Slots: job.Slots, Batch: 8,
			Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: logreg.SoftmaxRate},
		},
	}
	must(t, s.Check())
	return s
}

// record is a view that records its calls.
type record struct {
	terminal.NopView
	mu     sync.Mutex // guards the fields below
	events []wire.Event
	began  string
	ended  *rundir.Summary
	closed bool
}

func (v *record) Start(_ *settings.Run, dir string) { v.began = dir }
func (v *record) Close()                            { v.closed = true }

func (v *record) Event(_ *terminal.State, e wire.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.events = append(v.events, e)
}

func (v *record) End(s *rundir.Summary, _ string, _ []supervisor.Fault) { v.ended = s }

// TestRun checks that a job survives the death of a server, without a command line, and makes the same model as an
// undisturbed one. The run's directory contains the results.
func TestRun(t *testing.T) {
	var hashes []string
	for _, faults := range [][]string{nil, {"kill:server:0@clock:10"}} {
		s := small(t, "resend:10")
		s.Faults = faults
		must(t, s.Check())
		dir, v := filepath.Join(t.TempDir(), "run"), &record{}
		r, err := Start(t.Context(), Options{Settings: s, Folder: dir, Workers: true, View: v})
		must(t, err)
		sum, err := r.Wait(t.Context(), t.Context())
		if err = errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		if len(sum.Failures) != len(faults) || *sum.UpdatesLost != 0 || sum.Clocks != 30 {
			t.Errorf("faults %v: %+v", faults, sum)
		}
		hashes = append(hashes, *sum.ModelSHA256)
		read, err := rundir.ReadSummary(dir)
		must(t, err)
		if *read.ModelSHA256 != *sum.ModelSHA256 || v.began != dir || v.ended == nil || !v.closed ||
			len(v.events) == 0 {
			t.Errorf("model in the run's directory: %s; shown: %+v", *read.ModelSHA256, v)
		}
		if _, err := os.Stat(filepath.Join(dir, "model.safetensors")); err != nil {
			t.Error(err)
		}
	}
	if hashes[0] != hashes[1] {
		t.Errorf("model of the disturbed job is %s, want %s", hashes[1], hashes[0])
	}
}

// TestInterrupted checks that an interrupted run makes a checkpoint and says how to continue. The resumed run has a
// directory of its own.
func TestInterrupted(t *testing.T) {
	t.Run("folder", func(t *testing.T) { interrupted(t, "", "") })
	t.Run("store", func(t *testing.T) {
		url := "file://" + filepath.ToSlash(t.TempDir())
		interrupted(t, url+"/a", url+"/b")
	})
}

func interrupted(t *testing.T, here, there string) {
	t.Helper()
	s := small(t, "checkpoint:1000")
	s.Checkpoints.Store = here
	s.Job.Clocks, s.ComputeMs, s.Checkpoints.Grace = 1000, 5, 10*time.Second
	must(t, s.Check())
	dir, v := filepath.Join(t.TempDir(), "run"), &record{}
	r, err := Start(t.Context(), Options{Settings: s, Folder: dir, Workers: true, View: v})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	go func() {
		for r.Clock() < 5 {
			<-look.C
		}
		cancel()
	}()
	_, err = r.Wait(ctx, t.Context())
	must(t, r.Close())
	if !errors.Is(err, ErrInterrupted) || !strings.Contains(err.Error(), "perdure train --resume "+dir) {
		t.Fatalf("ended with %v", err)
	}
	if asks := strings.Contains(err.Error(), dir+" --store URL"); asks != (here != "") {
		t.Errorf("hint about the store: %v", err)
	}
	again, err := (&settings.Flags{Store: there, Given: map[string]bool{"store": there != ""}}).Resume(dir)
	must(t, err)
	if again.Cut < 5 || again.Job.ID != s.Job.ID || again.Resumed != dir {
		t.Errorf("resumed at clock %d of job %s in %s", again.Cut, again.Job.ID, again.Resumed)
	}
	to := t.TempDir()
	from, err := again.OpenEarlier(t.Context())
	must(t, err)
	must(t, copyObjects(from, store.NewDir(disk.OS(), to), again.Checkpoints.From))
	if err := copyObjects(from, store.NewDir(disk.OS(), to), again.Checkpoints.From); !errors.Is(err, fs.ErrExist) {
		t.Errorf("copying over existing objects: %v", err)
	}
	if files, err := os.ReadDir(to); err != nil || len(files) < 5 || len(files) != len(again.Checkpoints.From) {
		t.Errorf("%v, %v", files, err)
	}
}

// TestStartRefuses checks that invalid settings are reported before anything is started and that nothing remains.
func TestStartRefuses(t *testing.T) {
	full := t.TempDir()
	must(t, os.WriteFile(filepath.Join(full, "file"), nil, 0o666))
	faulty := small(t, "none")
	faulty.Faults = []string{"kill:server:9@1s"}
	for want, o := range map[string]Options{
		"is not empty": {Settings: small(t, "none"), Folder: full},
		"has no name":  {Settings: small(t, "none")},
		// checked once the directory exists
		"there is no server:9": {Settings: faulty, Folder: filepath.Join(t.TempDir(), "run")},
		"write HOST:PORT":      {Settings: settings.Run{Reach: settings.Reach{Listen: "here"}}, Folder: "x"},
		"specify the address":  {Settings: settings.Run{Reach: settings.Reach{Listen: ":0"}}, Folder: "x"},
	} {
		v := &record{}
		o.View, o.Workers = v, true
		if r, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) || !v.closed {
			t.Errorf("%+v: %v, want %s; view closed: %t", r, err, want, v.closed)
		}
	}
	warned := ""
	r := Run{s: settings.Run{Reach: settings.Reach{Listen: "127.0.0.1:0"}}}
	for range 2 {
		frames, web, err := r.listen(func(line string) { warned += line })
		must(t, errors.Join(err, frames.file.Close(), web.file.Close()))
	}
	if warned != "" || !transport.IsLoopback("127.0.0.1:7000") || !transport.IsLoopback("[::1]:7000") ||
		transport.IsLoopback("192.0.2.1:7000") ||
		transport.IsLoopback("host:7000") {
		t.Errorf("warning for addresses of this machine only: %s", warned)
	}
}

// TestProgramNotThere checks that a missing program is reported before the run's directory is created. Commands that
// only a shell can resolve are not checked.
func TestProgramNotThere(t *testing.T) {
	for _, command := range []string{"./nothere", "nothere --flag", filepath.Join(t.TempDir(), "nothere") + " x"} {
		dir := filepath.Join(t.TempDir(), "run")
		_, err := Start(t.Context(), Options{Settings: small(t, "none"), Folder: dir, Exec: command})
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "nothere") {
			t.Errorf("%s: %v", command, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: run directory: %v", command, err)
		}
	}
	for _, command := range []string{"", "sh -c 'exit 0'", `"$HOME/train"`, "$(which train)", "'my program'"} {
		if err := findProgram(command); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
}

// TestStartLetsGo checks that a run that cannot start releases its address.
func TestStartLetsGo(t *testing.T) {
	s := small(t, "none")
	free, err := listen(AnyPort)
	must(t, err)
	s.Reach.Listen = free.addr
	must(t, free.file.Close())
	dir := t.TempDir() // the directory is not empty
	must(t, os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	for range 2 {
		o := Options{Settings: s, Folder: dir, Workers: true} // without a view
		if _, err := Start(t.Context(), o); err == nil || strings.Contains(err.Error(), "cannot listen") {
			t.Fatalf("a run in a directory that is in use: %v", err)
		}
	}
}
