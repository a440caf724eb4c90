package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// newKeys creates a job's keys with the perdure keys command.
func newKeys(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keys")
	wantOut(t, 0, []string{"keys", "new", dir, "--job", "mine"}, filepath.Join(dir, "operator"), "coordinator",
		"valid until")
	return dir
}

// TestKeys: a job with keys ends with the same model although processes of every kind die. None of its files contains a
// secret or a key.
func TestKeys(t *testing.T) {
	t.Parallel()
	ring, dir := newKeys(t), newFolder(t)
	job := start(t, small("--keys", ring, "--recovery", "chain:2", "--fault", "kill:server:1@clock:15", "--fault",
		"kill:worker:0@clock:25", "--fault", "kill:coordinator@clock:35", "--out", dir)...)
	s := job.succeeds(dir)
	sameModel(t, s, one(t), dir)
	checkRaces(t, dir)
	found := leaksOf(t, ring, dir)
	found.inFolder(dir)
	found.inOutput(job)
}

// TestKeysSay tests what each role's keys permit in a running job, and that callers without keys or with another job's
// keys are rejected.
func TestKeysSay(t *testing.T) {
	t.Parallel()
	ring, others, dir := newKeys(t), newKeys(t), newFolder(t)
	job := start(t, joinable(dir, "kill:worker:1@clock:20+1h", "--keys", ring)...)
	at := awaitStatus(t, dir, `join it at (\S+)\n(?s:.*)server:1 .* live `)[1]
	api := " --address " + controlOf(t, dir)
	as := func(role string) string { return " --keys " + filepath.Join(ring, role) }
	file := " --secret-file " + secretOf(dir)
	for args, want := range map[string]string{
		"status" + api + as("viewer"):                                 "",
		"status" + api + as("operator"):                               "",
		"status" + api + " --keys " + ring:                            "",
		"status" + api + as("worker"):                                 "",
		"stop" + api + as("viewer"):                                   "viewer/viewer may view the job",
		"stop" + api + as("worker"):                                   "worker/worker may view the job",
		"scale 9" + api + as("server"):                                "server/server may view the job",
		"drain server:0" + api + as("viewer"):                         "may view the job",
		"drain server:0" + api + as("server"):                         "may view the job",
		"fault kill:server:0@0s" + api + as("viewer"):                 "may view the job",
		"status" + api + file:                                         "specify them with --keys",
		"status" + api + file + " --keys " + others:                   "another job's keys",
		"worker --join " + at + file + " --run " + dir:                "the job requires keys",
		"worker --join " + at + " --keys " + others + " --run " + dir: "another job's keys",
		"worker --join " + at + as("server") + " --run " + dir: "the keys in .* belong to " +
			"server/server, but a worker needs its own",
		"server --join " + at + as("worker") + " --run " + dir:             "but a server needs its own",
		"worker --join " + at + " --keys " + t.TempDir() + " --run " + dir: "no such file",
	} {
		p := start(t, strings.Fields(args)...)
		code, out, errs := p.Wait()
		switch {
		case want == "" && code != 0:
			t.Errorf("%s: %d: %s%s", args, code, out, errs)
		case want != "":
			p.refused(max(code, 1), want)
		}
	}
	wantOut(t, 0, []string{"fault", "slow*1.5:worker:0@0s+1s", "--run", dir})
	if log := fileOf(t, dir, "logs", "coordinator.log"); !strings.Contains(log, "who=operator/operator") ||
		!strings.Contains(log, "rejected a control API call") || !strings.Contains(log, "who=viewer/viewer") {
		t.Errorf("the coordinator's log lacks a caller or its rejected call:\n%s", log)
	}
	knock(t, at, controlOf(t, dir))
	// A worker with a name of its own takes a vacant slot. Its keys are revoked while it works: it ends, and a worker
	// with new keys replaces it.
	awaitEvent(t, dir, "worker:1 is dead", 1)
	wantOut(t, 0, []string{"keys", "issue", ring, "worker", "alice"}, "worker-alice")
	alice := start(t, "worker", "--join", at, "--keys", filepath.Join(ring, "worker-alice"), "--run", dir)
	awaitStatus(t, dir, fmt.Sprintf(`worker:1 +pid %d .* live +clock [1-9]`, alice.Process.Pid))
	wantOut(t, 0, []string{"keys", "renew", ring, "worker", "server"}, "valid until")
	wantOut(t, 0, []string{"keys", "revoke", ring, "worker-alice"}, "revoked.pem")
	wantOut(t, 0, []string{"keys", "ls", ring}, "revoked")
	if code, _, errs := alice.Wait(); code == 0 || !strings.Contains(errs, "rejects our certificate") {
		t.Errorf("a worker with revoked keys ended with code %d: %s", code, errs)
	}
	awaitEvent(t, dir, "worker:1 is dead", 2)
	next := start(t, "worker", "--join", at, "--keys", ring, "--run", dir)
	clock := awaitStatus(t, dir, fmt.Sprintf(`training, clock (\d+) (?s:.*)worker:1 +pid %d .* live +clock [1-9]`,
		next.Process.Pid))[1]
	await(t, func() bool { return awaitStatus(t, dir, `training, clock (\d+) `)[1] != clock },
		func() string { return "the job makes no progress" })
	job.Stop()
	checkRaces(t, dir)
}

// knock opens many connections to a job's addresses without keys. No answer may disclose anything about the job.
func knock(t *testing.T, addrs ...string) {
	t.Helper()
	const each = 1000
	var all sync.WaitGroup
	defer all.Wait()
	for i := range each * len(addrs) {
		addr := addrs[i%len(addrs)]
		c, err := net.DialTimeout("tcp", addr, 10*time.Second)
		must(t, err)
		t.Cleanup(func() { c.Close() })
		if i%8 < 2 { // sends nothing
			continue
		}
		all.Go(func() {
			if said := rattle(c, i, nil, time.Second); tellsOfJob(said) {
				t.Errorf("%s discloses to a client without keys: %q", addr, said)
			}
		})
	}
}

// rattle sends one of several messages that a client without keys can send. It returns what the peer answers until it
// closes the connection or patience expires. recorded is an earlier message of a client with keys.
func rattle(c net.Conn, i int, recorded []byte, patience time.Duration) (said string) {
	switch _ = c.SetDeadline(time.Now().Add(patience)); i % 8 {
	case 0, 1:
		return ""
	case 2:
		_, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")) // the peer may have closed it
	case 3:
		_, _ = c.Write(slices.Repeat([]byte{byte(i), 'P', 'R', 'D', 'R'}, 200))
	case 4:
		_, _ = c.Write([]byte{22, 3, 1, 1, 0, 1})
	case 5, 6:
		_, _ = c.Write(recorded)
	default:
		s := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
		_, _ = s.Write([]byte("GET /perdure.control.v1.Control/Status HTTP/1.1\r\nHost: x\r\nConnection: " +
			"close\r\n\r\n"))
		c = s
	}
	all, _ := io.ReadAll(io.LimitReader(c, 1<<16)) // until it is closed
	return string(all)
}

// tellsOfJob reports whether an answer discloses anything about the job.
func tellsOfJob(said string) bool {
	return strings.Contains(said, "softmax") || strings.Contains(said, "server:")
}
