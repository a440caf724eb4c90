package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPagesApart runs the commands of the guide's pages about multi-machine jobs on three machines and checks every
// promised result. The parts that the pages leave to the reader are small here: the program, and how long the jobs
// take.
func TestPagesApart(t *testing.T) {
	onlyAll(t)
	t.Parallel()
	types := map[string]func(t *testing.T){"addresses": pageAddresses, "secure": pageSecure, "watch": pageWatch}
	if *apartEtcd != "" { // make check-hosts also runs these, which take longer
		maps.Copy(types, map[string]func(t *testing.T){
			"hosts": pageHosts, "standby": pageStandby, "upgrade": pageUpgrade, "token": pageToken,
		})
	}
	for name, types := range types {
		t.Run(name, func(t *testing.T) { t.Parallel(); types(t) })
	}
}

const (
	statusJob = "perdure status job"
	typeFirst = "What to type"
	survives  = "Start the coordinators"
	notice    = "When a machine gets notice"
)

// fewer makes a job that is not stopped end sooner.
var fewer = []string{"clocks: 3000\n", "clocks: 1500\n"}

// at returns the clock that the job has reached, once it is above 0.
func (m *seat) at(status string) int {
	m.all.Helper()
	clock, err := strconv.Atoi(m.shows(status, `training, clock ([1-9]\d*) of`)[1])
	must(m.all, err)
	return clock
}

// moves waits until the job has made progress.
func (m *seat) moves(status string) {
	m.all.Helper()
	for from := m.at(status); m.at(status) < from+5; {
		continue
	}
}

// pid returns the ID of the process that has the given role and index.
func (m *seat) pid(status, place string) int {
	m.all.Helper()
	pid, err := strconv.Atoi(m.shows(status, place+` +pid (\d+) .* live `)[1])
	must(m.all, err)
	return pid
}

// begun is the job of hosts.md, started like in the page's first part. standby.md and spot.md extend it.
type begun struct {
	all              *machines
	five, six, seven *seat
	page             *guide
	standby, spot    *guide
	leader           *typed
	host             string // the command line of each machine
	hosts            map[*seat]*typed
}

// begin runs that part until the coordinator runs and the other machines have their keys. change edits the job file
// where the page leaves it to the reader.
func begin(t *testing.T, change ...string) *begun {
	t.Helper()
	b := &begun{
		page: openGuide(t, "hosts.md"), standby: openGuide(t, "standby.md"), spot: openGuide(t, "spot.md"),
		hosts: map[*seat]*typed{},
	}
	b.all, b.five, b.six, b.seven = newMachines(t)
	b.five.write("job.yaml", strings.NewReplacer(change...).Replace(b.page.file(typeFirst, 0)), 0o666)
	lines := b.page.lines(typeFirst, 1, 2)
	b.five.does(lines[0])
	for _, line := range b.page.lines("Keys", 0, 2) {
		b.five.does(line, strings.ReplaceAll(line, b.six.addr, b.seven.addr))
	}
	b.leader = b.five.types(lines[1])
	b.host = b.page.lines(typeFirst, 2, 1)[0]
	return b
}

// serve runs the host command on machines.
func (b *begun) serve(list ...*seat) {
	b.all.Helper()
	for _, m := range list {
		b.hosts[m] = m.types(b.host)
	}
}

// hurry makes programs work as fast as they can.
func (b *begun) hurry() {
	for _, m := range []*seat{b.five, b.six, b.seven} {
		m.write("hurry", "", 0o666)
	}
}

// done waits until the leader and all hosts have ended gracefully.
func (b *begun) done() {
	b.all.Helper()
	b.leader.ends()
	for _, h := range b.hosts {
		h.ends()
	}
}

// pageHosts follows hosts.md and spot.md: the job of the first part, deaths, and preemption notices.
func pageHosts(t *testing.T) {
	b := begin(t, fewer...)
	five, six, seven := b.five, b.six, b.seven
	look := b.page.lines(typeFirst, 3, 2)
	status := look[0]
	b.serve(five, six)
	five.shows(status, `(?s)server:1 .* live .*server:2 .* starting`)
	if five.shows(status, `clock (\d+) of`)[1] != "0" {
		t.Error("the job started without one of its servers")
	}
	b.serve(seven)

	for _, dies := range []func(){
		func() { must(t, syscall.Kill(five.pid(status, "server:0"), syscall.SIGKILL)) },
		func() { must(t, syscall.Kill(five.pid(status, "worker:1"), syscall.SIGKILL)) },
		func() { b.leader.dies(); b.leader = b.leader.again() },
		func() { seven.isGone(); seven.isBack(); b.serve(seven) },
		func() { b.hosts[six].Signal(syscall.SIGTERM); b.hosts[six].ends(); b.serve(six) }, // as in upgrade.md
		func() { b.leader.Signal(syscall.SIGTERM); b.leader.ends(); b.leader = b.leader.again() },
	} {
		five.moves(status)
		dies()
		five.moves(status)
	}
	drain := strings.TrimPrefix(b.spot.block(notice, 1).lines[0], "$ ")
	if out := five.does(strings.ReplaceAll(drain, "rack-a-7", "machine-7")); !strings.Contains(out,
		"machine-7 is drained") {
		t.Errorf("the output of %s is %s", drain, out)
	}
	b.hosts[seven].ends()
	seven.write("taken", "#!/bin/sh\ntest -e is-taken\n", 0o755) // stands in for the page's scripts, which query clouds
	b.hosts[seven] = seven.types(b.spot.lines(notice, 0, 1)[0])
	five.moves(status)
	seven.write("is-taken", "", 0o666)
	b.hosts[seven].ends()
	b.serve(seven)
	five.moves(status)
	b.hurry()
	b.done()
	for _, name := range []string{"summary.json", "model.safetensors"} {
		if _, err := os.Stat(filepath.Join(five.dir, "job", name)); err != nil {
			t.Error(err)
		}
	}
	after := b.page.lines(typeFirst, 4, 3)
	if out := five.does(after[0]); !regexp.MustCompile(`updates lost +0\n`).MatchString(out) {
		t.Errorf("the output of %s is %s", after[0], out)
	}
	five.does(after[1:]...)
}

// pageAddresses follows the part of hosts.md on addresses: names and IPv6.
func pageAddresses(t *testing.T) {
	b := begin(t, "recovery: chain:2 ", "recovery: none ", "servers: 3", "servers: 2", "workers: 6", "workers: 2")
	b.leader.dies()
	lines := b.page.lines("Addresses", 0, 3)
	stop := b.page.lines(typeFirst, 3, 2)[1]
	again := func() {
		must(t, os.RemoveAll(filepath.Join(b.five.dir, "job")))
		must(t, os.RemoveAll(filepath.Join(b.seven.dir, "perdure-host")))
	}
	again()
	b.leader = b.five.types(lines[0])
	b.host = strings.NewReplacer(b.five.addr, "training.example.org", "--servers 1", "--servers 2").Replace(b.host)
	b.serve(b.seven)
	b.five.moves(statusJob)
	b.five.does(stop)
	b.done()
	again()
	for i, m := range []*seat{b.five, b.six, b.seven} {
		if code, _, errs := m.types(fmt.Sprintf("ip -6 addr add fd00::%d/64 dev eth0 nodad", i+5)).Wait(); code != 0 {
			t.Skipf("no IPv6 on this machine: %s", errs)
		}
	}
	b.leader = b.five.types(lines[1])
	b.host = strings.NewReplacer("training.example.org", "[fd00::5]", "--servers 2", "--servers 0").Replace(b.host)
	b.serve(b.seven)
	b.hosts[b.six] = b.six.types(lines[2])
	b.five.moves(statusJob)
	b.five.does(stop)
	b.done()
}

// startEtcd starts three members of etcd as in standby.md.
func (b *begun) startEtcd() {
	b.all.Helper()
	const members = "Three members of etcd"
	b.five.does(b.standby.lines(members, 0, 4)...)
	for _, line := range b.standby.lines(members, 1, 2) {
		b.five.does(line, strings.ReplaceAll(line, b.six.addr, b.seven.addr))
	}
	lines := b.standby.lines(members, 2, 2)
	for _, m := range []*seat{b.five, b.six, b.seven} {
		m.exports(strings.ReplaceAll(lines[0], b.five.addr, m.addr))
		m.types(lines[1])
	}
	health := b.standby.lines(members, 3, 1)[0]
	b.five.shows(health, `"health":"true"`)
	none := b.five.types(regexp.MustCompile(`--cert \S+ --key \S+`).ReplaceAllString(health, ""))
	if code, out, _ := none.Wait(); code == 0 {
		b.all.Errorf("etcd answers a client without a certificate: %s", out)
	}
}

// pageStandby follows standby.md: a coordinator that survives its machine.
func pageStandby(t *testing.T) {
	b := begin(t)
	b.leader.dies() // this part replaces the first one
	must(t, os.RemoveAll(filepath.Join(b.five.dir, "job")))
	b.startEtcd()
	for _, m := range []*seat{b.five, b.six} {
		m.exports(b.standby.lines(survives, 0, 1)[0])
	}
	b.five.does(b.standby.lines(survives, 1, 2)...)
	lines := b.standby.lines(survives, 2, 3)
	b.five.types(lines[0]).Says("the coordinator of job ")
	b.leader = b.six.types(lines[1])
	b.leader.Says("is on standby")
	b.host = lines[2]
	b.serve(b.five, b.six, b.seven)
	b.five.moves(statusJob)
	etcds := b.six.does("curl -sf --cacert registry/ca.pem --cert registry/client.pem --key registry/client.key " +
		"https://10.0.0.5:2379/metrics | grep ^etcd_server_is_leader")
	gone := time.Now()
	b.five.isGone()
	b.leader.Says("the coordinator of job ")
	took := time.Since(gone)
	t.Logf("another coordinator leads after %.1f s; lost machine: %s", took.Seconds(), etcds)
	if took > 10*time.Second { // allows for a busy machine; the page promises less
		t.Error("takeover took longer than the page promises")
	}
	b.five.isBack()
	b.serve(b.five) // every slot needs a worker
	b.six.moves(statusJob)
	b.six.does(b.page.lines(typeFirst, 3, 2)[1])
	b.done()
}

// replaces replaces the running program as in upgrade.md.
func (m *seat) replaces() {
	m.all.Helper()
	const there = "/usr/local/bin/perdure"
	line := openGuide(m.all.T, "upgrade.md").block("One machine after the other", 0).lines[0]
	if !strings.Contains(line, there) {
		m.all.Fatalf("upgrade.md does not replace %s: %s", there, line)
	}
	m.does("cp /bin/sleep perdure-new", "cp /bin/sleep old")
	runs := m.types("./old 1000")
	await(m.all, func() bool {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", runs.Process.Pid))
		return err == nil && filepath.Base(exe) == "old"
	}, m.all.said)
	m.does(strings.ReplaceAll(line, there, "old"))
	runs.dies()
}

// pageUpgrade follows upgrade.md: replacing one program, and upgrading all machines together, with the store from
// hosts.md.
func pageUpgrade(t *testing.T) {
	b := begin(t, "recovery: chain:2 ", "recovery: resend:auto ")
	b.six.replaces()
	b.leader.Says("no store is set: .* where the others cannot read them")
	b.leader.dies()
	must(t, os.RemoveAll(filepath.Join(b.five.dir, "job")))
	store := b.page.file("Where checkpoints are", 0)
	m := regexp.MustCompile(`store: s3://models/a +# or (file:///mnt/shared)/a`).FindStringSubmatch(store)
	if m == nil {
		t.Fatalf("the page does not name a checkpoint directory: %s", store)
	}
	store = strings.ReplaceAll(strings.Replace(store, "s3://models/a", m[1]+"/a", 1), m[1], "file://"+b.all.work)
	job := regexp.MustCompile(`(?m)^recovery: .*\n`).ReplaceAllLiteralString(b.page.file(typeFirst, 0), store)
	job = strings.Replace(job, fewer[0], fewer[1], 1)
	b.five.write("job.yaml", job, 0o666)
	b.leader = b.leader.again()
	b.serve(b.five, b.six, b.seven)
	b.five.shows(statusJob, `last checkpoint: clock [1-9]`)
	b.leader.Signal(syscall.SIGTERM)
	b.leader.ends()
	for _, h := range b.hosts {
		h.Signal(syscall.SIGTERM)
		h.Says("the host is ending")
		h.Signal(syscall.SIGTERM)
		h.ends()
	}
	b.leader = b.leader.again()
	b.serve(b.five, b.six, b.seven)
	b.five.moves(statusJob)
	b.hurry()
	b.done()
}
