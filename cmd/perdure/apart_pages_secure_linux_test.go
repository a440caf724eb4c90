package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// pageSecure runs the first commands of secure.md.
func pageSecure(t *testing.T) {
	g := openGuide(t, "secure.md")
	_, five, six, _ := newMachines(t)
	lines := g.lines("Three commands", 0, 3)
	five.does(lines[0])
	six.fetches(five, "keys/worker")
	job := five.types(lines[1])
	job.Says("start 4 workers with")
	workers := []*typed{five.types(lines[2]), five.types(lines[2]), six.types(lines[2]), six.types(lines[2])}
	five.write("hurry", "", 0o666)
	six.write("hurry", "", 0o666)
	job.ends()
	for _, w := range workers {
		w.ends()
	}
}

// pageToken follows the rest of secure.md with a job of hosts.md: remote monitoring, machines that join and leave, and
// key renewal.
func pageToken(t *testing.T) {
	g, b := openGuide(t, "secure.md"), begin(t, "workers: 6", "workers: 8")
	five, six, seven := b.five, b.six, b.seven
	b.leader.dies()
	must(t, os.RemoveAll(filepath.Join(five.dir, "job")))
	elsewhere := g.lines("Watch it from elsewhere", 0, 3)
	b.leader = five.types(elsewhere[0])
	b.leader.Says("the coordinator of job ")
	b.serve(five, six, seven)
	seven.fetches(five, "keys/viewer", "keys/operator")
	seven.shows(elsewhere[1], `worker:5 .* live`)

	b.token(g)

	alice := g.lines("One more machine, one less", 0, 3)
	five.does(alice[0])
	if out := five.does(alice[1]); !strings.Contains(out, "worker-alice") {
		t.Errorf("the output of %s is %s", alice[1], out)
	}
	seven.fetches(five, "keys/worker-alice")
	program := g.lines("Three commands", 0, 3)[2]
	hers := strings.Replace(program, "keys/worker", "keys/worker-alice", 1)
	one, two := seven.types(hers), seven.types(hers)
	five.moves(statusJob)
	five.does(alice[2])
	for _, m := range []*seat{six, seven} {
		m.fetches(five, "keys/server/revoked.pem", "keys/worker/revoked.pem")
	}
	for _, p := range []*typed{one, two} {
		if code, out, errs := p.Wait(); code == 0 || !strings.Contains(errs, "rejects our certificate") {
			t.Errorf("alice ended with code %d: %s%s", code, out, errs)
		}
	}
	renew := g.lines("New keys before the old ones run out", 0, 2)
	if out := five.does(renew[0]); strings.Contains(out, "alice") {
		t.Errorf("%s renews revoked keys: %s", renew[0], out)
	}
	if out := five.does(renew[1]); !strings.Contains(out, "alice") {
		t.Errorf("the output of %s is %s", renew[1], out)
	}
	six.fetches(five, "keys/server", "keys/worker")
	seven.fetches(five, "keys/server", "keys/worker")
	others := []*typed{seven.types(program), seven.types(program)} // they take alice's slots
	five.moves(statusJob)
	b.drains()
	b.serve(seven)
	five.moves(statusJob)
	must(t, syscall.Kill(five.pid(statusJob, "server:0"), syscall.SIGKILL))
	five.moves(statusJob)
	seven.does(elsewhere[2])
	b.done()
	for _, p := range others {
		p.refused(exitError, "the job is over")
	}
}

// gives runs a line that creates a token, and stores the token in a directory of another machine.
func (b *begun) gives(to *seat, line, folder string) *typed {
	b.all.Helper()
	said := b.five.types(line)
	text := strings.TrimSpace(strings.Split(said.ends(), "\n")[0])
	to.write(folder+"/token", text+"\n", 0o600)
	must(b.all, os.Link(filepath.Join(b.five.dir, "keys/ca/ca.pem"), filepath.Join(to.dir, folder, "ca.pem")))
	return said
}

// drains follows spot.md on preemption notices by HTTP.
func (b *begun) drains() {
	b.all.Helper()
	b.gives(b.six, b.spot.lines(notice, 2, 1)[0], "cloud")
	calls := strings.ReplaceAll(b.spot.file(notice, 3), "rack-a-7", "machine-7")
	var answer struct{ Places []struct{ Role string } }
	asked := b.six.types(calls)
	asked.ends()
	if err := json.Unmarshal([]byte(asked.stdout.String()), &answer); err != nil || len(answer.Places) == 0 {
		b.all.Errorf("invalid answer %s: %v", asked.stdout, err)
	}
	b.hosts[b.seven].ends()
	asks := strings.ReplaceAll(calls, "curl", "curl -o /dev/null -w '%{http_code}'")
	for _, c := range [][3]string{{"machine-7", "machine-8", "400"}, {"cloud/token", "cloud/none", "401"}} {
		if code := b.six.does(strings.ReplaceAll(asks, c[0], c[1])); !strings.HasPrefix(code, c[2]) {
			b.all.Errorf("with %s the answer is %s; want %s", c[1], code, c[2])
		}
	}
}

// token follows secure.md on tools without a certificate.
func (b *begun) token(g *guide) {
	b.all.Helper()
	token := g.lines("A tool without a certificate", 0, 2)
	said := b.gives(b.seven, token[0], "ci")
	b.seven.does(token[1])
	curl := g.file("A tool without a certificate", 1)
	var answer struct{ Workload string }
	asked := b.seven.types(curl)
	asked.ends()
	if err := json.Unmarshal([]byte(asked.stdout.String()), &answer); err != nil || answer.Workload != "own" {
		b.all.Errorf("invalid answer %s: %v", asked.stdout, err)
	}
	b.five.does("perdure keys revoke keys " + regexp.MustCompile(`keys revoke \S+ (\S+)`).FindStringSubmatch(
		said.stderr.String())[1])
	await(b.all, func() bool {
		p := b.seven.types(curl)
		_, out, _ := p.Wait()
		return strings.Contains(out, "revoked")
	}, b.all.said)
}

// pageWatch follows watch.md: a run on one machine, and a server on another machine that joins it. It uses more clocks
// than the page, so that the run lasts long enough to be watched.
func pageWatch(t *testing.T) {
	g := openGuide(t, "watch.md")
	_, five, six, _ := newMachines(t)
	train := g.lines("Watch a job", 0, 1)[0]
	five.does("perdure keys new keys")
	job := five.types(train + " --clocks 1000000 --keys keys --listen 10.0.0.5:7000 --recovery chain:2")
	five.at("perdure status runs/first")
	var list []struct{ Targets []string }
	text, err := os.ReadFile(filepath.Join(five.dir, "runs/first/metrics.json"))
	must(t, err)
	if err := json.Unmarshal(text, &list); err != nil || len(list) < 4 {
		t.Errorf("invalid metrics.json %s: %v", text, err)
	}
	looks := func(m *seat, addr, metric string) {
		t.Helper()
		for path, want := range map[string]string{"metrics": metric, "healthz": "", "readyz": ""} {
			m.shows("curl -sf http://"+addr+"/"+path, want)
		}
	}
	for _, target := range list {
		looks(five, target.Targets[0], "perdure_process_info")
	}
	six.fetches(five, "keys/server", "runs/first/run.json")
	five.does("perdure drain server:0 --run runs/first") // frees its index
	six.types(g.lines("Where", 0, 1)[0])
	looks(six, "10.0.0.6:9464", "perdure_server_shards")
	five.does("perdure stop runs/first")
	job.Wait()
}
