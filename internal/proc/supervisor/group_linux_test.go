package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

func init() {
	childModes["busy"] = func(say *os.File) {
		for cpu := int64(0); cpu < 60e6; {
			var used syscall.Rusage
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
				panic(err)
			}
			cpu = used.Utime.Nano()
		}
		fmt.Fprintln(say, "ready")
		forever()
	}
	// Each supervises two children, one of them frozen if only the kernel could end it.
	childModes["supervisor"] = func(say *os.File) { supervise(say, "wait", true) }
	childModes["supervisor without the kernel"] = func(say *os.File) {
		withDeathSignal = false
		supervise(say, "lifeline", false)
	}
}

func supervise(say *os.File, mode string, freeze bool) {
	g, err := NewGroup(Options{})
	for i := range 2 {
		if err == nil {
			err = g.Start(childSpec(mode, wire.RoleWorker, i, say))
		}
	}
	if err == nil && freeze {
		err = g.Freeze(wire.RoleWorker, 1)
	}
	fmt.Fprintf(say, "supervising %v\n", err)
	forever()
}

// TestDieWithSupervisor checks that the children of a killed supervisor end within a second.
func TestDieWithSupervisor(t *testing.T) {
	for mode, ready := range map[string]int{"supervisor": 1, "supervisor without the kernel": 2} {
		ear := newListener(t)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+mode)
		cmd.ExtraFiles = []*os.File{ear.file}
		must(t, cmd.Start())
		for supervising := false; !supervising || ready > 0; {
			line := ear.line()
			switch {
			case line == "supervising <nil>":
				supervising = true
			case strings.HasPrefix(line, "ready"):
				ready--
			default:
				t.Fatalf("%s wrote %q", mode, line)
			}
		}
		must(t, cmd.Process.Kill())
		if err := cmd.Wait(); err == nil {
			t.Error("the supervisor was not killed")
		}
		if mode == "supervisor" { // the frozen child may have written before
			must(t, ear.read.SetReadDeadline(time.Now().Add(time.Second)))
			if b, err := ear.buf.Peek(1); err == nil && b[0] == 'r' {
				ear.line()
			}
		}
		ear.silence(time.Second)
	}
}

// TestThreadMayEnd checks that a process survives the end of the thread of the goroutine that started it.
func TestThreadMayEnd(t *testing.T) {
	g := newTestGroup(t, 0)
	ear := newListener(t)
	hear, talk, err := os.Pipe()
	must(t, err)
	defer hear.Close()
	defer talk.Close()
	thread := make(chan int)
	var start func()
	start = func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if syscall.Gettid() == os.Getpid() {
			// The main thread never ends. While this goroutine holds it, another goroutine gets another thread.
			done := make(chan struct{})
			go func() {
				defer close(done)
				start()
			}()
			<-done
			return
		}
		if err := g.Start(childSpec("echo", wire.RoleWorker, 0, ear.file, hear)); err != nil {
			t.Error(err)
		}
		thread <- syscall.Gettid()
	}
	go start()
	tid := <-thread
	ear.expect("ready")
	await(t, "the thread's end", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
		return err != nil
	})
	_, err = talk.WriteString("still there?\n")
	must(t, err)
	ear.expect("still there?")
}

// await polls, because the kernel offers no notification.
func await(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !happened(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("timeout waiting for %s", what)
		}
	}
}

// TestFreeze checks stopping and continuing a process.
func TestFreeze(t *testing.T) {
	g := newTestGroup(t, 0)
	ear := newListener(t)
	hear, talk, err := os.Pipe()
	must(t, err)
	defer hear.Close()
	defer talk.Close()
	must(t, g.Start(childSpec("echo", wire.RoleServer, 0, ear.file, hear)))
	ear.expect("ready")
	must(t, g.Freeze(wire.RoleServer, 0))
	await(t, "the frozen state", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", g.PID(wire.RoleServer, 0)))
		must(t, err)
		return bytes.Contains(stat, []byte(") T "))
	})
	_, err = talk.WriteString("hello\n")
	must(t, err)
	must(t, g.Thaw(wire.RoleServer, 0))
	ear.expect("hello")
	must(t, g.Freeze(wire.RoleServer, 0))
	must(t, g.Kill(wire.RoleServer, 0)) // also while frozen
	if e := g.exit(); e.Signal != "SIGKILL" {
		t.Errorf("exit %+v", e)
	}
}

// TestUsage checks the usage of a role's processes, including the CPU time of dead ones.
func TestUsage(t *testing.T) {
	g := newTestGroup(t, 0)
	ear := newListener(t)
	for i := range 2 {
		must(t, g.Start(childSpec("busy", wire.RoleServer, i, ear.file)))
		ear.expect("ready")
	}
	must(t, g.Start(childSpec("stubborn", wire.RoleWorker, 0, ear.file)))
	ear.expect("ready")
	both := g.Usage()
	if u := both[wire.RoleServer]; u.CPU < 100*time.Millisecond || u.CPU > time.Minute || u.RSS < 2<<20 ||
		u.Written < 2 {
		t.Errorf("usage of two busy servers: %+v", u)
	}
	if u := both[wire.RoleWorker]; u.CPU >= both[wire.RoleServer].CPU || u.RSS < 1<<20 {
		t.Errorf("usage of an idle worker: %+v", u)
	}
	must(t, g.Kill(wire.RoleServer, 1))
	g.exit()
	one := g.Usage()[wire.RoleServer]
	// The kernel's sums and its samples of 10 ms differ by a tick or two.
	if was := both[wire.RoleServer]; one.CPU < was.CPU-2*clockTick || one.RSS >= was.RSS || one.Written < was.Written {
		t.Errorf("usage of the servers after a death: %+v, before: %+v", one, both[wire.RoleServer])
	}
}

func TestParseIO(t *testing.T) {
	const text = "rchar: 1\nwchar: 323934931\nsyscr: 2\nsyscw: 3\nread_bytes: 4\nwrite_bytes: " +
		"8192\ncancelled_write_bytes: 5\n"
	if written, stored := parseIO([]byte(text)); written != 323934931 || stored != 8192 {
		t.Errorf("got %d written and %d stored", written, stored)
	}
	if written, stored := parseIO([]byte("wchar\nwrite_bytes: x\n")); written != 0 || stored != 0 {
		t.Errorf("without values: got %d written, %d stored", written, stored)
	}
}

func TestParseStat(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 100 999 300 18446744073709551615 1"
	want := Usage{CPU: 2 * time.Second, RSS: 300 * int64(os.Getpagesize())}
	for stat, ok := range map[string]bool{
		"42 (perdure)" + rest:   true,
		"42 (a) b (c d)" + rest: true,
		"":                      false,
		"42 perdure S 1":        false,
		"42 (perdure) S 1 2 3":  false,
		"42 (x)" + " x" + strings.Repeat(" y", 30): false,
	} {
		got, gotOK := parseStat([]byte(stat))
		if gotOK != ok || ok && got != want {
			t.Errorf("%q: %+v, %v; want %+v, %v", stat, got, gotOK, want, ok)
		}
	}
}
