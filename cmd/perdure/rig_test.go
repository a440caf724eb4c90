package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/worker"
)

// This file is the rig of all tests that run real processes: a process is one command, and
// the functions that take a folder look at the run in it. Of jobs in one process and virtual
// time it is package rig; what means the same has the same name.

// patience is how long any command of a test may take before it is killed.
const patience = 3 * time.Minute

// onlyAll skips a test that only make check-all runs.
func onlyAll(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make check-all runs it")
	}
}

// brief returns the first n of the cases of a test. Only make check-all runs the others.
func brief[C any](n int, cases []C) []C {
	if testing.Short() {
		return cases[:n]
	}
	return cases
}

// process is a perdure command line, and what it has printed so far. It is killed when the
// test ends.
type process struct {
	*exec.Cmd      // until Start: what it is to have else
	t              testing.TB
	stdout, stderr *prints
	ended          chan struct{}
	err            error // of its end
}

// prints is what a process has printed.
type prints struct {
	mu    sync.Mutex // guards text
	text  []byte
	added chan struct{} // capacity 1, of both of a process's: there is more
}

func (p *prints) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = append(p.text, b...)
	select {
	case p.added <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (p *prints) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.text)
}

// command prepares a process.
func command(t testing.TB, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	added := make(chan struct{}, 1)
	p := &process{
		Cmd: exec.CommandContext(ctx, os.Args[0], args...), t: t, stdout: &prints{added: added},
		stderr: &prints{added: added}, ended: make(chan struct{}),
	}
	p.Stdout, p.Stderr = p.stdout, p.stderr
	return p
}

// start starts a command line.
func start(t testing.TB, args ...string) *process {
	t.Helper()
	p := command(t, args...)
	p.Start()
	return p
}

// Start starts a process that was prepared.
func (p *process) Start() {
	p.t.Helper()
	p.startBy((*exec.Cmd).Start)
}

// startBy starts a process that was prepared, as start does it: on another host, say.
func (p *process) startBy(start func(*exec.Cmd) error) {
	p.t.Helper()
	must(p.t, start(p.Cmd))
	go func() {
		defer close(p.ended)
		p.err = p.Cmd.Wait()
	}()
	p.t.Cleanup(func() {
		_ = p.Process.Kill() // it has ended, mostly
		<-p.ended
	})
}

// Says waits until a line that the process has printed matches, and returns the match. Only
// one goroutine waits at a time.
func (p *process) Says(pattern string) (match []string) {
	p.t.Helper()
	lines := regexp.MustCompile("(?m)" + pattern)
	for ended := false; ; {
		for _, out := range []*prints{p.stdout, p.stderr} {
			text := out.String()
			if match = lines.FindStringSubmatch(text[:strings.LastIndexByte(text, '\n')+1]); match != nil {
				return match
			}
		}
		if ended {
			p.t.Fatalf("the command ended (%v) before it printed %s: %s%s", p.err, pattern, p.stdout, p.stderr)
		}
		select {
		case <-p.stdout.added:
		case <-p.ended:
			ended = true
		}
	}
}

// Wait waits until the process has ended.
func (p *process) Wait() (code int, stdout, stderr string) {
	p.t.Helper()
	<-p.ended
	var exit *exec.ExitError
	if p.err != nil && !errors.As(p.err, &exit) {
		p.t.Fatal(p.err)
	}
	return p.ProcessState.ExitCode(), p.stdout.String(), p.stderr.String()
}

// Signal sends the process a signal.
func (p *process) Signal(signal os.Signal) {
	p.t.Helper()
	must(p.t, p.Process.Signal(signal))
}

// Kill kills the process, and waits until it has ended.
func (p *process) Kill() {
	p.t.Helper()
	must(p.t, p.Process.Kill())
	if code, _, stderr := p.Wait(); code != -1 {
		p.t.Errorf("exit code %d of a process that was killed: %s", code, stderr)
	}
}

// Stop presses Ctrl-C, and waits until the process has ended.
func (p *process) Stop() (code int, stdout, stderr string) {
	p.t.Helper()
	p.Signal(os.Interrupt)
	return p.Wait()
}

// invoke runs a command line to its end.
func invoke(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return start(t, args...).Wait()
}

// wantOut runs a command line and looks for texts in what it prints.
func wantOut(t testing.TB, code int, args []string, parts ...string) {
	t.Helper()
	got, stdout, stderr := invoke(t, args...)
	out := stdout + stderr
	if got != code {
		t.Errorf("%s ends with %d; want %d:\n%s", strings.Join(args, " "), got, code, out)
	}
	for _, p := range parts {
		if !strings.Contains(out, p) {
			t.Errorf("%s prints\n%s\nwithout %q", strings.Join(args, " "), out, p)
		}
	}
}

// wantRefused runs a command line that must be refused, in one line that matches.
func wantRefused(t testing.TB, code int, pattern string, args ...string) {
	t.Helper()
	start(t, args...).refused(code, pattern)
}

// refused waits for the end of a process that must end so, with one line that matches.
func (p *process) refused(code int, pattern string) {
	p.t.Helper()
	if is, out, errs := p.Wait(); is != code || strings.Count(errs, "\n") != 1 ||
		!regexp.MustCompile(pattern).MatchString(errs) {
		p.t.Errorf("perdure %s: exit code %d: %s%s; want %d, and one line with %s", strings.Join(p.Args[1:], " "), is,
			out, errs, code, pattern)
	}
}

// await looks again and again until something is so; isNot is told where it does not come.
func await(t testing.TB, is func() bool, isNot func() string) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(patience); !is(); <-look.C {
		if time.Now().After(deadline) {
			t.Fatal(isNot())
		}
	}
}

// awaitStatus asks a run for its status until it matches.
func awaitStatus(t testing.TB, dir, pattern string) (match []string) {
	t.Helper()
	var out, errs string
	await(t, func() bool {
		_, out, errs = invoke(t, "status", "--run", dir)
		match = regexp.MustCompile(pattern).FindStringSubmatch(out)
		return match != nil
	}, func() string { return fmt.Sprintf("status does not come to say %s: %s%s", pattern, out, errs) })
	return match
}

// awaitEvent waits until a run's record has n events with these words.
func awaitEvent(t testing.TB, dir, words string, times int) {
	t.Helper()
	await(t, func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, "events.jsonl")) // it may not be there yet
		return strings.Count(string(text), words) >= times
	}, func() string { return fmt.Sprintf("nobody tells %d times that %s\n%s", times, words, logs(dir)) })
}

// awaitCheckpoint waits until a run has one.
func awaitCheckpoint(t testing.TB, dir string) {
	t.Helper()
	await(t, func() bool {
		_, err := checkpoint.Latest(store.Folder(disk.OS(), filepath.Join(dir, "checkpoint")))
		return err == nil
	}, func() string { return "there is no checkpoint\n" + logs(dir) })
}

// newFolder names a folder for a run.
func newFolder(t testing.TB) string { return filepath.Join(t.TempDir(), "run") }

// fileOf is a file of a run.
func fileOf(t testing.TB, dir string, name ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{dir}, name...)...))
	must(t, err)
	return string(b)
}

// eventsOf is a run's record.
func eventsOf(t testing.TB, dir string) string {
	t.Helper()
	return fileOf(t, dir, "events.jsonl")
}

// controlOf is the address of a run's control API.
func controlOf(t testing.TB, dir string) string {
	t.Helper()
	return strings.TrimSpace(fileOf(t, dir, "control"))
}

// secretOf is the file with a run's secret.
func secretOf(dir string) string { return filepath.Join(dir, reach.SecretFile) }

// newestCut is the newest clock for which a run's folder has a whole checkpoint.
func newestCut(t testing.TB, dir string) (cut int) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "checkpoint", "*.manifest"))
	must(t, err)
	for _, n := range names {
		m := regexp.MustCompile(`-c0*(\d+)`).FindStringSubmatch(filepath.Base(n))
		c, err := strconv.Atoi(m[1])
		must(t, err)
		cut = max(cut, c)
	}
	if cut == 0 {
		t.Fatalf("no checkpoint in %s", dir)
	}
	return cut
}

// logs are the last lines of every process, for a test that fails.
func logs(dir string) string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(dir, "logs", "*")) // the pattern is right
	for _, f := range files {
		text, _ := os.ReadFile(f) // what cannot be read is not shown
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "-- %s\n%s\n", filepath.Base(f), strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
	return b.String()
}

// checkRaces fails where the race detector has found something in a process of a
// job: its report is in the process's log, and the job may have succeeded.
func checkRaces(t testing.TB, dir string) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(dir, "logs", "*")) // the pattern is right
	for _, f := range files {
		text, _ := os.ReadFile(f) // what cannot be read holds no report
		if _, report, found := strings.Cut(string(text), "WARNING: DATA RACE\n"); found {
			t.Errorf("%s: data race\n%s", filepath.Base(f), report[:min(6000, len(report))])
		}
	}
}

// small are the settings of a job that takes a moment: every test that compares
// models uses the same.
func small(more ...string) []string {
	return append([]string{
		"train", "--quiet", "--consistency", "bsp", "--recovery", "checkpoint:10", "--clocks", "60",
		"--batch", "8", "--workers", "3", "--servers", "2", "--shards", "6", "--seed", "7", "--eval-every", "0",
		"--data", pictures,
	}, more...)
}

// endless are a job that does not end by itself, and prints a line at clock 30.
func endless(dir string) []string {
	args := small("--clocks", "1000000", "--fault", "slow*1.01:worker:0@clock:30", "--out", dir)
	return append(args[:1:1], args[2:]...) // not --quiet
}

// atClock30 starts an endless job, and waits for its line.
func atClock30(t testing.TB, dir string, more ...string) *process {
	t.Helper()
	p := start(t, append(endless(dir), more...)...)
	p.Says("fault: slow")
	return p
}

// trained runs a training job that must succeed.
func trained(t testing.TB, args ...string) (s rundir.Summary, dir string) {
	t.Helper()
	dir = newFolder(t)
	return start(t, append(args, "--out", dir)...).succeeds(dir), dir
}

// succeeds waits for the good end of a process whose run is in a folder.
func (p *process) succeeds(dir string) rundir.Summary {
	p.t.Helper()
	if code, out, errs := p.Wait(); code != 0 {
		p.t.Fatalf("perdure %s: exit code %d\n%s%s%s", strings.Join(p.Args[1:], " "), code, out, errs, logs(dir))
	}
	checkRaces(p.t, dir)
	return summary(p.t, dir)
}

// summary reads what a run has come to.
func summary(t testing.TB, dir string) (s rundir.Summary) {
	t.Helper()
	b := fileOf(t, dir, "summary.json")
	must(t, json.Unmarshal([]byte(b), &s))
	if s.ModelSHA256 == nil || s.UpdatesLost == nil || s.ClocksRedone == nil {
		t.Fatalf("the summary lacks what a finished run knows: %s", b)
	}
	return s
}

// one is the model of the small job with the given flags, trained undisturbed
// once for all tests.
func one(t testing.TB, more ...string) string {
	t.Helper()
	return undisturbed.model(strings.Join(more, " "), func() string {
		s, _ := trained(t, small(more...)...)
		return *s.ModelSHA256
	})
}

// models are made once, each when it is asked for first.
type models struct {
	mu sync.Mutex // guards by
	by map[string]*made
}

// made is a model, or is to be.
type made struct {
	mu  sync.Mutex // guards sum
	sum string     // "": not yet
}

var undisturbed = models{by: map[string]*made{}}

func (s *models) model(kind string, train func() string) string {
	s.mu.Lock()
	m := s.by[kind]
	if m == nil {
		m = &made{}
		s.by[kind] = m
	}
	s.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sum == "" {
		m.sum = train()
	}
	return m.sum
}

// sameModel checks that a run has made a model, with every update.
func sameModel(t testing.TB, s rundir.Summary, want, dir string) {
	t.Helper()
	if *s.ModelSHA256 != want || *s.UpdatesLost != 0 {
		t.Errorf("model %s, %d updates lost; want %s\n%s", *s.ModelSHA256, *s.UpdatesLost, want, logs(dir))
	}
}

// up starts `perdure up` in a folder, and returns where its coordinator is.
func up(t testing.TB, dir string, args ...string) (p *process, coordinator string) {
	t.Helper()
	p = start(t, append([]string{"up", "--out", dir}, args...)...)
	return p, p.Says(`coordinator is at (\S+):`)[1]
}

// joins joins the job in a folder, as a user's program does.
func joins(
	ctx context.Context, dir, coordinator string, slot perdurelib.Slot, change ...func(*worker.Config),
) (*worker.Client, error) {
	cfg := worker.Config{
		Coordinator: coordinator, SecretFile: secretOf(dir), Slot: slot.Exactly(), Process: reach.ProcessName(),
	}
	for _, f := range change {
		f(&cfg)
	}
	return worker.Dial(ctx, cfg)
}
