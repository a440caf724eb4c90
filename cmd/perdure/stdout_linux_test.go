package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestFullStdout: a command whose output cannot be written reports this in one line and does not exit with 0. It
// completes its work anyway.
func TestFullStdout(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	out, run := newFolder(t), newFolder(t)
	start(t, small("--clocks", "1000000", "--recovery", "stateless", "--out", run)...)
	awaitStatus(t, run, `training, clock [1-9]`)
	for _, args := range [][]string{
		small("--clocks", "5", "--out", out),
		{"version"},
		{"workloads"},
		{"data"},
		{"completion", "-c", "bash"},
		{"--help"},
		{"train", "--help"},
		{"status", "--run", run},
		{"fault", "kill:worker:0@5000s", "--run", run},
		{"scale", "3", "--run", run},
		{"log", "verify", run},
		{"log", "dump", run, "--shard", "0", "--most", "1"},
		{"up", "--workers", "1", "--clocks", "1", "--out", out + "2"},
	} {
		p := command(t, args...)
		p.Stdout = full
		p.Start()
		if args[0] == "up" {
			awaitStatus(t, out+"2", `starting`)
			_, _, _ = invoke(t, "stop", "--run", out+"2")
		}
		code, _, stderr := p.Wait()
		want := regexp.MustCompile(`perdure: cannot write to standard output: no space left on device; the ` +
			`output is incomplete\n$`)
		if code == 0 || !want.MatchString(stderr) || strings.Count(stderr, "cannot write") != 1 {
			t.Errorf("perdure %s: exit code %d and %q", strings.Join(args, " "), code, stderr)
		}
	}
	if s := summary(t, out); s.Clocks != 5 {
		t.Errorf("the run finished %d clocks, want 5", s.Clocks)
	}
}
