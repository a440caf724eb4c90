//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/rundir"
)

// hosted is a job that spans several hosts, all of which run on this machine.
type hosted struct {
	*testing.T
	dir, file, addr string
	join            string // an address that nothing listens on, followed by the coordinators' addresses
	leader          *process
}

// newHosted writes the job file (the small job plus the keys in more) and reserves an address for its coordinator.
func newHosted(t *testing.T, host string, more map[string]string) *hosted {
	t.Helper()
	h := &hosted{T: t, dir: newFolder(t), file: filepath.Join(t.TempDir(), "job.yaml")}
	keys := map[string]string{
		"consistency": "bsp", "recovery": "resend:10", "clocks": "60", "batch": "8", "workers": "3", "servers": "2",
		"shards": "6", "seed": "7", "eval-every": "'0'", "data": pictures,
	}
	text := ""
	for key, value := range more {
		delete(keys, key)
		text += key + ": " + value + "\n"
	}
	if more["workload"] == "own" {
		for _, key := range []string{"batch", "eval-every", "data"} {
			delete(keys, key)
		}
	}
	for key, value := range keys {
		text += key + ": " + value + "\n"
	}
	must(t, os.WriteFile(h.file, []byte(text), 0o666))
	addr, hold, err := transport.Reserve(host)
	if err != nil {
		t.Skipf("%s is not available on this machine: %v", host, err)
	}
	t.Cleanup(func() { _ = hold.Close() })
	h.addr, h.join = addr, "127.0.0.1:1,"+addr
	return h
}

// moves reserves another address for the coordinator and adds it to those that hosts try. After the returned function
// runs, the coordinator listens there from its next start.
func (h *hosted) moves() (move func()) {
	h.Helper()
	addr, hold, err := transport.Reserve("127.0.0.1")
	must(h, err)
	h.Cleanup(func() { _ = hold.Close() })
	h.join += "," + addr
	return func() { h.addr = addr }
}

// args returns a command line for the coordinator.
func (h *hosted) args(more ...string) []string {
	return append([]string{"coordinator", "--job", h.file, "--dir", h.dir, "--listen", h.addr}, more...)
}

// lead starts or restarts the coordinator.
func (h *hosted) lead(more ...string) {
	h.Helper()
	h.leader = start(h, h.args(more...)...)
	h.leader.Says("the coordinator of job ")
}

// host starts a host in its own process group, so that kill ends all of its processes.
func (h *hosted) host(dir string, args ...string) *process {
	h.Helper()
	p := command(h, append([]string{
		"host", "--join", h.join, "--secret-file", secretOf(h.dir), "--dir", dir,
	}, args...)...)
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.Start()
	h.Cleanup(func() { kill(p) })
	return p
}

// kill kills a host and every process that it started, like the loss of its machine.
func kill(p *process) {
	_ = syscall.Kill(-p.Process.Pid, syscall.SIGKILL) // it may have ended already
	<-p.ended
}

// status queries the job's status. It is faster than a command, which matters while the job trains.
func (h *hosted) status() (s control.Status, err error) {
	api, _, err := locate.Control("", h.dir, "", "")
	if err == nil {
		s, _, err = locate.QueryState(h.Context(), api)
	}
	return s, err
}

// clock waits until the job reaches the given clock.
func (h *hosted) clock(least int) {
	h.Helper()
	var s control.Status
	var err error
	await(h, func() bool {
		select {
		case <-h.leader.ended:
			h.Fatalf("the coordinator has ended: %s", h.all())
		default:
		}
		s, err = h.status()
		return err == nil && s.State == control.StateTraining && int(s.Clock) >= least
	}, func() string {
		return fmt.Sprintf("the job does not reach clock %d: %+v, %v, %s", least, s, err, h.all())
	})
}

// pid returns the ID of the process that has the given role and index.
func (h *hosted) pid(place string) int {
	h.Helper()
	return h.find(func(p control.Process) bool { return fmt.Sprintf("%s:%d", p.Role, p.Index) == place })
}

// find returns the ID of a live process that fits.
func (h *hosted) find(fits func(control.Process) bool) (pid int) {
	h.Helper()
	await(h, func() bool {
		s, err := h.status()
		i := slices.IndexFunc(s.Processes, func(p control.Process) bool {
			return p.State == control.ProcessLive && fits(p)
		})
		if err != nil || i < 0 {
			return false
		}
		pid = s.Processes[i].PID
		return true
	}, func() string { return "such a process does not exist: " + h.all() })
	return pid
}

// all returns the coordinator's output, for failure messages.
func (h *hosted) all() string {
	if h.leader == nil {
		return ""
	}
	return h.leader.stdout.String() + h.leader.stderr.String()
}

// done waits until the job ends successfully and returns its summary.
func (h *hosted) done() rundir.Summary {
	h.Helper()
	if code, out, errs := h.leader.Wait(); code != 0 {
		h.Fatalf("the coordinator ended with code %d: %s%s", code, out, errs)
	}
	return summary(h, h.dir)
}

// ends waits until a host exits successfully.
func (h *hosted) ends(name string, p *process) {
	h.Helper()
	if code, out, errs := p.Wait(); code != 0 {
		h.Errorf("host %s ended with code %d: %s%s", name, code, out, errs)
	}
}

// TestHosts: a job on two hosts survives the death of a server, of a worker, of a whole host, and of its coordinator,
// which restarts at another address. It ends with the model of an undisturbed job on one machine, and no update is
// lost. A host that joins after the end learns from a restarted coordinator that the job is done.
func TestHosts(t *testing.T) {
	t.Parallel()
	const clocks = "150"
	h := newHosted(t, "127.0.0.1", map[string]string{"clocks": clocks, "compute-ms": "15"})
	h.lead()
	move := h.moves()
	one, two := newFolder(t), newFolder(t)
	a := h.host(one, "--servers", "1", "--workers", "2")
	b := h.host(two, "--servers", "1", "--workers", "1", "--name", "b")
	h.clock(10)
	must(t, syscall.Kill(h.pid("server:0"), syscall.SIGKILL))
	h.clock(25)
	must(t, syscall.Kill(h.pid("worker:1"), syscall.SIGKILL))
	h.clock(45)
	// The job waits for this worker, so it does not end while the coordinator restarts.
	on := func(host string, role wire.Role) int {
		return h.find(func(p control.Process) bool { return p.Role == string(role) && p.Host == host })
	}
	must(t, syscall.Kill(on("b", wire.RoleWorker), syscall.SIGSTOP))
	h.leader.Kill()
	move()
	h.lead()
	on("b", wire.RoleServer) // it has connected to this coordinator
	kill(b)
	b = h.host(two, "--servers", "1", "--workers", "1")
	s := h.done()
	want := undisturbedAt(t, clocks)
	if *s.ModelSHA256 != want || *s.UpdatesLost != 0 {
		t.Errorf("model %s, %d updates lost; want %s\n%s", *s.ModelSHA256, *s.UpdatesLost, want, h.all())
	}
	h.ends("a", a)
	h.ends("b", b)
	if events := eventsOf(t, h.dir); !strings.Contains(events, "is dead: killed by SIGKILL") { // reported by its host
		t.Errorf("no host reported a death:\n%s", events)
	}
	for _, dir := range []string{one, two} {
		checkRaces(t, dir)
	}
	late := h.host(newFolder(t), "--servers", "1")
	late.Says("no coordinator answers")
	h.lead() // its only task is to report that the job is done
	if again := h.done(); *again.ModelSHA256 != want {
		t.Errorf("model %s before the restart, %s after it", want, *again.ModelSHA256)
	}
	h.ends("late", late)
}

// TestHostsAllDie: all machines of a job lose power at the same time. After everything is restarted, the job continues
// and ends with the same model.
func TestHostsAllDie(t *testing.T) {
	t.Parallel()
	const clocks = "80"
	for _, recovery := range brief(1, []string{"chain:2,checkpoint:10", "checkpoint:10", "resend:10"}) {
		t.Run(recovery, func(t *testing.T) {
			t.Parallel()
			h := newHosted(t, "127.0.0.1", map[string]string{
				"clocks": clocks, "compute-ms": "15", "recovery": recovery,
			})
			h.lead()
			one, two := newFolder(t), newFolder(t)
			both := func() (a, b *process) {
				return h.host(one, "--servers", "1", "--workers", "1"), h.host(two, "--servers", "1", "--workers", "2")
			}
			a, b := both()
			h.clock(25)
			must(t, h.leader.Process.Kill())
			kill(a)
			kill(b)
			h.leader.Wait()
			a, b = both()
			a.Says("no coordinator answers")
			h.lead()
			s := h.done()
			want := undisturbedAt(t, clocks)
			if *s.ModelSHA256 != want || *s.UpdatesLost != 0 {
				t.Errorf("model %s, %d updates lost; want %s\n%s", *s.ModelSHA256, *s.UpdatesLost, want, h.all())
			}
			h.ends("a", a)
			h.ends("b", b)
		})
	}
}

// undisturbedAt returns the model of the small job after that many clocks without failures.
func undisturbedAt(t *testing.T, clocks string) string { return one(t, "--clocks", clocks) }

// TestHostDrains: when a host receives SIGTERM, its workers leave at a clock and its servers hand over their shards.
// The other hosts continue to the same model, and no clock is repeated. No host has access to the job's directory.
func TestHostDrains(t *testing.T) {
	t.Parallel()
	const clocks = "200"
	h := newHosted(t, "127.0.0.1", map[string]string{"clocks": clocks, "compute-ms": "15", "recovery": "chain:2"})
	h.lead()
	awaitStatus(t, h.dir, `job \S+ `) // the coordinator has read its own file
	// as on another machine
	must(t, os.Rename(filepath.Join(h.dir, "run.json"), filepath.Join(h.dir, "aside")))
	one, two := newFolder(t), newFolder(t)
	a := h.host(one, "--servers", "2", "--workers", "2")
	b := h.host(two, "--servers", "1", "--workers", "1", "--signal-code", "143", "--logs", "output", "--zone", "b")
	h.clock(10)
	spare := h.host(newFolder(t), "--servers", "0", "--workers", "1") // a standby worker
	spare.Says("0 servers and 1 workers")
	awaitStatus(t, h.dir, `standby +pid \d+ +worker, host `)
	b.Signal(syscall.SIGTERM)
	if code, _, _ := b.Wait(); code != 143 { // tells its service manager to restart it
		h.Errorf("the host that received SIGTERM ended with code %d: %s", code, b.stderr.String())
	}
	out := b.stdout.String()
	if !strings.Contains(out, "role=server") { // from the server's own log
		t.Errorf("the host's output lacks the server's log: %s", out)
	}
	if !strings.Contains(out, "the host is ending") || !strings.Contains(out, "server-0 ended with code 0") ||
		!strings.Contains(out, "worker-0 ended with code 0") {
		t.Errorf("the host's output does not report how its processes ended: %s", out)
	}
	awaitEvent(t, h.dir, " has handed over all its shards", 1) // the file may get it after the server's end
	awaitEvent(t, h.dir, " gave up its slot", 1)
	s := h.done()
	if want := undisturbedAt(t, clocks); *s.ModelSHA256 != want || *s.UpdatesLost != 0 || *s.ClocksRedone != 0 {
		t.Errorf("model %s, %d updates lost, %d clocks redone; want %s\n%s", *s.ModelSHA256, *s.UpdatesLost,
			*s.ClocksRedone, want, h.all())
	}
	h.ends("a", a)
	h.ends("spare", spare)
}

// freePorts returns the first of n consecutive free ports, below the range from which systems assign ports.
func freePorts(t *testing.T, n int) (first int) {
	t.Helper()
	for first = 21000; first < 30000; first += n {
		free := 0
		for i := range n {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+i))
			if err != nil {
				break
			}
			must(t, l.Close())
			free++
		}
		if free == n {
			return first
		}
	}
	t.Fatal("no free ports")
	return 0
}

// TestHostEndsAtOnce: a host and each of its processes serve metrics at ports of their own. A second signal ends a host
// whose server has no other server to hand over to.
func TestHostEndsAtOnce(t *testing.T) {
	t.Parallel()
	h := newHosted(t, "127.0.0.1", map[string]string{
		"clocks": "1000000", "servers": "1", "workers": "1", "shards": "2",
	})
	h.lead()
	dir, port := newFolder(t), freePorts(t, 3)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", port+i) }
	p := h.host(dir, "--servers", "1", "--workers", "1", "--metrics", at(0), "--log-format", "json")
	h.clock(5)
	if got := values(t, at(0)); got["perdure_host_processes{process_role=server}"] != 1 ||
		got["perdure_host_processes{process_role=worker}"] != 1 || got["perdure_ready"] != 1 ||
		got["perdure_host_restarts_total{process_role=worker}"] != 0 {
		t.Errorf("the host's metrics are %v", got)
	}
	for i, metric := range []string{
		"perdure_host_processes{process_role=server}", "perdure_server_updates_applied_total", "perdure_worker_clock",
	} {
		if got := values(t, at(i)); got[metric] == 0 {
			t.Errorf("%s does not serve %s: %v", at(i), metric, got)
		}
		if targets := fileOf(t, dir, rundir.TargetsFile); !strings.Contains(targets, at(i)) {
			t.Errorf("the targets file lacks %s: %s", at(i), targets)
		}
	}
	if first, _, _ := strings.Cut(p.stdout.String(), "\n"); !json.Valid([]byte(first)) {
		t.Errorf("the host printed a line that is not JSON: %s", first)
	}
	p.Signal(syscall.SIGTERM)
	p.Says("worker-0 ended with code 0")
	p.Signal(syscall.SIGTERM)
	h.ends("", p)
	if targets := fileOf(t, dir, rundir.TargetsFile); targets != "[]\n" {
		t.Errorf("after the host's end the targets file still has %s", targets)
	}
	h.leader.Signal(syscall.SIGTERM)
	if code, out, errs := h.leader.Wait(); code != 0 || !strings.Contains(out, "the job continues without it") {
		t.Errorf("the coordinator ended with code %d: %s%s", code, out, errs)
	}
}

// TestHostPrograms: a host passes the job's address to the user's program and restarts the program when it dies. The
// program reads the trained model after the last clock. perdure stop ends the job, and a restarted coordinator
// continues it.
func TestHostPrograms(t *testing.T) {
	t.Parallel()
	program := readmeProgram(t)
	h := newHosted(t, "127.0.0.1", map[string]string{
		"workload": "own", "clocks": "300000", "workers": "2", "recovery": "resend:100000", // saved when it is stopped
	})
	h.lead()
	dir := newFolder(t)
	p := h.host(dir, "--servers", "2", "--workers", "2", "--", program)
	h.clock(20)
	must(t, syscall.Kill(h.pid("worker:1"), syscall.SIGKILL))
	p.Says(`worker-\d was killed by SIGKILL|worker-\d killed by SIGKILL; it is replaced`)
	h.clock(50)
	wantOut(t, 0, []string{"stop", "--run", h.dir})
	if code, out, errs := h.leader.Wait(); code != 0 || !strings.Contains(out, "stopped at clock") {
		t.Fatalf("the coordinator ended with code %d: %s%s", code, out, errs)
	}
	h.ends("", p)
	h.lead()
	p = h.host(dir, "--servers", "2", "--workers", "2", "--", program)
	at := newestCut(t, h.dir)
	h.clock(at + 20)
	wantOut(t, 0, []string{"stop", "--run", h.dir})
	h.leader.Wait()
	h.ends("", p)
	if later := newestCut(t, h.dir); later <= at {
		t.Errorf("the newest checkpoint is of clock %d; it was of clock %d before", later, at)
	}
}

// TestHostsIPv6: IPv6 addresses work wherever an address is accepted, and other processes receive the advertised
// address.
func TestHostsIPv6(t *testing.T) {
	t.Parallel()
	h := newHosted(t, "::1", map[string]string{"clocks": "5", "workers": "1", "servers": "1", "shards": "2"})
	_, port, err := net.SplitHostPort(h.addr)
	must(t, err)
	h.leader = start(t, "coordinator", "--job", h.file, "--dir", h.dir, "--listen", "[::]:"+port, "--advertise",
		"localhost", "--control", "[::1]:0", "--insecure")
	sent := h.leader.Says(`address=(\S+)`)[1]
	if sent != "localhost:"+port {
		t.Errorf("other processes receive the address %s", sent)
	}
	p := h.host(newFolder(t), "--servers", "1", "--workers", "1", "--listen", "[::]:0", "--advertise", "::1")
	s := h.done()
	if *s.UpdatesLost != 0 || s.Clocks != 5 {
		t.Errorf("%d updates lost at clock %d", *s.UpdatesLost, s.Clocks)
	}
	h.ends("", p)
}

// TestCoordinatorMistakes: every invalid use of the coordinator yields a one-line error.
func TestCoordinatorMistakes(t *testing.T) {
	t.Parallel()
	h := newHosted(t, "127.0.0.1", nil)
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "job.yaml")
		must(t, os.WriteFile(name, []byte(text), 0o666))
		return name
	}
	with := func(text string) []string {
		return []string{"coordinator", "--job", file(text), "--dir", newFolder(t), "--listen", "127.0.0.1:0"}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, `needs --job JOB.yaml`, []string{"coordinator"}},
		{exitUsage, `needs --job JOB.yaml`, []string{"coordinator", "--job", h.file}},
		{
			exitUsage, `absent.yaml: no such file`,
			[]string{"coordinator", "--job", "absent.yaml", "--dir", "a"},
		},
		{exitUsage, `--listen 7000: write HOST:PORT`, h.args("--listen", "7000")},
		{exitUsage, `every address of this machine.*--advertise`, h.args("--listen", "0.0.0.0:0")},
		{exitUsage, `every address of this machine.*--advertise`, h.args("--listen", "[::]:0")},
		{exitUsage, `every address of this machine.*--advertise`, h.args("--listen", ":0")},
		{exitUsage, `--advertise .*means every address`, h.args("--advertise", "0.0.0.0")},
		{exitUsage, `--advertise a,b: a process has one address`, h.args("--advertise", "a,b")},
		{
			exitError, `cannot listen on .*: address already in use`,
			h.args("--listen", taken.Addr().String()),
		},
		{
			exitError, `cannot listen on .*: address already in use`,
			h.args("--control", taken.Addr().String()),
		},
		{exitUsage, `job.yaml:1: unknown key "workrs"; did you mean workers`, with("workrs: 3\n")},
		{exitUsage, `job.yaml:2: unknown key "bath"`, with("workload: own\nbath: 3\n")},
		{exitUsage, `job.yaml:1: consistency|job.yaml:1: unknown consistency`, with("consistency: bpp\n")},
		{exitUsage, `job.yaml:2: exec belongs on the command line`, with("workload: own\nexec: ./mine\n")},
		{
			exitUsage, `faults cannot be injected into processes on several hosts`,
			with("fault: 'kill:server:0@clock:3'\ndata: " + pictures + "\n"),
		},
		{exitUsage, `needs an update log that all hosts can`, with("recovery: stateless\ndata: " + pictures + "\n")},
	} {
		wantRefused(t, c.code, c.want, c.args...)
	}
	if entries, err := os.ReadDir(h.dir); err == nil {
		t.Errorf("a rejected command created %v", entries)
	}
	h.lead()
	wantRefused(t, exitUsage, `another process uses .*: pid \d+`,
		"coordinator", "--job", h.file, "--dir", h.dir, "--listen", "127.0.0.1:0")
	h.leader.Kill()
	other := newHosted(t, "127.0.0.1", map[string]string{"workers": "4"})
	wantRefused(t, exitUsage, `different job than .*: job.slots is 3 there, but 4 is requested`,
		"coordinator", "--job", other.file, "--dir", h.dir, "--listen", "127.0.0.1:0")
	must(t, os.Remove(secretOf(h.dir)))
	wantRefused(t, exitUsage, `the run's secret: .*no such file`, h.args()...)
}

// TestServicesInPlain: a job does not start if its registry, store or log is on another machine and its address does
// not use TLS.
func TestServicesInPlain(t *testing.T) {
	t.Parallel()
	h, made := newHosted(t, "127.0.0.1", nil), newKeys(t)
	const store, log = "s3://bucket/a?endpoint=http://s3:9000", "nats://10.9.9.9:4222"
	wantRefused(t, exitUsage, `way to the registry etcd://10.9.9.9:1/a \(set its .*\?ca=FILE\)`,
		h.args("--registry", "etcd://10.9.9.9:1/a", "--keys", made)...)
	stored := newHosted(t, "127.0.0.1", map[string]string{"store": store})
	wantRefused(t, exitUsage, `way to the store http://s3:9000 \(write https://\)`, stored.args()...)
	wantRefused(t, exitUsage, `way to the store http://s3:9000 \(write https://\)`, "train", "softmax",
		"--out", newFolder(t), "--store", store)
	wantRefused(t, exitUsage, `way to the update log nats://10.9.9.9:4222 \(write tls://\)`, "train",
		"softmax", "--out", newFolder(t), "--recovery", "stateless", "--log", log, "--keys", made)
	for _, dir := range []string{h.dir, stored.dir} {
		if entries, err := os.ReadDir(dir); err == nil {
			t.Errorf("a rejected command created %v", entries)
		}
	}
}

// TestHostMistakes: every invalid use of a host yields a one-line error.
func TestHostMistakes(t *testing.T) {
	t.Parallel()
	h := newHosted(t, "127.0.0.1", map[string]string{"clocks": "1000000"})
	h.lead()
	own := newHosted(t, "127.0.0.1", map[string]string{"workload": "own"})
	own.lead()
	secret, wrong := secretOf(h.dir), secretOf(own.dir)
	at := func(addr, file string, more ...string) []string {
		return append([]string{"host", "--join", addr, "--secret-file", file, "--dir", newFolder(t)}, more...)
	}
	taken := newFolder(t)
	must(t, os.MkdirAll(taken, 0o777))
	must(t, os.WriteFile(filepath.Join(taken, "job"), []byte("0123456789abcdef\n"), 0o666))
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, `no job given; add --join`, []string{"host"}},
		{exitUsage, `--join nowhere: invalid address "nowhere"; write HOST:PORT`, at("nowhere", secret)},
		{exitUsage, `--join .*: invalid address ""`, at(h.addr+",", secret)},
		{exitUsage, `--join 0.0.0.0:7000: 0.0.0.0 means every address`, at("0.0.0.0:7000", secret)},
		{
			exitUsage, `the run's secret: .*no such file or directory; if the job has keys, name .* with --keys`,
			[]string{"host", "--join", h.addr, "--dir", newFolder(t)},
		},
		{exitError, `the secret of this observer belongs to another run`, at(h.addr, wrong)},
		{exitUsage, `nothing to do; add --servers N`, at(h.addr, secret, "--servers", "0")},
		{exitUsage, `--servers -1; choose 0 to`, at(h.addr, secret, "--servers=-1")},
		{exitUsage, `the host has no workers; add --workers N`, at(h.addr, secret, "--", "true")},
		{
			exitUsage, `cannot run /nonexistent: no such file`,
			at(h.addr, secret, "--workers", "1", "--", "/nonexistent"),
		},
		{exitUsage, `add the command that starts it`, at(own.addr, wrong, "--workers", "1")},
		{exitUsage, `belongs to job "0123456789abcdef", but the job at`, append(at(h.addr, secret), "--dir", taken)},
		{exitUsage, `--listen a:b: write HOST:PORT`, at(h.addr, secret, "--listen", "a:b")},
		{
			exitError, `cannot listen on .*: address already in use`,
			at(h.addr, secret, "--listen", h.addr),
		},
		{exitUsage, `--metrics 127.0.0.1:0: choose a port`, at(h.addr, secret, "--metrics", "127.0.0.1:0")},
		{
			exitError, `server-0: --listen 0.0.0.0:0 means every address`,
			at(h.addr, secret, "--listen", "0.0.0.0"),
		},
	} {
		wantRefused(t, c.code, c.want, c.args...)
	}
	dir := newFolder(t)
	first := h.host(dir)
	first.Says("1 servers and 0 workers")
	wantRefused(t, exitUsage, `another host uses .*: pid \d+`,
		"host", "--join", h.addr, "--secret-file", secret, "--dir", dir)
	kill(first)
	wantRefused(t, exitUsage, `its processes run on several hosts`, "fault", "--run", h.dir, "kill:server:0@0s")
	silent := h.host(newFolder(t))
	silent.Says("1 servers and 0 workers")
	h.leader.Kill()
	silent.Says("the coordinator is unavailable; servers and workers continue without it")
	late := h.host(newFolder(t))
	late.Says("no coordinator answers; trying again")
	late.Signal(syscall.SIGTERM)
	h.ends("late", late)
}

// versions matches the error that both sides report when their versions differ.
const versions = `the peer speaks wire version \d+, but this process speaks version \d+; ` +
	`install the same version of Perdure on every machine`

// TestOtherVersion: a host and a coordinator of different versions each report the mismatch in one line.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	h := newHosted(t, "127.0.0.1", nil)
	h.lead()
	newer := func(b []byte) []byte { b[4] = wire.Version + 1; return b }
	hello := wire.Control(wire.KindHello, wire.Hello{Role: wire.RoleWorker})
	c, err := net.Dial("tcp", h.addr)
	must(t, err)
	defer c.Close()
	_, err = c.Write(newer(wire.Append(nil, &hello)))
	must(t, err)
	var header [wire.HeaderBytes]byte
	_, err = c.Read(header[:])
	must(t, err)
	if header[4] != wire.Version || wire.Kind(header[5]) != wire.KindRefuse {
		t.Errorf("the coordinator answered % x", header[:8])
	}
	h.leader.Says(versions)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			refuse := wire.Control(wire.KindRefuse, wire.Refusal{})
			_, _ = c.Write(newer(wire.Append(nil, &refuse))) // the host may have disconnected
			defer c.Close()
		}
	}()
	for _, args := range [][]string{
		{"host", "--dir", newFolder(t)},
		{"server"},
		{"worker"},
	} {
		args = append(args, "--join", l.Addr().String(), "--secret-file", secretOf(h.dir))
		wantRefused(t, exitError, versions, args...)
	}
}
