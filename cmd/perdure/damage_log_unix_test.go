//go:build unix

package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// The possible outcomes for a job whose log was damaged. Either it ends with the model of an undisturbed job, or it
// ends with a one-line error that names the damaged stream or file and says what to do. Both outcomes are valid in
// these cases: the last record may not have been acknowledged, so its sender resends it; the running log process may
// still have in memory what the file has lost; or a replacement server may recreate a stream that the log no longer
// knows, over its old records.
const (
	goesOn  = "goes on"
	refused = "is refused"
	either  = "goes on or is refused"
)

// logDamage is one way to damage a stream's file in a running job. The killed processes must read the file when they
// restart.
type logDamage struct {
	file, how string
	killed    []string // of log, server, worker
	want      string
}

// shortLogDamages always run. They cover detection by an appender, by a process that reads the stream again, and by the
// log itself.
var shortLogDamages = []logDamage{
	{"msgs/1.blk", "cut to half", []string{"log"}, refused},
	{"msgs/1.blk", "a bit flipped in the middle", []string{"log", "server"}, refused},
	{"msgs/1.blk", "a named pipe", []string{"log"}, refused},
}

// logURL is the path of the file with the log's address, relative to a stream's directory.
const logURL = "../../../../url"

// logDamages returns all other cases. A run tests every fifth, starting from one that -storm.seed selects.
func logDamages() (all []logDamage) {
	for _, how := range slices.Sorted(maps.Keys(allDamages())) {
		records, url := refused, goesOn // the file is rewritten, unless something else has replaced it
		switch {
		case how == "a byte longer": // looks like a record whose write has just started
			records = goesOn
		case how == "cut by a byte" || strings.HasSuffix(how, "at the end"):
			records = either
		case strings.HasPrefix(how, "a link") || how == "a named pipe" || how == "a folder":
			url = refused
		}
		for _, killed := range [][]string{{"log"}, {"log", "server"}, {"log", "server", "worker"}} {
			all = append(all, logDamage{"msgs/1.blk", how, killed, records})
		}
		all = append(all, logDamage{"msgs/1.blk", how, []string{"server"}, either})
		if how == "an older one" || how == "another shard's" {
			continue
		}
		for _, file := range []string{"meta.inf", "meta.sum"} {
			all = append(all, logDamage{file, how, []string{"log"}, refused})
		}
		all = append(all, logDamage{logURL, how, []string{"log"}, url})
		all = append(all, logDamage{"meta.inf", how, []string{"log", "server"}, either})
	}
	return all
}

// allDamages returns the usual damages and those that replace the file with another intact one.
func allDamages() map[string]func(t *testing.T, path string) {
	all := maps.Clone(damages)
	all["filled with zeros"] = func(t *testing.T, path string) {
		info, err := os.Stat(path)
		must(t, err)
		must(t, os.WriteFile(path, make([]byte, info.Size()), 0o666))
	}
	all["another shard's"] = func(t *testing.T, path string) {
		copyOver(t, strings.Replace(path, "-0/", "-1/", 1),
			path)
	}
	all["an older one"] = func(t *testing.T, path string) { copyOver(t, path+older, path) }
	return all
}

// older is the suffix of a file's earlier copy.
const older = ".older"

func copyOver(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, b, 0o666))
}

// TestDamagedLog damages the log of a running job, then kills processes so that the damaged file must be read.
func TestDamagedLog(t *testing.T) {
	t.Parallel()
	all := shortLogDamages
	if !testing.Short() {
		all = slices.Clone(all)
		for i, d := range logDamages() {
			if uint64(i)%5 == *stormSeed%5 {
				all = append(all, d)
			}
		}
	}
	for _, d := range all {
		t.Run(d.file+", "+d.how+", killed "+strings.Join(d.killed, "+"), func(t *testing.T) { damageLog(t, d) })
	}
}

func damageLog(t *testing.T, d logDamage) {
	args := []string{"--recovery", "stateless", "--shards", "2", "--clocks", "300"}
	dir := newFolder(t)
	job := start(t, small(append(args, "--compute-ms", "10", "--out", dir)...)...)
	awaitStatus(t, dir, `clock [1-9][0-9]* of`)
	streams, err := filepath.Glob(filepath.Join(dir, "log", "jetstream", "*", "streams", "*-0"))
	must(t, err)
	if len(streams) != 1 {
		t.Fatalf("streams %v", streams)
	}
	path := filepath.Join(streams[0], filepath.FromSlash(d.file))
	if d.how == "an older one" {
		copyOver(t, path, path+older)
	}
	places := []string{"log", "server:0", "server:1", "worker:0", "worker:1", "worker:2"}
	m := awaitStatus(t, dir, `(?s)clock (?:[2-9]\d|\d{3}) of.* `+strings.Join(places, ` +pid (\d+) .* `)+
		` +pid (\d+) `)[1:]
	for _, text := range m { // no process reads or writes now
		must(t, syscall.Kill(pidOf(t, text), syscall.SIGSTOP))
	}
	allDamages()[d.how](t, path)
	for i, text := range m {
		role, _, _ := strings.Cut(places[i], ":")
		end := syscall.SIGCONT
		if slices.Contains(d.killed, role) {
			end = syscall.SIGKILL
		}
		must(t, syscall.Kill(pidOf(t, text), end))
	}
	code, out, errs := job.Wait()
	t.Logf("exit code %d: %s", code, errs)
	switch {
	case code == 0 && d.want != refused:
		s := summary(t, dir)
		sameModel(t, s, one(t, args...), dir)
	case code == exitError && d.want != goesOn:
		named := strings.Contains(errs, filepath.Base(streams[0])) || strings.Contains(errs, path) ||
			strings.Contains(errs, "the update log has lost some")
		remedy := strings.Contains(errs, "the job again") || strings.Contains(errs, "start a new job")
		if !named || strings.Count(errs, "\n") != 1 || !remedy {
			t.Errorf("the error is not one line that names the damage and the remedy: %q", errs)
		}
	default:
		t.Errorf("exit code %d; the job %s: %s%s%s", code, d.want, out, errs, logs(dir))
	}
	for _, text := range []string{errs, logs(dir)} {
		if strings.Contains(text, "goroutine ") || strings.Contains(text, "panic") {
			t.Errorf("a process panicked: %s", text)
		}
	}
	checkRaces(t, dir)
}
