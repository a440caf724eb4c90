//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/jobs"
)

// manyJobs is a registry of many jobs in a folder, and the file of a job for it.
type manyJobs struct {
	*hosted
	registry, keys string
}

// newManyJobs makes a registry, and writes the file of a job of that many clocks.
func newManyJobs(t *testing.T, clocks string, more map[string]string) *manyJobs {
	t.Helper()
	keys := map[string]string{"clocks": clocks, "compute-ms": "15", "store": "file://" + t.TempDir()}
	for key, value := range more {
		keys[key] = value
	}
	return &manyJobs{
		hosted: newHosted(t, "127.0.0.1", keys), registry: filepath.Join(t.TempDir(), "jobs"), keys: newKeys(t),
	}
}

// job is a command line about a job.
func (m *manyJobs) job(args ...string) []string {
	return append([]string{"job", args[0], "--registry", m.registry}, args[1:]...)
}

// coordinate starts a coordinator of a job by name, with a folder and an address of its own.
func (m *manyJobs) coordinate(name, dir, addr string, more ...string) *process {
	m.Helper()
	return start(m, m.coordinator(name, dir, addr, more...)...)
}

func (m *manyJobs) coordinator(name, dir, addr string, more ...string) []string {
	return append([]string{
		"coordinator", "--registry", m.registry, "--name", name, "--dir", dir, "--listen", addr, "--keys", m.keys,
	}, more...)
}

// host starts a host.
func (m *manyJobs) host(args ...string) *process {
	m.Helper()
	return m.startHost(append([]string{"--join", m.join}, args...)...)
}

// hostOf starts a host that knows of a job its name alone.
func (m *manyJobs) hostOf(name string, args ...string) *process {
	m.Helper()
	return m.startHost(append([]string{"--registry", m.registry, "--job", name}, args...)...)
}

func (m *manyJobs) startHost(args ...string) *process {
	m.Helper()
	p := command(m, append([]string{"host", "--keys", m.keys, "--dir", newFolder(m)}, args...)...)
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.Start()
	m.Cleanup(func() { kill(p) })
	return p
}

// listed is a job of the list.
func (m *manyJobs) listed(name string) (l jobs.Listed) {
	m.Helper()
	code, out, errs := invoke(m, m.job("ls", "--json")...)
	var all []jobs.Listed
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 {
		m.Fatalf("code %d, %v: %s%s", code, err, out, errs)
	}
	i := slices.IndexFunc(all, func(l jobs.Listed) bool { return l.Name == name })
	if i < 0 {
		m.Fatalf("there is no job %s: %s", name, out)
	}
	return all[i]
}

// becomes waits until a job is in a state.
func (m *manyJobs) becomes(name string, state jobs.Phase) {
	m.Helper()
	var l jobs.Listed
	await(m, func() bool {
		l = m.listed(name)
		return l.State == state
	}, func() string { return fmt.Sprintf("job %s is %+v", name, l) })
}

// TestManyJobs: a job that is created is listed, taken by two coordinators and a host by its name, goes on when the one
// that leads is killed, to the model of one that was left alone, and is removed. The host finds each leader by the name
// of the job alone. Nothing secret is in the registry.
func TestManyJobs(t *testing.T) {
	t.Parallel()
	const clocks = "300"
	m := newManyJobs(t, clocks, nil)
	wantRefused(t, exitUsage, m.registry+" does not exist; ", m.job("ls", "--json")...)
	wantOut(t, 0, m.job("create", m.file, "--name", "first"), "job first is recorded in "+m.registry)
	wantOut(t, 0, m.job("create", m.file), "job job is recorded") // by the file's name
	wantRefused(t, exitUsage, `has a job first already; choose another --name`, m.job("create", m.file, "--name",
		"first")...)
	wantOut(t, 0, m.job("ls"), "first  softmax   waiting for a coordinator  0 of "+clocks)
	wantOut(t, 0, m.job("ls", "-q"), "first\njob\n")
	wantOut(t, 0, m.job("show", "first"), "perdure coordinator --registry "+m.registry+" --name first",
		"clocks: "+clocks)
	if l := m.listed("first"); l.State != jobs.Waiting || l.Leader != "" {
		t.Errorf("it is %+v", l)
	}
	wantRefused(t, exitError, `job first has not ended: it is waiting`, m.job("rm", "first")...)

	h := m.hostOf("first", "--servers", "2", "--workers", "3")
	h.Says("nobody has led the job yet; the host waits")

	one, two, watched := newFolder(t), newFolder(t), reserved(t)
	addr := m.addr
	a := m.coordinate("first", one, addr)
	a.Says("the coordinator of job ")
	m.becomes("first", jobs.Running)
	m.moves()()
	b := m.coordinate("first", two, m.addr, "--metrics", watched)
	b.Says("the coordinator stands by")
	isWatched(t, two, watched, "it stands by: ", 0)
	m.leader, m.dir = a, one
	m.clock(10)
	l := m.listed("first")
	if l.State != jobs.Running || l.Leader != addr || l.Holder == "" || fmt.Sprint(l.End) != clocks {
		t.Errorf("it is %+v", l)
	}
	wantOut(t, 0, m.job("show", "first"), "state     running", "perdure host --registry "+m.registry+" --job first")
	wantRefused(t, exitError, `job first has not ended: it is running`, m.job("rm", "first")...)
	wantRefused(t, exitError, `somebody leads job first, which is not removed: .*pid \d+`, m.job("rm", "--force",
		"first")...)
	m.noSecret()
	a.Kill()
	b.Says("the coordinator of job ")
	h.Says("the job has another leader")
	isWatched(t, two, watched, "it leads job ", 1)
	m.leader, m.dir = b, two
	m.clock(40)
	if l := m.listed("first"); l.State != jobs.Running || l.Leader != m.addr {
		t.Errorf("it is %+v", l)
	}
	s := m.done()
	if want := undisturbedAt(t, clocks); *s.ModelSHA256 != want || *s.UpdatesLost != 0 {
		t.Errorf("model %s, %d updates lost; want %s\n%s", *s.ModelSHA256, *s.UpdatesLost, want, m.all())
	}
	m.ends("", h)
	l = m.listed("first")
	if l.State != jobs.Done || fmt.Sprint(l.Clock) != clocks || l.Leader != "" || l.Holder != "" {
		t.Errorf("it is %+v", l)
	}
	m.noSecret()
	wantOut(t, 0, m.coordinator("first", one, addr), "job first is over: it is done")
	wantOut(t, 0, []string{
		"host", "--registry", m.registry, "--job", "first", "--keys", m.keys, "--dir", newFolder(t),
	}, "the job is done")
	wantRefused(t, exitError, `job first is over already: it is done`, m.job("stop", "first")...)
	wantOut(t, 0, m.job("rm", "first"), "job first is removed")
	wantOut(t, 0, m.job("ls", "-q"), "job\n")
	wantOut(t, 0, m.job("create", m.file, "--name", "first"), "job first is recorded")
	wantRefused(t, exitUsage, `has another job than first: its id is `+l.ID, m.coordinator("first", one, addr)...)
}

// isWatched: a coordinator comes to say whether it leads, and is healthy.
func isWatched(t *testing.T, dir, addr, words string, leads float64) {
	t.Helper()
	awaitReady(t, dir, addr, leads > 0)
	if code, body := look(t, addr, "/healthz", patience); code != http.StatusOK {
		t.Errorf("it is not healthy: %d %s", code, body)
	}
	want := http.StatusServiceUnavailable
	if leads > 0 {
		want = http.StatusOK
	}
	if code, body := look(t, addr, "/readyz", patience); code != want || !strings.HasPrefix(body, words) {
		t.Errorf("readiness is %d %s", code, body)
	}
	got := values(t, addr)
	if is, shown := got["perdure_coordinator_leads"]; !shown || is != leads || got["perdure_ready"] != leads {
		t.Errorf("it shows %v", got)
	}
}

// TestHostOfNoJob: a host that is told of no job, of two, or of one that is not there says so.
func TestHostOfNoJob(t *testing.T) {
	t.Parallel()
	m := newManyJobs(t, "10", nil)
	wantRefused(t, exitUsage, `has no job none;`, "host", "--registry", m.registry, "--job", "none", "--keys", m.keys,
		"--dir", newFolder(t))
	wantRefused(t, exitUsage, `has many jobs; say which one with --job NAME`, "host", "--registry", m.registry)
	wantRefused(t, exitUsage, `leave one of them out`, "host", "--registry", m.registry, "--job", "first", "--join",
		"127.0.0.1:7")
}

// noSecret looks into all files of the registry for what the keys keep secret.
func (m *manyJobs) noSecret() {
	m.Helper()
	var secret [][]byte
	must(m, filepath.WalkDir(m.keys, func(name string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(e.Name(), "secret") {
			b, err := os.ReadFile(name)
			secret = append(secret, bytes.TrimSpace(b))
			return err
		}
		return err
	}))
	files := 0
	must(m, filepath.WalkDir(m.registry, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files++
		b, err := os.ReadFile(name)
		if bytes.Contains(b, []byte("PRIVATE KEY")) || slices.ContainsFunc(secret, func(s []byte) bool {
			return len(s) < 8 || bytes.Contains(b, s)
		}) {
			m.Errorf("%s has a secret: %s", name, b)
		}
		return err
	}))
	if len(secret) == 0 || files < 4 {
		m.Errorf("%d secrets, %d files", len(secret), files)
	}
}

// TestStopJob: a job is stopped in the registry: by its leader, with a last checkpoint; where nobody leads, by the next
// who comes; and before anybody has come. It is stopped for all who come later.
func TestStopJob(t *testing.T) {
	t.Parallel()
	m := newManyJobs(t, "100000", nil)
	for _, name := range []string{"led", "away", "new"} { // each with a store of its own
		text, err := os.ReadFile(m.file)
		must(t, err)
		file := filepath.Join(t.TempDir(), name+".yaml")
		text = regexp.MustCompile(`store: .*`).ReplaceAll(text, []byte("store: file://"+t.TempDir()))
		must(t, os.WriteFile(file, text, 0o666))
		wantOut(t, 0, m.job("create", file), "is recorded")
	}
	one, two := newFolder(t), newFolder(t)
	addr := m.addr
	a := m.coordinate("led", one, addr)
	a.Says("the coordinator of job ")
	m.moves()()
	b := m.coordinate("led", two, m.addr)
	b.Says("the coordinator stands by")
	h := m.host("--servers", "2", "--workers", "3")
	m.leader, m.dir = a, one
	m.clock(20)
	_, out, _ := invoke(t, m.job("stop", "led")...)
	if !regexp.MustCompile(`job led is (stopping, at clock \d+|over: stopped at clock \d+)`).MatchString(out) {
		t.Errorf("stop says %s", out)
	}
	for _, p := range []*process{a, b} {
		if code, out, errs := p.Wait(); code != 0 || !strings.Contains(out, "stopped at clock") {
			t.Errorf("a coordinator ended with code %d: %s%s", code, out, errs)
		}
	}
	m.ends("", h)
	l := m.listed("led")
	why := regexp.MustCompile(`stopped at clock \d+, with a checkpoint of clock \d\d+`)
	if l.State != jobs.Stopped || l.Clock < 20 || !why.MatchString(l.Why) {
		t.Errorf("it is %+v", l)
	}
	wantOut(t, 0, m.coordinator("led", two, addr), "job led is over: stopped at clock")
	wantOut(t, 0, m.job("rm", "led"), "job led is removed")

	gone := m.coordinate("away", newFolder(t), addr)
	gone.Says("the coordinator of job ")
	m.becomes("away", jobs.Running)
	gone.Kill()
	m.becomes("away", jobs.Away)
	wantOut(t, 0, m.job("stop", "away"), "nobody leads the job now")
	if l := m.listed("away"); l.State != jobs.Stopping {
		t.Errorf("it is %+v", l)
	}
	wantOut(t, 0, m.job("show", "away"), "nobody leads it; start a coordinator, which ends it:")
	wantOut(t, 0, m.coordinator("away", newFolder(t), addr), "somebody has said so", "stopped at clock 0")
	m.becomes("away", jobs.Stopped)

	wantOut(t, 0, m.job("stop", "new"), "nobody leads the job now")
	wantOut(t, 0, m.coordinator("new", newFolder(t), addr), "job new is over: stopped before anybody led it")
	m.becomes("new", jobs.Stopped)
	wantOut(t, 0, m.job("rm", "away", "new"), "job away is removed", "job new is removed")
	wantOut(t, 0, m.job("ls", "-q"), "")
}

// TestJobRemoved: a coordinator whose job was removed while it had no leader says so, and ends.
func TestJobRemoved(t *testing.T) {
	t.Parallel()
	m := newManyJobs(t, "100000", nil)
	wantOut(t, 0, m.job("create", m.file, "--name", "one"), "is recorded")
	a := m.coordinate("one", newFolder(t), m.addr)
	a.Says("the coordinator of job ")
	a.Signal(syscall.SIGSTOP)
	m.moves()()
	b := m.coordinate("one", newFolder(t), m.addr)
	b.Says("the coordinator stands by")
	must(t, os.RemoveAll(filepath.Join(m.registry, "one"))) // by hand
	b.refused(exitUsage, `job one, of id [0-9a-f]{16}, is not in .*jobs any more: somebody has removed it`)
	a.Signal(syscall.SIGCONT)
	if code, _, errs := a.Wait(); code == 0 || strings.Count(errs, "\n") != 1 {
		t.Errorf("who led it ends with code %d: %s", code, errs)
	}
}

// TestJobMistakes: what cannot be done with a registry of many jobs is said in one line.
func TestJobMistakes(t *testing.T) {
	t.Parallel()
	m := newManyJobs(t, "10", nil)
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "job.yaml")
		must(t, os.WriteFile(name, []byte(text), 0o666))
		return name
	}
	in := func(registry string) []string { return []string{"job", "ls", "--registry", registry} }
	create := func(text string) []string { return m.job("create", file(text), "--name", "a") }
	wantOut(t, 0, m.job("create", m.file, "--name", "good"), "is recorded")
	aFile, data := file(""), "data: "+pictures+"\n"
	named := []string{"coordinator", "--dir", newFolder(t), "--listen", "127.0.0.1:0", "--name", "good"}
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, `which registry\? write --registry`, []string{"job", "ls"}},
		{exitUsage, `which registry\? write --registry`, named},
		{exitUsage, `a registry of many jobs is a folder, or etcd://`, in("http://a:1/b")},
		{exitUsage, `it has no prefix`, in("etcd://a:1")},
		{exitError, `is no folder; a registry of many jobs is one`, in(aFile)},
		{exitError, `no answer: etcd://127.0.0.1:1/x: `, in("etcd://127.0.0.1:1/x")},
		{exitUsage, `"Big" can be no job's name`, m.job("create", m.file, "--name", "Big")},
		{exitUsage, `"../x" can be no job's name`, m.job("show", "../x")},
		{
			exitUsage, `"A_job" can be no job's name; .*name the job with --name`,
			m.job("create", rename(t, m.file, "A_job")),
		},
		{exitUsage, `has no job absent; perdure job ls`, m.job("show", "absent")},
		{exitUsage, `has no job absent`, m.job("stop", "absent")},
		{exitUsage, `has no job absent`, m.job("rm", "absent")},
		{exitUsage, `has no job absent`, m.coordinator("absent", newFolder(t), "127.0.0.1:0")},
		{exitUsage, `absent.yaml cannot be read: no such file`, m.job("create", "absent.yaml")},
		{exitUsage, `job.yaml:1: there is no key "workrs"; did you mean workers`, create("workrs: 3\n")},
		{exitUsage, `job.yaml:1: unknown consistency|job.yaml:1: consistency`, create("consistency: bpp\n")},
		{exitUsage, `job.yaml:2: exec is said on the command lines`, create("workload: own\nexec: ./mine\n")},
		{exitUsage, `no fault reaches the processes of many`, create("fault: 'kill:server:0@clock:3'\n" + data)},
		{exitUsage, `needs an update log that all hosts reach`, create("recovery: stateless\n" + data)},
		{
			exitUsage, `job.yaml: log has a user, a password or a token in it.*\?creds=FILE`,
			create("workload: own\nclocks: 5\nrecovery: stateless\nlog: nats://hush@127.0.0.1:4222\n"),
		},
		{
			exitUsage, `job.yaml is too long: a registry takes 65536 bytes`,
			create("workload: own\nclocks: 5\n" + strings.Repeat("# much to say\n", 5000)),
		},
		{
			exitUsage, `a job is in a file, or in a registry of many; leave one of them out`,
			append(named, "--job", m.file, "--registry", m.registry),
		},
		{exitUsage, `needs --job JOB.yaml, .*--registry URL --name NAME`, named[:3]},
		{
			exitUsage, `--name good can be shared by several coordinators, which need the same secrets`,
			append(named, "--registry", m.registry),
		},
	} {
		if slices.Contains(c.args, "etcd://127.0.0.1:1/x") && testing.Short() {
			continue // it is tried for seconds
		}
		wantRefused(t, c.code, c.want, c.args...)
	}
	if l := m.listed("good"); l.State != jobs.Waiting {
		t.Errorf("it is %+v", l)
	}
	wantOut(t, 0, m.job("ls", "-q"), "good\n")
}

// rename copies a file, under another name.
func rename(t *testing.T, file, name string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	to := filepath.Join(t.TempDir(), name+".yaml")
	must(t, os.WriteFile(to, b, 0o666))
	return to
}

// TestDamagedJob: what cannot be read of a job is said in one line, hides no other job, and goes by force.
func TestDamagedJob(t *testing.T) {
	t.Parallel()
	m := newManyJobs(t, "10", nil)
	wantOut(t, 0, m.job("create", m.file, "--name", "good"), "is recorded")
	wantOut(t, 0, m.job("create", m.file, "--name", "bad"), "is recorded")
	record := filepath.Join(m.registry, "bad", "job")
	good, err := os.ReadFile(record)
	must(t, err)
	for what, bad := range map[string]struct {
		file, want string
		content    []byte
	}{
		"empty":         {"job", `damaged: it does not begin with`, nil},
		"cut off":       {"job", `damaged: truncated`, good[:len(good)-1]},
		"changed":       {"job", `damaged: checksum mismatch`, bytes.Replace(good, []byte("bad"), []byte("bed"), 1)},
		"newer":         {"job", `written by a newer Perdure \(format 2\)`, disk.Seal("JOB", 2, nil)},
		"no JSON":       {"job", `damaged: invalid character`, disk.Seal("JOB", 1, []byte("words"))},
		"of another":    {"job", `damaged: it is of job "x"`, disk.Seal("JOB", 1, []byte(`{"id":"1","name":"x"}`))},
		"state":         {"state", `damaged: it does not begin with`, []byte("words")},
		"another state": {"state", `its state is another job's`, disk.Seal("JOB-STATE", 1, []byte(`{"id":"1"}`))},
		"another wish":  {"wish", `its wish is another job's`, disk.Seal("JOB-WISH", 1, []byte(`{"id":"1"}`))},
	} {
		t.Run(what, func(t *testing.T) {
			name := filepath.Join(m.registry, "bad", bad.file)
			must(t, os.WriteFile(name, bad.content, 0o666))
			for _, args := range [][]string{
				m.job("show", "bad"), m.job("stop", "bad"), m.job("rm", "bad"),
				m.coordinator("bad", newFolder(t), "127.0.0.1:0"),
			} {
				wantRefused(t, exitError, `job bad in .*`+bad.want+`.*; perdure job rm --force bad removes it`, args...)
			}
			if bad, good := m.listed("bad"), m.listed("good"); bad.State != jobs.Damaged || good.State != jobs.Waiting {
				t.Errorf("they are %+v and %+v", bad, good)
			}
			must(t, os.RemoveAll(name))
			must(t, os.WriteFile(record, good, 0o666))
		})
	}
	must(t, os.WriteFile(record, nil, 0o666))
	wantOut(t, 0, m.job("rm", "--force", "bad"), "job bad is removed")
	wantOut(t, 0, m.job("ls", "-q"), "good\n")
}
