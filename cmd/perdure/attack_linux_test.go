package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testcluster"
)

var apartAttack = flag.Bool("apart.attack", false, "attack a job from a neighbouring host")

// What an attack may cost: a process's peak memory and its processor time. Measured on two cores of a server: 82 MiB
// and 1.5 s.
const (
	mostAttackedMiB = 256
	mostAttackedCPU = 15 * time.Second
)

// TestAttack: a job on several hosts ends with the model of an undisturbed one while a neighbouring host attacks it.
// The attacker has nothing, then recordings of other clients, then a worker's keys.
func TestAttack(t *testing.T) {
	if !*apartAttack {
		t.Skip("takes half a minute; run make check-hosts, or set -apart.attack")
	}
	a := hostsApart(t, 4, 1)
	a.write(fmt.Sprintf(`consistency: bsp
recovery: checkpoint:20
clocks: 100
batch: 8
workers: 2
servers: 2
shards: 4
seed: 7
eval-every: '0'
compute-ms: 200
data: %s
store: file://%s
`, pictures, filepath.Join(a.work, "store")))
	leader := a.run(0, "coordinator 0", command(a, "coordinator", "--job", a.file, "--dir", a.dir(0), "--listen",
		a.coordinator(), "--keys", a.keys, "--control", fmt.Sprintf("%s:7001", testcluster.LANAddr(0))))
	leader.Says("the coordinator of job ")
	server := a.joins(1, "server 0", "server", a.coordinator(), "--listen",
		fmt.Sprintf("%s:7100", testcluster.LANAddr(1)))
	a.joins(2, "server 1", "server", a.coordinator(), "--listen", fmt.Sprintf("%s:7100", testcluster.LANAddr(2)))
	server.Says("joined")

	worker := filepath.Join(a.keys, "worker")
	a.attack("take", worker)
	recorded := t.TempDir()
	a.attackBy("relay", recorded).Says("listening")
	for i, at := range []string{fmt.Sprintf("%s:7000", testcluster.LANAddr(3)), a.coordinator()} {
		name := fmt.Sprintf("workers %d", i)
		a.joins(2, name, "host", at, "--servers", "0", "--workers", "1", "--dir", filepath.Join(a.work, name))
	}
	begin := a.comesTo(leader, 2)
	a.attack("knock", recorded)
	a.attack("pose", worker)
	if a.over() {
		t.Fatal("the job ended before the attack")
	}
	for name, p := range map[string]*process{"coordinator": leader, "server": server} {
		mib, cpu := spent(t, p)
		t.Logf("%s: peak %d MiB, %v of processor time", name, mib, cpu)
		if mib > mostAttackedMiB || cpu > mostAttackedCPU {
			t.Errorf("the %s used %d MiB and %v, want at most %d MiB and %v", name, mib, cpu, mostAttackedMiB,
				mostAttackedCPU)
		}
	}
	end := a.comesTo(leader, begin+1)
	t.Logf("clock %d when the attack started, %d when it ended", begin, end)
	await(t, a.over, a.all)
	got := *summary(t, a.dir(0)).ModelSHA256
	if want := one(t, "--clocks", "100", "--workers", "2", "--servers", "2", "--shards", "4"); got != want {
		t.Errorf("model %s; want %s\n%s", got, want, a.all())
	}
}

// joins starts a process with a role on a host.
func (a *apart) joins(host int, name, role, coordinator string, more ...string) *process {
	a.Helper()
	return a.run(host, name, command(a, append([]string{role, "--join", coordinator, "--keys", a.keys}, more...)...))
}

// attackBy starts an attack from the neighbouring host.
func (a *apart) attackBy(how, more string) *process {
	a.Helper()
	p := command(a, how, a.coordinator(),
		fmt.Sprintf("%s:7100", testcluster.LANAddr(1)), fmt.Sprintf("%s:7001", testcluster.LANAddr(0)),
		more)
	p.Env = append(os.Environ(), asProgram+"="+attackerProgram)
	return a.run(3, "attack "+how, p)
}

// attack runs an attack to its end and fails if any part of it succeeds.
func (a *apart) attack(how, more string) {
	a.Helper()
	began := time.Now()
	if code, out, errs := a.attackBy(how, more).Wait(); code != 0 {
		a.Errorf("%s: exit code %d: %s%s", how, code, out, errs[:min(len(errs), 4000)])
	}
	a.Logf("%s: %.1f s", how, time.Since(began).Seconds())
}

// comesTo waits until the control API reports at least the given clock and returns the current one.
func (a *apart) comesTo(leader *process, least int) (clock int) {
	a.Helper()
	training := regexp.MustCompile(`training, clock (\d+) of`)
	await(a, func() bool {
		p := command(a, "status", "--address", fmt.Sprintf("%s:7001", testcluster.LANAddr(0)), "--keys", a.keys)
		p.startBy(a.lan.Host(0).Start)
		_, out, _ := p.Wait()
		if m := training.FindStringSubmatch(out); m != nil {
			clock, _ = strconv.Atoi(m[1]) // digits
		}
		return clock >= least
	}, a.all)
	return clock
}

// spent returns a process's peak memory in MiB and its processor time.
func spent(t *testing.T, p *process) (mib int, cpu time.Duration) {
	t.Helper()
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindStringSubmatch(fileOf(t, fmt.Sprintf("/proc/%d", p.Process.Pid),
		"status"))
	kib, err := strconv.Atoi(m[1])
	must(t, err)
	_, after, _ := strings.Cut(fileOf(t, fmt.Sprintf("/proc/%d", p.Process.Pid), "stat"), ") ")
	ticks := 0
	for _, field := range strings.Fields(after)[11:13] { // user and system time in hundredths of a second
		n, err := strconv.Atoi(field)
		must(t, err)
		ticks += n
	}
	return kib >> 10, time.Duration(ticks) * 10 * time.Millisecond
}
