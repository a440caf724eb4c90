package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/rundir"
)

// TestSpecs checks that each process gets an address of its own and the address of the job.
func TestSpecs(t *testing.T) {
	port, next := twoPorts(t)
	h := &Host{
		Join: "127.0.0.1:7,[::1]:8", Servers: 2, Workers: 2, Dir: "/d", Listen: "127.0.0.1:" + port,
		Advertise: "a.example.org:7100", Program: "/bin/perdure", secret: "/s", name: "h",
		Watch: role.Observability{Metrics: ":9000"}, Command: []string{"./train", "-x"},
	}
	specs, err := h.specs()
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{}
	for _, s := range specs {
		lines = append(lines, strings.Join(append(slices.Clone(s.Env), s.Command...), " "))
	}
	const job = "PERDURE_HOST=h PERDURE_COORDINATOR=127.0.0.1:7,[::1]:8 PERDURE_SECRET_FILE=/s PERDURE_RUN=/d " +
		"LOCAL_RANK=%d LOCAL_WORLD_SIZE=2 PERDURE_METRICS=127.0.0.1:"
	const server = "PERDURE_HOST=h /bin/perdure server --join 127.0.0.1:7,[::1]:8 --secret-file /s --beside 2 --listen "
	want := []string{
		server + "127.0.0.1:" + port + " --advertise a.example.org:7100 --metrics 127.0.0.1:9001",
		server + "127.0.0.1:" + next + " --advertise a.example.org:7101 --metrics 127.0.0.1:9002",
		fmt.Sprintf(job, 0) + "9003 ./train -x", fmt.Sprintf(job, 1) + "9004 ./train -x",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("processes:\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	h = &Host{
		Join: "127.0.0.1:7", Servers: 1, Workers: 1, Program: "p", secret: "/s", Zone: "a", Output: os.Stdout,
	}
	specs, err = h.specs()
	if err != nil {
		t.Fatal(err)
	}
	const joins = " --join 127.0.0.1:7 --secret-file /s --beside 1 "
	if c := strings.Join(specs[0].Command, " "); c != "p server"+joins+"--listen 127.0.0.1:0 --zone a" {
		t.Errorf("server without addresses: %s", c)
	}
	if specs[0].Output != os.Stdout || specs[0].LogPath != "" {
		t.Errorf("the log of a server goes to %s, not to the host's output", specs[0].LogPath)
	}
	if c := strings.Join(specs[1].Command, " "); c != "p worker"+joins+"--waits" {
		t.Errorf("worker without a command: %s", c)
	}
}

// TestTargets checks the three labels that the dashboard and the alerts use, that the processes of all hosts have
// unique IDs, and that other machines can dial the addresses.
func TestTargets(t *testing.T) {
	h := &Host{
		Servers: 2, Workers: 1, Dir: t.TempDir(), Called: "a", Advertise: "a.example.org:7100",
		Watch: role.Observability{Metrics: "0.0.0.0:9464"}, Log: slog.New(slog.DiscardHandler),
	}
	read := func() (all []metrics.Target) {
		b, err := os.ReadFile(filepath.Join(h.Dir, rundir.TargetsFile))
		if err == nil {
			err = json.Unmarshal(b, &all)
		}
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if err := h.showTargets("j1"); err != nil {
		t.Fatal(err)
	}
	want := []metrics.Target{
		metrics.NewTarget("j1", "host", "a", "a.example.org:9464"),
		metrics.NewTarget("j1", "server", "a/server-0", "a.example.org:9465"),
		metrics.NewTarget("j1", "server", "a/server-1", "a.example.org:9466"),
		metrics.NewTarget("j1", "worker", "a/worker-0", "a.example.org:9467"),
	}
	if got := read(); !reflect.DeepEqual(got, want) {
		t.Errorf("targets %+v; want %+v", got, want)
	}
	h.hideTargets()
	if got := read(); len(got) != 0 {
		t.Errorf("at the end there are %+v", got)
	}
}

// twoPorts returns two free consecutive ports.
func twoPorts(t *testing.T) (first, second string) {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		second, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+1))
		if err == nil {
			err = second.Close()
		}
		if closed := l.Close(); err == nil && closed == nil {
			return fmt.Sprint(port), fmt.Sprint(port + 1)
		}
	}
	t.Fatal("found no two free consecutive ports")
	return "", ""
}

// TestShifted checks that servers with fixed ports get consecutive ones, and that no port exceeds the maximum.
func TestShifted(t *testing.T) {
	for _, c := range []struct {
		addr string
		by   int
		want string // "": error
	}{
		{"a:7000", 2, "a:7002"},
		{"a:0", 2, "a:0"},
		{"a", 2, "a:0"},
		{"[::1]:7", 1, "[::1]:8"},
		{"::1", 0, "[::1]:0"},
		{"a:65535", 0, "a:65535"},
		{"a:65535", 1, ""},
		{":7000", 0, ""},
		{"a:b", 0, ""},
		{"", 0, ""},
	} {
		got, err := offsetAddress("--listen", c.addr, c.by)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("address %d after %q: %q, %v; want %q", c.by, c.addr, got, err, c.want)
		}
	}
}

// TestExits checks that processes that end are replaced, with growing pauses. A perdure process that reports an invalid
// request ends the host, and a user's program does not. Once the job is over, no process is replaced.
func TestExits(t *testing.T) {
	h := &Host{Servers: 1, Workers: 1, Command: []string{"x"}, Log: quiet()}
	var sent []wire.Exited
	k, err := newKeeper(h, func(e wire.Exited) { sent = append(sent, e) })
	if err != nil {
		t.Fatal(err)
	}
	defer k.stop()
	server := supervisor.Exit{Role: wire.RoleServer, Code: -1, Signal: "SIGKILL", Description: "killed by SIGKILL"}
	program := supervisor.Exit{Role: wire.RoleWorker, Code: usageCode, Description: "ended with code 2", LastLine: "no"}
	if first, second := k.onExit(server), k.onExit(server); first != supervisor.Now || second <= supervisor.Now {
		t.Errorf("pauses %d and %d", first, second)
	}
	if k.onExit(program) == supervisor.Never {
		t.Error("a user's program is not replaced")
	}
	if program.Code = 0; k.onExit(program) < supervisor.Restart(minRestartPause) {
		t.Error("a process that ended gracefully is replaced before it is known whether the job is over")
	}
	server.Code, server.Signal, server.LastLine = usageCode, "", "perdure: wrong secret"
	if k.onExit(server) != supervisor.Never || (<-k.fatal).Error() != "server-0: wrong secret" {
		t.Error("a server with an invalid request is replaced")
	}
	if _, why := k.state(); why != "server-0: wrong secret" {
		t.Errorf("the host is not ready: %s", why)
	}
	server.Code = supervisor.ExitDrained
	if k.onExit(server) != supervisor.Never || k.drained != 1 {
		t.Error("a drained server is replaced")
	}
	select {
	case <-k.idle:
		t.Error("a host with a worker is idle")
	default:
	}
	k.stopReplacing()
	program.PID = 7
	if k.onExit(program) != supervisor.Never {
		t.Error("a process is replaced after the job is over")
	}
	want := wire.Exited{Role: wire.RoleWorker, PID: 7, How: program.Description, Vacated: true}
	if len(sent) != 1 || sent[0] != want {
		t.Errorf("reports to the coordinator: %+v, want one of the process that ran and left", sent)
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestOver checks that a host returns an error if its job has failed, and none if the job is done or was stopped.
func TestOver(t *testing.T) {
	h := &Host{Log: slog.New(slog.DiscardHandler)}
	for _, why := range []error{perdure.ErrDone, perdure.ErrStopped, perdure.ErrFailed} {
		err := h.logResult(fmt.Errorf("%w: why", why))
		if failed := why == perdure.ErrFailed; (err != nil) != failed || failed && !errors.Is(err, why) {
			t.Errorf("%v: %v", why, err)
		}
	}
}
