//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// drained is a job on three hosts. The third has a server and a worker and will leave. The first has a standby worker.
type drained struct {
	*hosted
	clocks string
	hosts  map[string]*process
	dirs   map[string]string
}

// newDrained starts the job with a recovery strategy.
func newDrained(t *testing.T, recovery string, leaves ...string) *drained {
	t.Helper()
	d := &drained{clocks: "200", hosts: map[string]*process{}, dirs: map[string]string{}}
	d.hosted = newHosted(t, "127.0.0.1", map[string]string{
		"clocks": d.clocks, "compute-ms": "15", "recovery": recovery, "servers": "3",
	})
	d.lead()
	for _, name := range []string{"a", "b", "c"} {
		d.dirs[name] = newFolder(t)
		args := []string{"--name", name, "--servers", "1", "--workers", "1"}
		switch name {
		case "a":
			args[len(args)-1] = "2"
		case "c":
			args = append(args, leaves...)
		}
		d.hosts[name] = d.host(d.dirs[name], args...)
	}
	d.clock(10)
	return d
}

// server returns the server that runs on a host.
func (d *drained) server(host string) (place string) {
	d.Helper()
	return awaitStatus(d, d.dir, `(server:\d+) .* host `+host+`\n`)[1]
}

// same waits until the job and the remaining hosts end. It checks that the model is that of an undisturbed job and that
// no update is lost.
func (d *drained) same(redone bool) {
	d.Helper()
	s := d.done()
	if want := undisturbedAt(d.T, d.clocks); *s.ModelSHA256 != want || *s.UpdatesLost != 0 ||
		!redone && *s.ClocksRedone != 0 {
		d.Errorf("model %s, %d updates lost, %d clocks redone; want %s\n%s", *s.ModelSHA256, *s.UpdatesLost,
			*s.ClocksRedone, want, d.all())
	}
	d.ends("a", d.hosts["a"])
	d.ends("b", d.hosts["b"])
	for _, dir := range d.dirs {
		checkRaces(d.T, dir)
	}
}

// TestDrainHost: an operator drains a host twice. Other servers take over its shards, its worker leaves, and the host
// ends. The job continues to the same model and repeats no clock. An unknown name yields a one-line error.
func TestDrainHost(t *testing.T) {
	t.Parallel()
	for _, recovery := range []string{"chain:2", "resend:20"} {
		t.Run(recovery, func(t *testing.T) {
			t.Parallel()
			d := newDrained(t, recovery)
			for name, says := range map[string]string{
				"d":        `no host "d": its hosts are a, b, c;`,
				"server:9": "there is no server:9; this job's servers are 0 to 2",
				"worker:0": "perdure scale --leave 0",
			} {
				if code, out, errs := invoke(t, "drain", name, "--run", d.dir); code != exitUsage ||
					strings.Count(errs, "\n") != 1 || !strings.Contains(errs, says) {
					t.Errorf("drain %s ends with code %d: %s%s", name, code, out, errs)
				}
			}
			first := start(t, "drain", "c", "--run", d.dir)
			second, secondOut, secondErrs := invoke(t, "drain", "c", "--run", d.dir)
			code, out, errs := first.Wait()
			// The host may have ended before the slower of the two commands asks for it.
			const ended = `no host "c"`
			if !strings.Contains(out+secondOut, "c is drained") || code != 0 && !strings.Contains(errs, ended) ||
				second != 0 && !strings.Contains(secondErrs, ended) {
				t.Errorf("drain ends with code %d: %s%s; a second with code %d: %s%s", code, out, errs, second,
					secondOut, secondErrs)
			}
			d.ends("c", d.hosts["c"])
			says := d.hosts["c"].stdout.String()
			for _, want := range []string{`why="an operator"`, "worker-0 ended with code 0"} {
				if !strings.Contains(says, want) {
					t.Errorf("the host's output lacks %q: %s", want, says)
				}
			}
			d.same(false)
		})
	}
}

// TestDrainServer: one server of a job on one machine is drained. It ends without a replacement, and the job continues
// to the same model. The last server cannot be drained.
func TestDrainServer(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	p := start(t, append(endless(dir), "--recovery", "resend:20", "--grace", "1h")...)
	awaitStatus(t, dir, `training, clock [1-9]`)
	code, out, errs := invoke(t, "drain", "server:1", "--run", dir)
	if code != 0 || !strings.Contains(out, "server:1 is drained") {
		t.Errorf("drain ends with code %d: %s%s", code, out, errs)
	}
	awaitStatus(t, dir, `(?m)server:1 .* drained .*, gone$`)
	if code, out, errs = invoke(t, "drain", "server:0", "--run", dir); code == 0 ||
		!strings.Contains(errs, "take over the shards of server:0") || strings.Count(errs, "\n") != 1 {
		t.Errorf("draining the last server is not rejected: code %d: %s%s", code, out, errs)
	}
	awaitEvent(t, dir, "server:1 ended with code 4, and is not replaced", 1)
	if code, _, errs := p.Stop(); code != exitSignal {
		t.Errorf("exit code %d: %s", code, errs)
	}
	costsNothing(t, dir)
	resumesWell(t, dir)
}

// TestHostNotice: a host with a preemption notice ends gracefully when a signal or a command announces its machine's
// end, while another server dies. The job continues to the same model.
func TestHostNotice(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"a signal", "a command"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			taken := filepath.Join(t.TempDir(), "taken")
			d := newDrained(t, "resend:20", "--notice", "60s", "--notice-command", "test -e "+taken, "--signal-code",
				"143")
			dies := d.pid(d.server("b"))
			if how == "a signal" {
				d.hosts["c"].Signal(syscall.SIGTERM)
			} else {
				must(t, os.WriteFile(taken, nil, 0o666))
			}
			d.hosts["c"].Says("the host is ending within 1m0s")
			must(t, syscall.Kill(dies, syscall.SIGKILL))
			code, out, errs := d.hosts["c"].Wait()
			if code != 143 || strings.Contains(out, "notice expired") {
				t.Errorf("the host ended with code %d: %s%s", code, out, errs)
			}
			d.same(true)
		})
	}
}

// TestShortNotice: a notice that expires immediately ends a host's processes, and the host reports this. The command
// that requested the drain reports what was not handed over. The job continues according to its recovery strategy to
// the same model, and no update is lost.
func TestShortNotice(t *testing.T) {
	t.Parallel()
	for _, recovery := range []string{"chain:2", "resend:20"} {
		t.Run(recovery, func(t *testing.T) {
			t.Parallel()
			d := newDrained(t, recovery)
			began := time.Now()
			code, out, errs := invoke(t, "drain", "c", "--run", d.dir, "--notice", "1ms")
			if code == 0 != (errs == "") || code != 0 && (code != exitError || strings.Count(errs, "\n") != 1 ||
				!regexp.MustCompile(`server:\d: ended before other servers .*recovery `+recovery).MatchString(errs)) {
				t.Errorf("drain ends with code %d: %s%s", code, out, errs)
			}
			d.ends("c", d.hosts["c"])
			if took := time.Since(began); took > time.Minute {
				t.Errorf("the host ends after %v", took)
			}
			if says := d.hosts["c"].stdout.String(); !strings.Contains(says, "notice has expired") {
				t.Errorf("the host does not report that the notice has expired: %s", says)
			}
			d.same(true)
		})
	}
}

// TestNoticeUsage: invalid arguments yield a one-line error.
func TestNoticeUsage(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"invalid host name":                              {"--name", "a b"},
		"--notice -1s; choose a time":                    {"--notice=-1s"},
		fmt.Sprintf("--notice %v; choose", 48*time.Hour): {"--notice", "48h"},
	} {
		args = append([]string{"host", "--join", "127.0.0.1:1", "--dir", newFolder(t)}, args...)
		code, out, errs := invoke(t, args...)
		if code != exitUsage || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, says) {
			t.Errorf("host %q ends with code %d: %s%s", args, code, out, errs)
		}
	}
}
