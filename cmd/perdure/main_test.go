package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
)

// asCommand makes this test binary the perdure command: the tests run it, and
// its own processes inherit the variable, so that every role is this binary.
const asCommand = "PERDURE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	name := os.Getenv(asProgram)
	if name != "" || os.Getenv(asCommand) != "" {
		if err := errors.Join(supervisor.DieWithParent(), hangLoop()); err != nil {
			fmt.Fprintln(os.Stderr, "perdure:", err)
			os.Exit(exitError)
		}
		if name != "" {
			os.Exit(runProgram(name))
		}
		os.Exit(run(os.Args[1:]))
	}
	flag.Parse()
	os.Exit(withData(m.Run))
}

// pictures is a folder with a small data set: every process of every job loads
// one, which takes long under the race detector.
var pictures string

func withData(run func() int) int {
	dir, err := os.MkdirTemp("", "perdure-test-")
	if err == nil {
		defer os.RemoveAll(dir)
		pictures, err = dir, writePictures(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitError
	}
	return run()
}

// writePictures writes a part of the embedded set as idx files.
func writePictures(dir string) error {
	all, err := dataset.Embedded()
	if err != nil {
		return err
	}
	for name, split := range map[string]*dataset.Split{"train": &all.Train, "t10k": &all.Test} {
		n := split.N / 20
		images := binary.BigEndian.AppendUint32(nil, 0x803)
		for _, v := range []int{n, 1, split.Dim} {
			images = binary.BigEndian.AppendUint32(images, uint32(v))
		}
		for i := range n {
			images = append(images, split.Image(i)...)
		}
		labels := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 0x801), uint32(n))
		labels = append(labels, split.Labels[:n]...)
		err := errors.Join(
			os.WriteFile(filepath.Join(dir, name+"-images-idx3-ubyte"), images, 0o666),
			os.WriteFile(filepath.Join(dir, name+"-labels-idx1-ubyte"), labels, 0o666))
		if err != nil {
			return err
		}
	}
	return nil
}

// patience is how long any command of a test may take before it is killed.
const patience = 3 * time.Minute

// command prepares a perdure command line.
func command(t testing.TB, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "GORACE=atexit_sleep_ms=0")
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

// invoke runs a command line to its end.
func invoke(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd, out, errs := command(t, args...)
	code = exitCode(t, cmd.Run())
	return code, out.String(), errs.String()
}

func exitCode(t testing.TB, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatal(err)
	return -1
}

// small are the settings of a job that takes a moment: every test that compares
// models uses the same.
func small(more ...string) []string {
	return append([]string{
		"train", "--quiet", "--consistency", "bsp", "--recovery", "checkpoint:10", "--clocks", "60",
		"--batch", "8", "--workers", "3", "--servers", "2", "--shards", "6", "--seed", "7", "--eval-every", "0",
		"--data", pictures,
	}, more...)
}

// trained runs a training job that must succeed.
func trained(t testing.TB, args ...string) (s rundir.Summary, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "run")
	code, out, errs := invoke(t, append(args, "--out", dir)...)
	if code != 0 {
		t.Fatalf("perdure %s: exit code %d\n%s%s%s", strings.Join(args, " "), code, out, errs, logs(dir))
	}
	checkRaces(t, dir)
	return summary(t, dir), dir
}

// checkRaces fails where the race detector has found something in a process of a
// job: its report is in the process's log, and the job may have succeeded.
func checkRaces(t testing.TB, dir string) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(dir, "logs", "*")) // the pattern is right
	for _, f := range files {
		text, _ := os.ReadFile(f) // what cannot be read holds no report
		if _, report, found := strings.Cut(string(text), "WARNING: DATA RACE\n"); found {
			t.Errorf("%s: data race\n%s", filepath.Base(f), report[:min(6000, len(report))])
		}
	}
}

func summary(t testing.TB, dir string) (s rundir.Summary) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	if s.ModelSHA256 == nil || s.UpdatesLost == nil || s.ClocksRedone == nil {
		t.Fatalf("the summary lacks what a finished run knows: %s", b)
	}
	return s
}

// logs are the last lines of every process, for a test that fails.
func logs(dir string) string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(dir, "logs", "*")) // the pattern is right
	for _, f := range files {
		text, _ := os.ReadFile(f) // what cannot be read is not shown
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "-- %s\n%s\n", filepath.Base(f), strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
	return b.String()
}

// one is the model of the small job with the given flags, trained undisturbed
// once for all tests.
func one(t testing.TB, more ...string) string {
	t.Helper()
	kind := strings.Join(more, " ")
	if undisturbed[kind] == "" {
		s, _ := trained(t, small(more...)...)
		undisturbed[kind] = *s.ModelSHA256
	}
	return undisturbed[kind]
}

var undisturbed = map[string]string{} // of one; tests that use it are not parallel
