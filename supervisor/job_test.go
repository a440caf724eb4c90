//go:build unix

package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/wire"
)

// testJob is a job whose coordinator is the test, and whose events wait.
type testJob struct {
	*Job
	t      *testing.T
	events chan wire.Event
}

func newTestJob(t *testing.T, cfg JobConfig) *testJob {
	t.Helper()
	j := &testJob{t: t, events: make(chan wire.Event, 16)}
	cfg.Log = slog.New(slog.DiscardHandler)
	cfg.Watch.Event = func(e wire.Event) { j.events <- e }
	var err error
	j.Job, err = NewJob(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() {
		must(t, j.group.Stop(t.Context()))
		j.fatal(nil)
	})
	return j
}

// start starts a server that plays a mode, and returns what it says.
func (j *testJob) start(index int, mode string) *bufio.Scanner {
	j.t.Helper()
	hear, say, err := os.Pipe()
	must(j.t, err)
	j.t.Cleanup(func() { hear.Close(); say.Close() })
	must(j.t, j.group.Start(Spec{
		Role: wire.RoleServer, Index: index, Command: []string{os.Args[0]}, Env: []string{childEnv + "=" + mode}, Files: []*os.File{say},
	}))
	return bufio.NewScanner(hear)
}

func (j *testJob) event() wire.Event {
	j.t.Helper()
	select {
	case e := <-j.events:
		return e
	case <-time.After(patience):
		j.t.Fatal("no event comes")
		return wire.Event{}
	}
}

// TestServerLeaves: a server that was told to end and ends in order is no
// failure; its next process is started, and begins its life as the first did.
func TestServerLeaves(t *testing.T) {
	j := newTestJob(t, JobConfig{})
	said := j.start(0, "graceful")
	for range 2 {
		for said.Scan() && said.Text() != "ready" {
		}
		first := j.group.PID(wire.RoleServer, 0)
		must(t, j.inject(Fault{Kind: FaultTerm, Target: Target{Role: wire.RoleServer}}, place{wire.RoleServer, 0}))
		if !said.Scan() || said.Text() != "bye" || first == 0 {
			t.Fatalf("the server, process %d, said %q", first, said.Text())
		}
	}
	if err := j.ctx.Err(); err != nil {
		t.Errorf("the job has ended: %v", err)
	}
}

// TestNoReplace: where servers are not replaced, one that is killed and one that
// leaves are gone for good, and the job says so; it goes on.
func TestNoReplace(t *testing.T) {
	j := newTestJob(t, JobConfig{NoReplace: true})
	for i, kind := range []FaultKind{FaultKill, FaultTerm} {
		said := j.start(i, "graceful")
		if !said.Scan() || said.Text() != "ready" {
			t.Fatal("the server does not begin")
		}
		must(t, j.inject(Fault{Kind: kind, Target: Target{Role: wire.RoleServer}}, place{wire.RoleServer, i}))
		how := []string{"killed by SIGKILL", "ended with code 0"}[i]
		e := j.event()
		if want := fmt.Sprintf("server:%d %s, and is not replaced", i, how); e.Kind != "left" || e.Target != fmt.Sprintf("server:%d", i) || e.Text != want {
			t.Errorf("told %+v; want %q", e, want)
		}
		must(t, j.awaitEmpty(i))
	}
	if err := j.ctx.Err(); err != nil {
		t.Errorf("the job has ended: %v", err)
	}
}

// awaitEmpty waits until a server's place can be taken anew: nobody is to be
// started there.
func (j *testJob) awaitEmpty(index int) error {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		err := j.group.Start(Spec{Role: wire.RoleServer, Index: index, Command: []string{"/nonexistent"}})
		if !errors.Is(err, ErrTaken) {
			return nil
		}
	}
	return errors.New("the place stays taken")
}

// TestFailed: a job that its coordinator gives up ends with the coordinator's
// words.
func TestFailed(t *testing.T) {
	j := newTestJob(t, JobConfig{})
	j.Job.event(wire.Event{Kind: "failed", Text: "no replica of shard 3 is left"})
	select {
	case <-j.ctx.Done():
	case <-time.After(patience):
		t.Fatal("the job goes on")
	}
	if err := j.why; !errors.Is(err, ErrFailed) || !strings.HasSuffix(err.Error(), ": no replica of shard 3 is left") {
		t.Errorf("the job ends with %v", err)
	}
}

// TestLogDies: people are told when the log's process dies, and when it listens again.
func TestLogDies(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	j := newTestJob(t, JobConfig{LogAddr: l.Addr().String()})
	must(t, j.group.Start(Spec{Role: RoleLog, Command: []string{os.Args[0]}, Env: []string{childEnv + "=graceful"}, Files: []*os.File{os.Stdout}}))
	must(t, j.inject(Fault{Kind: FaultKill, Target: Target{Role: RoleLog}}, place{RoleLog, 0}))
	for _, want := range []wire.Event{
		{Kind: "detected", Target: "log", Text: "log is dead: killed by SIGKILL; updates wait for its successor"},
		{Kind: "serving", Target: "log", Text: "log serves again"},
	} {
		got := j.event()
		if got.UnixNs = 0; got != want {
			t.Errorf("told %+v; want %+v", got, want)
		}
	}
}
