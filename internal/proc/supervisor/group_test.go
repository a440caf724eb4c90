//go:build unix

package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// childEnv makes this test binary act as a child process in one of the modes below. A child writes to descriptor 3, and
// reads from descriptor 4 if there is one.
const childEnv = "SUPERVISOR_TEST_CHILD"

var childModes = map[string]func(say *os.File){
	"wait": func(say *os.File) {
		fmt.Fprintf(say, "ready %d %d\n", os.Getpid(), syscall.Getpgrp())
		forever()
	},
	"lifeline": func(say *os.File) {
		if err := DieWithParent(); err != nil {
			fmt.Fprintln(say, err)
			return
		}
		fmt.Fprintln(say, "ready")
		forever()
	},
	"stubborn": func(say *os.File) {
		signal.Ignore(syscall.SIGTERM)
		fmt.Fprintln(say, "ready")
		forever()
	},
	"graceful": func(say *os.File) {
		end := make(chan os.Signal, 1)
		signal.Notify(end, syscall.SIGTERM)
		fmt.Fprintln(say, "ready")
		<-end
		fmt.Fprintln(say, "bye")
	},
	"interrupted": func(say *os.File) {
		end := make(chan os.Signal, 1)
		signal.Notify(end, syscall.SIGTERM)
		fmt.Fprintln(say, "ready")
		<-end
		fmt.Fprintln(say, "bye")
		os.Exit(exitSignal)
	},
	"echo": func(say *os.File) {
		hear := bufio.NewScanner(os.NewFile(4, "hear"))
		fmt.Fprintln(say, "ready")
		for hear.Scan() {
			fmt.Fprintln(say, hear.Text())
		}
	},
	"fail": func(*os.File) {
		fmt.Fprint(os.Stderr, "first\nperdure: the disk is full\n\n")
		os.Exit(3)
	},
	"panic": func(*os.File) { panic("boom") },
	"end":   func(*os.File) {},
}

// forever waits for a signal that is never sent.
func forever() {
	never := make(chan os.Signal, 1)
	signal.Notify(never, syscall.SIGUSR2)
	<-never
}

func TestMain(m *testing.M) {
	mode := os.Getenv(childEnv)
	if mode == "" {
		goleak.VerifyTestMain(m)
		return
	}
	childModes[mode](os.NewFile(3, "say"))
	os.Exit(0)
}

const patience = 20 * time.Second // timeout for expected events

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testGroup is a group whose exits wait to be received, each with its answer.
type testGroup struct {
	*Group
	t       *testing.T
	exits   chan Exit
	answers chan Restart
}

func newTestGroup(t *testing.T, grace time.Duration) *testGroup {
	t.Helper()
	g := &testGroup{t: t, exits: make(chan Exit, 16), answers: make(chan Restart, 16)}
	var err error
	g.Group, err = NewGroup(Options{Grace: grace, OnExit: func(e Exit) Restart {
		g.exits <- e
		select {
		case again := <-g.answers:
			return again
		default:
			return Never
		}
	}})
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		must(t, g.Stop(ctx))
	})
	return g
}

func (g *testGroup) exit() Exit {
	g.t.Helper()
	select {
	case e := <-g.exits:
		if e.At.IsZero() || time.Since(e.At) > patience {
			g.t.Errorf("implausible exit time %v", e.At)
		}
		return e
	case <-time.After(patience):
		g.t.Fatal("no exit was reported")
		return Exit{}
	}
}

// listener receives what children write.
type listener struct {
	t    *testing.T
	read *os.File
	buf  *bufio.Reader
	file *os.File // the children's end
}

func newListener(t *testing.T) *listener {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() {
		_, _ = r.Close(), w.Close() // may already be closed
	})
	return &listener{t: t, read: r, buf: bufio.NewReader(r), file: w}
}

func (e *listener) line() string {
	e.t.Helper()
	must(e.t, e.read.SetReadDeadline(time.Now().Add(patience)))
	s, err := e.buf.ReadString('\n')
	must(e.t, err)
	return strings.TrimSuffix(s, "\n")
}

func (e *listener) expect(want string) {
	e.t.Helper()
	if got := e.line(); got != want {
		e.t.Fatalf("the child wrote %q, want %q", got, want)
	}
}

// silence waits until all children that could write have ended.
func (e *listener) silence(within time.Duration) {
	e.t.Helper()
	must(e.t, e.file.Close())
	must(e.t, e.read.SetReadDeadline(time.Now().Add(within)))
	if rest, err := io.ReadAll(e.buf); err != nil || len(rest) > 0 {
		e.t.Fatalf("children survived, %q: %v", rest, err)
	}
}

func childSpec(mode string, role wire.Role, index int, files ...*os.File) Spec {
	// The race detector would delay each exit by a second.
	env := []string{childEnv + "=" + mode, "GORACE=atexit_sleep_ms=0"}
	return Spec{Role: role, Index: index, Command: []string{os.Args[0]}, Env: env, Files: files}
}

// TestExits checks how and why each process ended.
func TestExits(t *testing.T) {
	g := newTestGroup(t, 0)
	for i, c := range []struct {
		mode string
		want Exit
	}{
		{"end", Exit{Description: "ended with code 0"}},
		{"fail", Exit{
			Code: 3, Description: "ended with code 3", LastLine: "perdure: the disk is full",
			Tail: "first\nperdure: the disk is full",
		}},
		{"panic", Exit{Code: 2, Description: "ended with code 2", LastLine: "panic: boom"}},
		{"wait", Exit{Code: -1, Signal: "SIGKILL", Description: "killed by SIGKILL"}},
	} {
		ear := newListener(t)
		spec := childSpec(c.mode, wire.RoleWorker, i, ear.file)
		spec.LogPath = filepath.Join(t.TempDir(), "log")
		must(t, g.Start(spec))
		pid := g.PID(wire.RoleWorker, i)
		if c.mode == "wait" {
			if got, want := ear.line(), fmt.Sprintf("ready %d %d", pid, pid); got != want {
				t.Errorf("the child wrote %q, want its PID and its own process group: %q", got, want)
			}
			must(t, g.Kill(wire.RoleWorker, i))
		}
		got := g.exit()
		if pid != 0 && got.PID != pid || got.PID == 0 {
			t.Errorf("%s: exit of process %d, want %d", c.mode, got.PID, pid)
		}
		if got.Uptime <= 0 || got.Uptime > patience {
			t.Errorf("%s: implausible run time %v", c.mode, got.Uptime)
		}
		if c.mode == "panic" && strings.HasPrefix(got.Tail, "panic: boom\ngoroutine ") {
			c.want.Tail = got.Tail
		}
		c.want.Role, c.want.Index, c.want.PID = wire.RoleWorker, i, got.PID
		c.want.At, c.want.Uptime = got.At, got.Uptime
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.mode, got, c.want)
		}
	}
}

// TestRestart checks that a place's next process starts when the caller says so, with the same log, and that the place
// is free afterwards.
func TestRestart(t *testing.T) {
	g := newTestGroup(t, 0)
	ear := newListener(t)
	spec := childSpec("fail", wire.RoleServer, 2, ear.file)
	spec.LogPath = filepath.Join(t.TempDir(), "server-2.log")
	g.answers <- Now
	g.answers <- Restart(time.Millisecond)
	must(t, g.Start(spec))
	for range 3 {
		if e := g.exit(); e.Code != 3 || e.LastLine != "perdure: the disk is full" {
			t.Errorf("exit %+v", e)
		}
	}
	log, err := os.ReadFile(spec.LogPath)
	must(t, err)
	var heads []string
	for line := range strings.Lines(string(log)) {
		if head, _, ok := strings.Cut(line, " started at "); ok {
			heads = append(heads, head)
		}
	}
	if got, want := strings.Join(heads,
		"\n"), "=== server:2: process 1\n=== server:2: process 2\n=== server:2: process 3"; got != want {
		t.Errorf("got the log headers\n%s\nwant\n%s", got, want)
	}
	if n := strings.Count(string(log), "disk is full"); n != 3 {
		t.Errorf("the log has the output of %d processes, want 3:\n%s", n, log)
	}
}

// TestPlaces checks that a place has one process, and that signals reach only that one.
func TestPlaces(t *testing.T) {
	g := newTestGroup(t, 0)
	ear := newListener(t)
	spec := childSpec("wait", wire.RoleServer, 0, ear.file)
	must(t, g.Start(spec))
	first := g.PID(wire.RoleServer, 0)
	ear.line()
	if err := g.Start(spec); !errors.Is(err, ErrTaken) {
		t.Errorf("starting a second process at a place: %v", err)
	}
	for _, err := range []error{
		g.Kill(wire.RoleServer, 1), g.Terminate(wire.RoleWorker, 0), g.Freeze(wire.RoleServer, -1),
		g.Thaw(wire.RoleCoordinator, 0), g.KillPID(0), g.KillPID(os.Getpid()),
	} {
		if !errors.Is(err, ErrNotRunning) {
			t.Errorf("signalling an empty place: %v", err)
		}
	}

	g.answers <- Now
	must(t, g.KillPID(first))
	if e := g.exit(); e.PID != first || e.Signal != "SIGKILL" {
		t.Errorf("exit %+v", e)
	}
	ear.line() // the successor
	if err := g.KillPID(first); !errors.Is(err, ErrNotRunning) {
		t.Errorf("a late KillPID reached the successor: %v", err)
	}
	must(t, g.Terminate(wire.RoleServer, 0))
	if e := g.exit(); e.PID == first || e.Signal != "SIGTERM" {
		t.Errorf("exit %+v", e)
	}

	// The child frees its place shortly after the callback returns.
	for deadline := time.Now().Add(patience); ; {
		err := g.Start(spec)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrTaken) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	ear.line()
}

// TestCannotStart checks the report for a missing program, on the first start and on a restart.
func TestCannotStart(t *testing.T) {
	g := newTestGroup(t, 0)
	program := filepath.Join(t.TempDir(), "program")
	ear := newListener(t)
	spec := childSpec("wait", wire.RoleCoordinator, 0, ear.file)
	spec.Command = []string{program}
	if err := g.Start(spec); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "start coordinator:0") {
		t.Errorf("starting a missing program: %v", err)
	}
	if err := g.Start(Spec{}); err == nil {
		t.Error("started an empty command")
	}
	noLog := spec
	noLog.LogPath = filepath.Join(program, "log")
	if err := g.Start(noLog); err == nil {
		t.Error("started without the log it was given")
	}

	must(t, os.Symlink(os.Args[0], program))
	must(t, g.Start(spec))
	ear.line()
	must(t, os.Remove(program))
	g.answers <- Now
	must(t, g.Kill(wire.RoleCoordinator, 0))
	g.exit()
	if e := g.exit(); e.PID != 0 || e.Code != -1 || e.Description != "could not be started" ||
		!strings.Contains(e.LastLine, program) {
		t.Errorf("exit %+v", e)
	}
}

// TestFullLog checks that a process starts even if its log cannot be written.
func TestFullLog(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("/dev/full does not exist")
	}
	g := newTestGroup(t, 0)
	spec := childSpec("end", wire.RoleServer, 0)
	spec.LogPath = "/dev/full"
	must(t, g.Start(spec))
	if e := g.exit(); e.Description != "ended with code 0" {
		t.Errorf("exit %+v", e)
	}
}

// TestStop checks that Stop lets processes end by themselves, even frozen ones.
func TestStop(t *testing.T) {
	g := newTestGroup(t, time.Hour)
	ears := []*listener{newListener(t), newListener(t)}
	for i, e := range ears {
		must(t, g.Start(childSpec("graceful", wire.RoleWorker, i, e.file)))
		e.expect("ready")
		g.answers <- Now // ignored after Stop
	}
	must(t, g.Freeze(wire.RoleWorker, 1))
	must(t, g.Stop(t.Context()))
	for _, e := range ears {
		e.expect("bye")
		e.silence(time.Second)
		if exit := <-g.exits; exit.Description != "ended with code 0" {
			t.Errorf("worker %d %s", exit.Index, exit.Description)
		}
	}
	if err := g.Start(childSpec("end", wire.RoleWorker, 0)); !errors.Is(err, perdure.ErrStopped) {
		t.Errorf("starting after Stop: %v", err)
	}
}

// TestStopKills checks that Stop kills processes that outlive their grace period.
func TestStopKills(t *testing.T) {
	g := newTestGroup(t, time.Millisecond)
	stubborn := newListener(t)
	must(t, g.Start(childSpec("stubborn", wire.RoleWorker, 0, stubborn.file)))
	stubborn.expect("ready")
	must(t, g.Stop(t.Context()))
	stubborn.silence(time.Second)
	if e := <-g.exits; e.Signal != "SIGKILL" {
		t.Errorf("exit %+v", e)
	}
}

// TestStopImmediately checks that Stop waits neither for the grace period when its context is done, nor for a pending
// restart.
func TestStopImmediately(t *testing.T) {
	g := newTestGroup(t, time.Hour)
	stubborn := newListener(t)
	must(t, g.Start(childSpec("stubborn", wire.RoleWorker, 0, stubborn.file)))
	stubborn.expect("ready")
	g.answers <- Restart(time.Hour)
	must(t, g.Start(childSpec("end", wire.RoleWorker, 1)))
	g.exit()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	must(t, g.Stop(ctx))
	if e := g.exit(); e.Signal != "SIGKILL" {
		t.Errorf("exit %+v", e)
	}
	must(t, g.Stop(ctx))
}

// TestDieWithParentRefuses checks the errors for invalid descriptors.
func TestDieWithParentRefuses(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must(t, err)
	defer file.Close()
	noPipe := func() string { // DieWithParent takes ownership: closing it twice could close another file
		fd, err := syscall.Dup(int(file.Fd()))
		must(t, err)
		return fmt.Sprint(fd)
	}
	here := fmt.Sprint(":", os.Getppid())
	for _, value := range []string{"x", "", "-1", "1000000", noPipe(), noPipe() + here, here} {
		t.Setenv(lifelineEnv, value)
		if err := DieWithParent(); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", value, err)
		}
	}
	t.Setenv(lifelineEnv, fmt.Sprint(noPipe(), ":", os.Getpid()))
	if err := DieWithParent(); err != nil { // the lifeline of an ancestor
		t.Error(err)
	}
	dead := exec.Command("true")
	must(t, dead.Run())
	t.Setenv(lifelineEnv, fmt.Sprint(noPipe(), ":", dead.Process.Pid))
	if err := DieWithParent(); err == nil { // the supervisor is gone: the lifeline counts
		t.Error("the lifeline of a dead supervisor was ignored")
	}
	if err := DieWithParent(); err != nil { // without the variable there is no supervisor
		t.Error(err)
	}
}

func TestLastLine(t *testing.T) {
	const (
		trace    = "Traceback (most recent call last):\n  File \"x.py\"\n"
		ranked   = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"x.py\"\n[rank1]: "
		torchrun = trace + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\n x FAILED\n"
	)
	for _, c := range []struct {
		text string
		from int64
		want string
	}{
		{"", 0, ""},
		{"a\nb", 0, "b"},
		{"a\n \r\n\n", 0, "a"},
		{"a\n====\n", 0, "a"},
		{"====\n", 0, "===="},
		{"a\nb\n", 4, ""},
		{"panic: old\nnew\n", 11, "new"},
		{"a\npanic: why\n\ngoroutine 1 [running]:\nmain.main()\n", 0, "panic: why"},
		{"fatal error: all goroutines are asleep\nx\n", 0, "fatal error: all goroutines are asleep"},
		{"first\n" + strings.Repeat("x", tailBytes) + "\nlast\n", 0, "last"},
		{strings.Repeat("é", maxLineBytes), 0, strings.Repeat("é", maxLineBytes/2)},
		{trace + usageError + "a\n" + torchrun, 0, usageError + "a"},
		{ranked + usageError + "a\nmore\n" + torchrun, 0, usageError + "a"},
		{trace + "ValueError: a\n" + trace + "subprocess.CalledProcessError: b\n", 0, "ValueError: a"},
		{trace + usageError + "a\n" + ranked + "RuntimeError: b\n" + torchrun, 0, usageError + "a"},
		{torchrun, 0, "x FAILED"},
		{trace + "ValueError: a\nb\n", 0, "b"},
		{torchrun + trace + "ValueError: a\n", 0, "ValueError: a"},
		{"x" + strings.Repeat("é", maxLineBytes), 0, "x" + strings.Repeat("é", maxLineBytes/2-1)},
	} {
		path := filepath.Join(t.TempDir(), "log")
		must(t, os.WriteFile(path, []byte(c.text), 0o666))
		if got, _ := lastLines(path, c.from); got != c.want {
			t.Errorf("%.40q from %d: %q, want %q", c.text, c.from, got, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "log")
	must(t, os.WriteFile(path, []byte(strings.Repeat("old\n", 2*tailLines)+"\ta\x1b[2Jb \r\n\nc\n"), 0o666))
	if _, tail := lastLines(path, 0); tail != strings.Repeat("old\n", tailLines-2)+"\ta[2Jb\nc" {
		t.Errorf("unexpected last lines %q", tail)
	}
	if got, _ := lastLines(filepath.Join(t.TempDir(), "none"), 0); got != "" {
		t.Errorf("last line of a missing log: %q", got)
	}
}
