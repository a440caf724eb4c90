package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testcluster"
)

// The tests in this file run jobs on separate hosts. Each host is a network namespace. A switch that can cut links and
// delay frames is the only connection between them. Hosts 0 and 1 have coordinators, and all but the first have a
// server and a worker each.

var (
	apartStorms = flag.Int("apart.storms", 1, "storms on hosts that are apart, for each strategy")
	apartSeed   = flag.Uint64("apart.seed", 0, "seed of the first storm; 0 derives it from the time")
	apartEtcd   = flag.String("apart.etcd", "", "the etcd program: hosts 2 to 4 each run a member, and the "+
		"coordinators share the cluster; without it there is one coordinator")
)

const apartHosts = 5

// apart is a job on separate hosts.
type apart struct {
	*testing.T
	lan         *testcluster.LAN
	rng         *rand.Rand
	work        string // a directory that all hosts see, as on a file server
	file, keys  string
	coordinates []int // hosts that have a coordinator
	processes   map[string]*process
	started     []*process // all processes, including those that another of the same name replaced
	etcds       string
	member      func(host int)                      // starts or restarts a member of etcd
	env         []string                            // added to every process's own environment
	planned     []func() (what string, heal func()) // faults that alternate with the random ones
}

// newApart creates the hosts and the file of a job.
func newApart(t *testing.T, recovery string, clocks int, seed uint64) *apart {
	t.Helper()
	a := hostsApart(t, apartHosts, seed)
	a.ask(recovery, clocks, "store: file://"+filepath.Join(a.work, "store"))
	return a
}

// ask writes the file of a job with four servers and four workers. keeps is a line that says where the job stores its
// data.
func (a *apart) ask(recovery string, clocks int, keeps string) {
	a.Helper()
	a.write(fmt.Sprintf(`consistency: bsp
recovery: %s
clocks: %d
batch: 8
workers: 4
servers: 4
shards: 8
seed: 7
eval-every: '0'
compute-ms: 10
data: %s
%s
`, recovery, clocks, pictures, keeps))
	if *apartEtcd != "" {
		a.coordinates = []int{0, 1}
		a.startEtcd()
	}
}

// hostsApart creates the hosts and the keys of a job. The caller writes its file.
func hostsApart(t *testing.T, hosts int, seed uint64) *apart {
	t.Helper()
	l, err := testcluster.NewLAN(hosts, seed)
	if errors.Is(err, testcluster.ErrNoLAN) {
		t.Skip(err)
	}
	must(t, err)
	a := &apart{
		T: t, lan: l, rng: rand.New(rand.NewPCG(seed, 1)), work: t.TempDir(), keys: newKeys(t),
		coordinates: []int{0}, processes: map[string]*process{},
	}
	t.Cleanup(func() {
		a.search()
		for _, p := range a.processes {
			kill(p)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	a.file = filepath.Join(a.work, "job.yaml")
	return a
}

// write writes the job file.
func (a *apart) write(text string) { must(a, os.WriteFile(a.file, []byte(text), 0o600)) }

// run starts a named process on a host, in a process group of its own.
func (a *apart) run(host int, name string, p *process) *process {
	a.Helper()
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.Env == nil {
		p.Env = append(os.Environ(), a.env...)
	}
	p.startBy(a.lan.Host(host).Start)
	a.processes[name], a.started = p, append(a.started, p)
	return p
}

// search looks for keys and secrets in all files and output, and in the processes themselves.
func (a *apart) search() {
	a.Helper()
	l := leaksOf(a, a.keys, a.work)
	l.inFolder(a.work)
	for _, p := range a.started {
		l.inOutput(p)
	}
	l.inProcesses()
	a.Logf("searched %[2]d KiB for %[1]d secrets: %[3]v", len(l.needles), l.bytes>>10, l.searched)
}

// startEtcd starts three members.
func (a *apart) startEtcd() {
	a.Helper()
	var members, clients []string
	for host := 2; host < 5; host++ {
		members = append(members, fmt.Sprintf("m%d=http://%s:2380", host, testcluster.LANAddr(host)))
		clients = append(clients, fmt.Sprintf("%s:2379", testcluster.LANAddr(host)))
	}
	a.member = func(host int) {
		at := testcluster.LANAddr(host).String()
		p := command(a, "version")
		p.Cmd = exec.CommandContext(a.Context(), *apartEtcd, "--name", fmt.Sprintf("m%d", host), "--data-dir",
			filepath.Join(a.work, fmt.Sprintf("etcd-%d", host)), "--listen-client-urls", "http://"+at+":2379",
			"--advertise-client-urls", "http://"+at+":2379", "--listen-peer-urls", "http://"+at+":2380",
			"--initial-advertise-peer-urls", "http://"+at+":2380", "--initial-cluster", strings.Join(members, ","),
			"--log-level", "error")
		p.Stdout, p.Stderr = p.stdout, p.stderr
		a.run(host, fmt.Sprintf("etcd %d", host), p)
	}
	for host := 2; host < 5; host++ {
		a.member(host)
	}
	a.etcds = "etcd://" + strings.Join(clients, ",") + "/job"
}

// lead starts or restarts the coordinator of a host.
func (a *apart) lead(host int) {
	a.Helper()
	args := []string{
		"coordinator",
		"--job",
		a.file,
		"--dir",
		a.dir(host),
		"--listen",
		fmt.Sprintf("%s:7000", testcluster.LANAddr(host)),
		"--keys",
		a.keys,
		"--control",
		"127.0.0.1:7001",
		"--insecure", // etcd and S3 of these tests do not use TLS
	}
	if a.etcds != "" {
		args = append(args, "--registry", a.etcds)
	}
	p := command(a, args...)
	a.run(host, fmt.Sprintf("coordinator %d", host), p)
}

func (a *apart) dir(host int) string { return filepath.Join(a.work, fmt.Sprintf("run-%d", host)) }

// serve starts or restarts a host with the given numbers of servers and workers.
func (a *apart) serve(host int, servers, workers string) {
	a.Helper()
	var join []string
	for _, c := range a.coordinates {
		join = append(join, fmt.Sprintf("%s:7000", testcluster.LANAddr(c)))
	}
	a.run(host, fmt.Sprintf("host %d", host), command(a, "host", "--join", strings.Join(join, ","), "--servers",
		servers,
		"--workers", workers, "--keys", a.keys, "--dir", filepath.Join(a.work, fmt.Sprintf("host-%d", host))))
}

// clock returns the clock that the job has reached according to its leader, or -1 if no coordinator answers.
func (a *apart) clock() int {
	for _, c := range a.coordinates {
		if at := a.clockOf(c); at >= 0 {
			return at
		}
	}
	return -1
}

// clockOf returns the clock that the coordinator of one host reports.
func (a *apart) clockOf(host int) int {
	m := regexp.MustCompile(`training, clock (\d+) of`).FindStringSubmatch(a.status(host))
	if m == nil {
		return -1
	}
	at, err := strconv.Atoi(m[1])
	must(a, err)
	return at
}

// status returns the output of perdure status for the coordinator of a host.
func (a *apart) status(host int) string {
	p := command(a, "status", "--address", "127.0.0.1:7001", "--keys", a.keys)
	p.startBy(a.lan.Host(host).Start)
	a.started = append(a.started, p)
	_, out, _ := p.Wait()
	return out
}

// all returns the output of all processes, for failure messages.
func (a *apart) all() string {
	text := ""
	for name, p := range a.processes {
		out := p.stdout.String() + p.stderr.String()
		text += "-- " + name + "\n" + out[max(0, len(out)-1500):] + "\n"
	}
	for host := range apartHosts {
		text += logs(filepath.Join(a.work, fmt.Sprintf("host-%d", host)))
	}
	return text
}

// freeze suspends enough members of etcd to take away its quorum.
func (a *apart) freeze() (what string, heal func()) {
	signal := func(s syscall.Signal) {
		for host := 2; host < 4; host++ {
			must(a, a.processes[fmt.Sprintf("etcd %d", host)].Process.Signal(s))
		}
	}
	signal(syscall.SIGSTOP)
	return "two of three members of etcd are frozen", func() { signal(syscall.SIGCONT) }
}

// trouble injects a fault and describes it. heal ends the fault.
func (a *apart) trouble() (what string, heal func()) {
	pick := func() int { return 1 + a.rng.IntN(apartHosts-1) }
	kinds := 6
	if a.etcds != "" {
		kinds = 7
	}
	switch a.rng.IntN(kinds) {
	case 6:
		return a.freeze()
	case 0:
		host := a.rng.IntN(apartHosts)
		a.lan.Disconnect(host)
		return fmt.Sprintf("the cable of host %d is pulled", host), func() { a.lan.Reconnect(host) }
	case 1:
		from, to := a.rng.IntN(apartHosts), pick()
		a.lan.Cut(from, to)
		return fmt.Sprintf("messages from host %d do not reach host %d", from, to), a.lan.Heal
	case 2:
		cut := pick()
		var left, right []int
		for host := range apartHosts {
			if host < cut {
				left = append(left, host)
			} else {
				right = append(right, host)
			}
		}
		a.lan.Partition(left, right)
		return fmt.Sprintf("hosts %v and %v are partitioned", left, right), a.lan.Heal
	case 3:
		host := pick()
		kill(a.processes[fmt.Sprintf("host %d", host)])
		return fmt.Sprintf("host %d and its processes are killed", host), func() { a.serve(host, "1", "1") }
	case 4:
		host := a.coordinates[a.rng.IntN(len(a.coordinates))]
		kill(a.processes[fmt.Sprintf("coordinator %d", host)])
		return fmt.Sprintf("the coordinator on host %d is killed", host), func() { a.lead(host) }
	default:
		a.lan.SetAll(
			testcluster.LANLink{
				Delay: 2 * time.Millisecond, Jitter: 4 * time.Millisecond, LossRate: 0.02,
				ReorderRate: 0.05,
			},
		)
		return "frames are delayed, reordered or lost", func() { a.lan.SetAll(testcluster.LANLink{}) }
	}
}

// storm runs a job through a number of faults and returns the model that it ends with.
func (a *apart) storm(clocks, troubles int) string {
	a.Helper()
	for _, c := range a.coordinates {
		a.lead(c)
	}
	for host := 1; host < apartHosts; host++ {
		a.serve(host, "1", "1")
	}
	for _, c := range a.coordinates {
		if a.etcds != "" {
			a.processes[fmt.Sprintf("coordinator %d", c)].Says("INSECURE: .* on the way to the registry etcd://")
		}
	}
	reach := func(least int) {
		await(a, func() bool { return a.over() || a.clock() >= least },
			func() string { return fmt.Sprintf("the job does not reach clock %d\n%s", least, a.all()) })
	}
	for i := range troubles {
		reach((i + 1) * clocks / (troubles + 2))
		next := a.trouble
		if i%2 == 0 && len(a.planned) > 0 {
			next, a.planned = a.planned[0], a.planned[1:]
		}
		what, heal := next()
		lasts := time.Duration(200+a.rng.IntN(2300)) * time.Millisecond
		a.Logf("%s, for %v", what, lasts)
		select {
		case <-time.After(lasts): // no condition to wait for: nothing reports the fault
		case <-a.Context().Done():
		}
		leaksOf(a, a.keys, a.work).inProcesses() // while they run
		heal()
	}
	await(a, a.over, func() string { return "the job does not end\n" + a.all() })
	for _, c := range a.coordinates {
		if _, err := os.Stat(filepath.Join(a.dir(c), "summary.json")); err == nil {
			return *summary(a, a.dir(c)).ModelSHA256
		}
	}
	return ""
}

// over reports whether the job has ended. The last leader then has written a summary.
func (a *apart) over() bool {
	for _, c := range a.coordinates {
		if _, err := os.Stat(filepath.Join(a.dir(c), "summary.json")); err == nil {
			return true
		}
	}
	return false
}

// TestApart: jobs on separate hosts end with the model of an undisturbed job on one machine. Cables are pulled, the
// network is partitioned, and hosts and coordinators die meanwhile.
func TestApart(t *testing.T) {
	t.Parallel()
	const clocks, troubles = 240, 4
	seed := *apartSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	strategies := []string{"chain:2,checkpoint:20", "resend:20", "checkpoint:20"}
	if *apartStorms == 1 && *apartEtcd == "" {
		strategies = strategies[:1]
	}
	for i := range *apartStorms {
		for _, recovery := range strategies {
			t.Run(fmt.Sprintf("%s/seed %d", recovery, seed+uint64(i)), func(t *testing.T) {
				a := newApart(t, recovery, clocks, seed+uint64(i))
				got := a.storm(clocks, troubles)
				want := one(t, "--clocks", strconv.Itoa(clocks), "--workers", "4", "--servers", "4", "--shards", "8")
				if got != want {
					t.Errorf("model %s; want %s\n%s", got, want, a.all())
				}
			})
		}
	}
}

var apartGone = flag.Int("apart.gone", 0, "number of measurements of how long training pauses when a "+
	"server's machine disappears")

// TestGone measures how long training pauses when a server's machine disappears silently: its cable is pulled.
func TestGone(t *testing.T) {
	if *apartGone == 0 {
		t.Skip("measured with -apart.gone=N")
	}
	var took []time.Duration
	for i := range *apartGone {
		a := newApart(t, "chain:2,checkpoint:100000", 1_000_000, uint64(i))
		for _, c := range a.coordinates {
			a.lead(c)
		}
		for host := 1; host < apartHosts; host++ {
			servers, workers := "1", "0"
			if host == apartHosts-1 {
				servers, workers = "1", "4"
			}
			a.serve(host, servers, workers)
		}
		moves := func(from int) int {
			clock := from
			await(t, func() bool { clock = a.clock(); return clock > from }, a.all)
			return clock
		}
		moves(moves(50))
		a.lan.Disconnect(2)
		began := time.Now()
		last, stands, longest := a.clock(), time.Now(), time.Duration(0)
		for time.Since(began) < 8*time.Second { // the longest time without a new clock
			if now := a.clock(); now > last {
				longest = max(longest, time.Since(stands))
				last, stands = now, time.Now()
			}
		}
		took = append(took, longest)
	}
	slices.Sort(took)
	t.Logf("training paused for %v", took)
}
