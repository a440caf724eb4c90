//go:build unix

package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// testJob is a job with the test as its coordinator. Its events wait to be received.
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
		j.cancel(nil)
	})
	return j
}

// start starts a server in a mode, and returns its output.
func (j *testJob) start(index int, mode string) *bufio.Scanner {
	j.t.Helper()
	hear, say, err := os.Pipe()
	must(j.t, err)
	j.t.Cleanup(func() { hear.Close(); say.Close() })
	must(j.t, j.group.Start(Spec{
		Role: wire.RoleServer, Index: index, Command: []string{os.Args[0]}, Env: []string{childEnv + "=" + mode},
		Files: []*os.File{say},
	}))
	return bufio.NewScanner(hear)
}

func (j *testJob) event() wire.Event {
	j.t.Helper()
	select {
	case e := <-j.events:
		return e
	case <-time.After(patience):
		j.t.Fatal("no event was reported")
		return wire.Event{}
	}
}

// TestServerLeaves checks that a requested exit of a server is not a failure, whether the server ends gracefully or a
// signal ends it during startup. Its replacement starts in the same way.
func TestServerLeaves(t *testing.T) {
	for _, how := range []string{"graceful", "interrupted"} {
		t.Run(how, func(t *testing.T) { leaves(t, how) })
	}
}

func leaves(t *testing.T, how string) {
	j := newTestJob(t, JobConfig{})
	said := j.start(0, how)
	for range 2 {
		for said.Scan() && said.Text() != "ready" {
		}
		first := j.group.PID(wire.RoleServer, 0)
		must(t, j.inject(Fault{Kind: FaultTerm, Target: Target{Role: wire.RoleServer}}, memberID{wire.RoleServer, 0}))
		if !said.Scan() || said.Text() != "bye" || first == 0 {
			t.Fatalf("server process %d wrote %q", first, said.Text())
		}
	}
	if err := j.ctx.Err(); err != nil {
		t.Errorf("the job ended: %v", err)
	}
}

// TestNoReplace checks that with NoReplace, killed and ended servers are not replaced, the job reports it, and
// continues.
func TestNoReplace(t *testing.T) {
	j := newTestJob(t, JobConfig{NoReplace: true})
	for i, kind := range []FaultKind{FaultKill, FaultTerm} {
		said := j.start(i, "graceful")
		if !said.Scan() || said.Text() != "ready" {
			t.Fatal("the server did not start")
		}
		must(t, j.inject(Fault{Kind: kind, Target: Target{Role: wire.RoleServer}}, memberID{wire.RoleServer, i}))
		how := []string{"killed by SIGKILL", "ended with code 0"}[i]
		e := j.event()
		if want := fmt.Sprintf("server:%d %s, and is not replaced", i, how); e.Kind != "left" ||
			e.Target != fmt.Sprintf("server:%d", i) || e.Text != want {
			t.Errorf("got event %+v, want %q", e, want)
		}
		must(t, j.awaitEmpty(i))
	}
	if err := j.ctx.Err(); err != nil {
		t.Errorf("the job ended: %v", err)
	}
}

// awaitEmpty waits until a server's place is free.
func (j *testJob) awaitEmpty(index int) error {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		err := j.group.Start(Spec{Role: wire.RoleServer, Index: index, Command: []string{"/nonexistent"}})
		if !errors.Is(err, ErrTaken) {
			return nil
		}
	}
	return errors.New("the place is still taken")
}

// TestFailingStarts checks that of processes that end right after they start, the first is replaced immediately and
// later ones after growing pauses.
func TestFailingStarts(t *testing.T) {
	j := newTestJob(t, JobConfig{})
	started := time.Now()
	must(t, j.group.Start(Spec{
		Role: wire.RoleServer, Command: []string{os.Args[0]}, Env: []string{childEnv + "=end"},
		Files: []*os.File{os.Stdout},
	}))
	server := memberID{wire.RoleServer, 0}
	for _, n := j.group.pidAndStarts(server); n < 4; _, n = j.group.pidAndStarts(server) {
		if time.Since(started) > patience {
			t.Fatalf("only %d processes started", n)
		}
	}
	if took := time.Since(started); took < 3*minPause { // 0, 100 and 200 ms
		t.Errorf("four processes started within %v", took)
	}
}

// TestDone checks that no process is replaced once the coordinator reports that the job is done.
func TestDone(t *testing.T) {
	j := newTestJob(t, JobConfig{})
	said := j.start(0, "graceful")
	if !said.Scan() || said.Text() != "ready" {
		t.Fatal("the server did not start")
	}
	j.onProgress(wire.Progress{Complete: true, Done: true})
	must(t, j.group.Kill(wire.RoleServer, 0))
	must(t, j.awaitEmpty(0))
}

// TestFailed checks that a job ends with the coordinator's reason when the coordinator gives it up.
func TestFailed(t *testing.T) {
	j := newTestJob(t, JobConfig{})
	j.Job.event(wire.Event{Kind: "failed", Text: "no replica of shard 3 is left"})
	select {
	case <-j.ctx.Done():
	case <-time.After(patience):
		t.Fatal("the job continues")
	}
	if err := j.endReason; !errors.Is(err, ErrFailed) ||
		!strings.HasSuffix(err.Error(), ": no replica of shard 3 is left") {
		t.Errorf("the job ended with %v", err)
	}
}

// TestLogDies checks the events when the log's process dies, and when it listens again.
func TestLogDies(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	j := newTestJob(t, JobConfig{LogAddr: l.Addr().String()})
	must(t, j.group.Start(Spec{
		Role: RoleLog, Command: []string{os.Args[0]}, Env: []string{childEnv + "=graceful"},
		Files: []*os.File{os.Stdout},
	}))
	must(t, j.inject(Fault{Kind: FaultKill, Target: Target{Role: RoleLog}}, memberID{RoleLog, 0}))
	for _, want := range []wire.Event{
		{Kind: "detected", Target: "log", Text: "log is dead: killed by SIGKILL; updates wait for its successor"},
		{Kind: "serving", Target: "log", Text: "log serves again"},
	} {
		got := j.event()
		if got.UnixNs = 0; got != want {
			t.Errorf("got event %+v, want %+v", got, want)
		}
	}
}

// TestCoordinatorDies checks the events when the coordinator's process dies, and when its next process connects. Later
// connections of the same process are not events.
func TestCoordinatorDies(t *testing.T) {
	j := newTestJob(t, JobConfig{})
	must(t, j.group.Start(Spec{
		Role: wire.RoleCoordinator, Command: []string{os.Args[0]}, Env: []string{childEnv + "=graceful"},
		Files: []*os.File{os.Stdout},
	}))
	first := &wires{}
	j.up(first, nil)
	must(t, j.inject(Fault{Kind: FaultKill, Target: Target{Role: wire.RoleCoordinator}},
		memberID{wire.RoleCoordinator, 0}))
	for _, want := range []wire.Event{
		{Kind: "detected", Target: "coordinator", Text: "coordinator is dead: killed by SIGKILL; training continues"},
		{Kind: "serving", Target: "coordinator", Text: "coordinator serves again"},
		{Kind: "last"},
	} {
		got := j.event()
		if got.Kind == "detected" {
			j.down(first, nil)
			j.up(&wires{}, nil)
			j.up(&wires{}, nil)
			j.Emit("last", "", time.Now(), "")
		}
		if got.UnixNs = 0; got != want {
			t.Errorf("got event %+v, want %+v", got, want)
		}
	}
}

// TestLogSilent checks that a log process that accepts connections but sends nothing is killed and reported, and that
// its successor, which sends a greeting, is not. The coordinator receives reports on both.
func TestLogSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	j := newTestJob(t, JobConfig{LogAddr: l.Addr().String()})
	j.probeInterval = 50 * time.Millisecond
	must(t, j.group.Start(Spec{
		Role: RoleLog, Command: []string{os.Args[0]}, Env: []string{childEnv + "=wait"},
		Files: []*os.File{os.Stdout},
	}))
	first := j.group.PID(RoleLog, 0)
	sent := ordersConn{orders: make(chan wire.Order, 64)}
	j.up(sent, nil)
	watched := make(chan struct{})
	go func() { defer close(watched); j.probeLoop(j.probeTargets()[0]) }()
	for _, want := range []wire.Event{
		{Kind: "suspected", Target: "log", Text: "log has been silent for too long; it is killed and replaced"},
		{Kind: "detected", Target: "log", Text: "log is dead: killed by SIGKILL; updates wait for its successor"},
		{Kind: "serving", Target: "log", Text: "log serves again"},
	} {
		got := j.event()
		if got.Kind == "suspected" {
			go greetAll(l)
		}
		if got.UnixNs = 0; got != want {
			t.Errorf("got event %+v, want %+v", got, want)
		}
	}
	started, silent, second := sent.await(t, "waiting 1"), sent.await(t, "silent 1"), sent.await(t, "alive 2")
	if started != first || silent != first || second == first || second == 0 {
		t.Errorf("process %d is silent; the coordinator received reports of %d, %d and %d", first, started, silent,
			second)
	}
	j.cancel(nil)
	<-watched
}

// TestCoordinatorSilent checks the same for a stopped coordinator whose socket is still open. Its successor, which
// answers any request, is not killed.
func TestCoordinatorSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	j := newTestJob(t, JobConfig{Control: l.Addr().String()})
	j.probeInterval = 50 * time.Millisecond
	must(t, j.group.Start(Spec{
		Role: wire.RoleCoordinator, Command: []string{os.Args[0]},
		Env: []string{childEnv + "=wait"}, Files: []*os.File{os.Stdout},
	}))
	first := j.group.PID(wire.RoleCoordinator, 0)
	w, states := j.probeTargets()[0], make(chan string, 64)
	w.onResult = func(state string) { states <- state }
	watched := make(chan struct{})
	go func() { defer close(watched); j.probeLoop(w) }()
	want := wire.Event{
		Kind: "suspected", Target: "coordinator",
		Text: "coordinator has been silent for too long; it is killed and replaced",
	}
	got := j.event()
	if got.UnixNs = 0; got != want {
		t.Errorf("got event %+v, want %+v", got, want)
	}
	go func() { _ = http.Serve(l, http.NotFoundHandler()) }() // returns when l is closed
	second := func() bool { pid := j.group.PID(wire.RoleCoordinator, 0); return pid != first && pid != 0 }
	var calls []string
	for len(calls) == 0 || calls[len(calls)-1] != stateAlive || !second() {
		select {
		case state := <-states:
			calls = append(calls, state)
		case <-time.After(patience):
			t.Fatalf("the probes returned %q", calls)
		}
	}
	for _, state := range calls[:silentRounds] {
		if state != stateSilent {
			t.Errorf("the probes returned %q", calls)
		}
	}
	if f := j.Timeline(); len(f) != 1 || f[0].Target != "coordinator" || f[0].Detected == nil {
		t.Errorf("failures: %+v", f)
	}
	j.cancel(nil)
	<-watched
}

// ordersConn is a connection that records orders.
type ordersConn struct {
	transport.Conn
	orders chan wire.Order
}

func (c ordersConn) Send(frames ...wire.Frame) error {
	for _, f := range frames {
		var o wire.Order
		if f.Kind == wire.KindOrder && wire.ParseControl(&f, &o) == nil {
			c.orders <- o
		}
	}
	return nil
}

// await waits until the log is reported in a state, and returns its process ID.
func (c ordersConn) await(t *testing.T, how string) (pid int) {
	t.Helper()
	for {
		select {
		case o := <-c.orders:
			if o.Kind == "log" && o.Spec == how {
				return o.PID
			}
		case <-time.After(patience):
			t.Fatalf("the log was not reported %s", how)
		}
	}
}

// greetAll sends a greeting to every client, until the listener is closed.
func greetAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write([]byte("INFO\r\n")) // the client may be gone
		_ = c.Close()
	}
}

// TestCall checks that a process counts as silent if it accepts or does not refuse connections but sends nothing, and
// as waiting if it does not listen.
func TestCall(t *testing.T) {
	for role, answer := range map[wire.Role]func(net.Listener){
		RoleLog:              greetAll,
		wire.RoleCoordinator: func(l net.Listener) { _ = http.Serve(l, http.NotFoundHandler()) },
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		cfg := JobConfig{Control: l.Addr().String()}
		if role == RoleLog {
			cfg = JobConfig{LogAddr: l.Addr().String()}
		}
		j := newTestJob(t, cfg)
		w := j.probeTargets()[0]
		j.probeInterval = time.Millisecond
		if got := j.probe(w); got != stateSilent || w.role != role {
			t.Errorf("probing a silent %s: %s is %s", role, w.role, got)
		}
		j.probeInterval = patience
		go answer(l)
		if got := j.probe(w); got != stateAlive {
			t.Errorf("probing a %s that answers: %s", role, got)
		}
		must(t, l.Close())
		if got := j.probe(w); got != stateWaiting {
			t.Errorf("probing a %s that does not listen: %s", role, got)
		}
	}
}

// TestSilence checks that only consecutive silent rounds of the same process count, and that it is killed once.
func TestSilence(t *testing.T) {
	type round struct {
		pid    int
		silent bool
	}
	silent := func(pid, times int) []round { return slices.Repeat([]round{{pid, true}}, times) }
	for name, c := range map[string]struct {
		rounds []round
		kills  []int // rounds in which the process is killed
	}{
		"silent": {silent(1, 3*silentRounds), []int{silentRounds - 1}},
		"heard in time": {
			slices.Concat(silent(1, silentRounds-1), []round{{1, false}}, silent(1, silentRounds-1)),
			nil,
		},
		"replaced before": {slices.Concat(silent(1, silentRounds-1), silent(2, silentRounds-1)), nil},
		"both silent": {
			slices.Concat(silent(1, silentRounds), silent(2, silentRounds)),
			[]int{silentRounds - 1, 2*silentRounds - 1},
		},
		"nobody there": {slices.Concat(silent(0, 2*silentRounds), silent(1, silentRounds-1)), nil},
	} {
		var w silenceCounter
		var kills []int
		for i, r := range c.rounds {
			if w.note(r.pid, r.silent) {
				kills = append(kills, i)
			}
		}
		if !slices.Equal(kills, c.kills) {
			t.Errorf("%s: killed in rounds %d, want %d", name, kills, c.kills)
		}
	}
}
