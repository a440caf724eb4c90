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
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/worker"
)

// This file contains helpers for all tests that run real processes. A process is one command, and functions that take a
// directory inspect the run in it. Package testcluster does the same for jobs in one process and virtual time, with the
// same names.

// patience is how long any command of a test may take before it is killed.
const patience = 3 * time.Minute

// onlyAll skips a test that only make check-all runs.
func onlyAll(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("only make check-all runs this test")
	}
}

// brief returns the first n of the cases of a test. Only make check-all runs the others.
func brief[C any](n int, cases []C) []C {
	if testing.Short() {
		return cases[:n]
	}
	return cases
}

// process is a perdure command and its output so far. It is killed when the test ends.
type process struct {
	*exec.Cmd      // may be changed until Start
	t              testing.TB
	stdout, stderr *prints
	ended          chan struct{}
	err            error // of its exit
}

// prints is the output of a process.
type prints struct {
	mu    sync.Mutex // guards text
	text  []byte
	added chan struct{} // capacity 1, shared by a process's two outputs: there is more output
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

// Start starts a prepared process.
func (p *process) Start() {
	p.t.Helper()
	p.startBy((*exec.Cmd).Start)
}

// startBy starts a prepared process with the given function, for example on another host.
func (p *process) startBy(start func(*exec.Cmd) error) {
	p.t.Helper()
	must(p.t, start(p.Cmd))
	go func() {
		defer close(p.ended)
		p.err = p.Cmd.Wait()
	}()
	p.t.Cleanup(func() {
		_ = p.Process.Kill() // it may have ended already
		<-p.ended
	})
}

// Says waits until a line of the process's output matches and returns the match. Only one goroutine may wait at a time.
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
		p.t.Errorf("a killed process exited with code %d: %s", code, stderr)
	}
}

// Stop sends an interrupt, like Ctrl-C, and waits until the process has ended.
func (p *process) Stop() (code int, stdout, stderr string) {
	p.t.Helper()
	p.Signal(os.Interrupt)
	return p.Wait()
}

// invoke runs a command line until it ends.
func invoke(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return start(t, args...).Wait()
}

// wantOut runs a command line and checks its exit code. Its output must contain all parts.
func wantOut(t testing.TB, code int, args []string, parts ...string) {
	t.Helper()
	got, stdout, stderr := invoke(t, args...)
	out := stdout + stderr
	if got != code {
		t.Errorf("%s ended with code %d; want %d:\n%s", strings.Join(args, " "), got, code, out)
	}
	for _, p := range parts {
		if !strings.Contains(out, p) {
			t.Errorf("the output of %s is\n%s\nwant it to contain %q", strings.Join(args, " "), out, p)
		}
	}
}

// wantRefused runs a command line that must be rejected with a one-line error that matches.
func wantRefused(t testing.TB, code int, pattern string, args ...string) {
	t.Helper()
	start(t, args...).refused(code, pattern)
}

// refused waits for the end of a process that must exit with the given code and a one-line error that matches.
func (p *process) refused(code int, pattern string) {
	p.t.Helper()
	if is, out, errs := p.Wait(); is != code || strings.Count(errs, "\n") != 1 ||
		!regexp.MustCompile(pattern).MatchString(errs) {
		p.t.Errorf("perdure %s: exit code %d: %s%s; want %d, and one line with %s", strings.Join(p.Args[1:], " "), is,
			out, errs, code, pattern)
	}
}

// await polls until is returns true. On timeout it fails the test with the message from isNot.
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

// awaitStatus polls a run's status until it matches.
func awaitStatus(t testing.TB, dir, pattern string) (match []string) {
	t.Helper()
	var out, errs string
	await(t, func() bool {
		_, out, errs = invoke(t, "status", "--run", dir)
		match = regexp.MustCompile(pattern).FindStringSubmatch(out)
		return match != nil
	}, func() string { return fmt.Sprintf("the status never matches %s: %s%s", pattern, out, errs) })
	return match
}

// awaitEvent waits until a run's event log contains the text at least the given number of times.
func awaitEvent(t testing.TB, dir, words string, times int) {
	t.Helper()
	await(t, func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, "events.jsonl")) // it may not exist yet
		return strings.Count(string(text), words) >= times
	}, func() string {
		return fmt.Sprintf("the events do not contain %d times %q\n%s", times, words, logs(dir))
	})
}

// awaitCheckpoint waits until a run has a checkpoint.
func awaitCheckpoint(t testing.TB, dir string) {
	t.Helper()
	await(t, func() bool {
		_, err := checkpoint.Latest(store.NewDir(disk.OS(), filepath.Join(dir, "checkpoint")))
		return err == nil
	}, func() string { return "there is no checkpoint\n" + logs(dir) })
}

// newFolder returns a directory name for a run.
func newFolder(t testing.TB) string { return filepath.Join(t.TempDir(), "run") }

// fileOf returns the content of a run's file.
func fileOf(t testing.TB, dir string, name ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{dir}, name...)...))
	must(t, err)
	return string(b)
}

// eventsOf returns a run's event log.
func eventsOf(t testing.TB, dir string) string {
	t.Helper()
	return fileOf(t, dir, "events.jsonl")
}

// controlOf returns the address of a run's control API.
func controlOf(t testing.TB, dir string) string {
	t.Helper()
	return strings.TrimSpace(fileOf(t, dir, "control"))
}

// secretOf returns the path of a run's secret file.
func secretOf(dir string) string { return filepath.Join(dir, locate.SecretFile) }

// newestCut returns the newest clock for which a run's directory has an intact checkpoint.
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

// logs returns the last lines of every process's log, for failure messages.
func logs(dir string) string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(dir, "logs", "*")) // the pattern is right
	for _, f := range files {
		text, _ := os.ReadFile(f) // unreadable files are not shown
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "-- %s\n%s\n", filepath.Base(f), strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
	return b.String()
}

// checkRaces fails if the race detector has reported a race in a process of a job. The report is only in the process's
// log, because the job may have succeeded.
func checkRaces(t testing.TB, dir string) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(dir, "logs", "*")) // the pattern is right
	for _, f := range files {
		text, _ := os.ReadFile(f) // an unreadable file has no report
		if _, report, found := strings.Cut(string(text), "WARNING: DATA RACE\n"); found {
			t.Errorf("%s: data race\n%s", filepath.Base(f), report[:min(6000, len(report))])
		}
	}
}

// small returns the settings of a short job. Every test that compares models uses the same settings.
func small(more ...string) []string {
	return append([]string{
		"train", "--quiet", "--consistency", "bsp", "--recovery", "checkpoint:10", "--clocks", "60",
		"--batch", "8", "--workers", "3", "--servers", "2", "--shards", "6", "--seed", "7", "--eval-every", "0",
		"--data", pictures,
	}, more...)
}

// endless returns the settings of a job that does not end by itself and prints a line at clock 30.
func endless(dir string) []string {
	args := small("--clocks", "1000000", "--fault", "slow*1.01:worker:0@clock:30", "--out", dir)
	return append(args[:1:1], args[2:]...) // not --quiet
}

// atClock30 starts an endless job and waits for its line at clock 30.
func atClock30(t testing.TB, dir string, more ...string) *process {
	t.Helper()
	p := start(t, append(endless(dir), more...)...)
	p.Says("fault: slow")
	return p
}

// stall returns a fault that makes worker 0 so slow that a bsp job waits for it from a clock on, until unstall. The job
// needs --compute-ms.
func stall(clock int) string { return fmt.Sprintf("slow*10000:worker:0@clock:%d", clock) }

// unstall waits until the job is stalled, and replaces the slow worker.
func unstall(t testing.TB, dir string) {
	t.Helper()
	awaitEvent(t, dir, "fault: slow", 1)
	wantOut(t, 0, []string{"fault", "--run", dir, "kill:worker:0@0s"}, "planned")
}

// trained runs a training job that must succeed.
func trained(t testing.TB, args ...string) (s rundir.Summary, dir string) {
	t.Helper()
	dir = newFolder(t)
	return start(t, append(args, "--out", dir)...).succeeds(dir), dir
}

// succeeds waits until a process exits successfully and returns the summary of its run in dir.
func (p *process) succeeds(dir string) rundir.Summary {
	p.t.Helper()
	if code, out, errs := p.Wait(); code != 0 {
		p.t.Fatalf("perdure %s: exit code %d\n%s%s%s", strings.Join(p.Args[1:], " "), code, out, errs, logs(dir))
	}
	checkRaces(p.t, dir)
	return summary(p.t, dir)
}

// summary reads a run's summary.
func summary(t testing.TB, dir string) (s rundir.Summary) {
	t.Helper()
	b := fileOf(t, dir, "summary.json")
	must(t, json.Unmarshal([]byte(b), &s))
	if s.ModelSHA256 == nil || s.UpdatesLost == nil || s.ClocksRedone == nil {
		t.Fatalf("the summary lacks fields of a finished run: %s", b)
	}
	return s
}

// one returns the model of the small job with the given flags, trained without failures. Each is trained once for all
// tests.
func one(t testing.TB, more ...string) string {
	t.Helper()
	return undisturbed.model(strings.Join(more, " "), func() string {
		s, _ := trained(t, small(more...)...)
		return *s.ModelSHA256
	})
}

// models caches models. Each is trained when it is first requested.
type models struct {
	mu sync.Mutex // guards by
	by map[string]*made
}

// made is a model, possibly not yet trained.
type made struct {
	mu  sync.Mutex // guards sum
	sum string     // "" until it is trained
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

// sameModel checks that a run has the expected model and has lost no update.
func sameModel(t testing.TB, s rundir.Summary, want, dir string) {
	t.Helper()
	if *s.ModelSHA256 != want || *s.UpdatesLost != 0 {
		t.Errorf("model %s, %d updates lost; want %s\n%s", *s.ModelSHA256, *s.UpdatesLost, want, logs(dir))
	}
}

// resumesWell resumes a stopped run of the small job from its newest checkpoint, for a few more clocks. The model must
// be that of an undisturbed run.
func resumesWell(t testing.TB, dir string, more ...string) {
	t.Helper()
	clocks := strconv.Itoa(newestCut(t, dir) + 7)
	s, resumed := trained(t, append([]string{"train", "--quiet", "--resume", dir, "--clocks", clocks}, more...)...)
	whole, _ := trained(t, small("--clocks", clocks)...)
	sameModel(t, s, *whole.ModelSHA256, resumed)
}

// costsNothing checks that a run without a summary has lost no updates and repeated no clocks.
func costsNothing(t testing.TB, dir string) {
	t.Helper()
	if cost := regexp.MustCompile(`"(updates_lost|clocks_redone)":[1-9]`); cost.MatchString(eventsOf(t, dir)) {
		t.Errorf("updates are lost or clocks repeated:\n%s", eventsOf(t, dir))
	}
}

// up starts `perdure up` in a directory and returns its coordinator's address.
func up(t testing.TB, dir string, args ...string) (p *process, coordinator string) {
	t.Helper()
	p = start(t, append([]string{"up", "--out", dir}, args...)...)
	return p, p.Says(`coordinator is at (\S+):`)[1]
}

// joins joins the job in a directory, like a user's program.
func joins(
	ctx context.Context, dir, coordinator string, slot perdurelib.Slot, change ...func(*worker.Config),
) (*worker.Client, error) {
	cfg := worker.Config{
		Coordinator: coordinator, SecretFile: secretOf(dir), Slot: slot.Exactly(), Process: locate.ProcessName(),
	}
	for _, f := range change {
		f(&cfg)
	}
	return worker.Dial(ctx, cfg)
}
