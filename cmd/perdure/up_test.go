package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// upJob is a perdure up whose output is kept, with two programs that count.
type upJob struct {
	cmd      *exec.Cmd
	out      string // the file with its output
	programs chan error
}

func startUp(t *testing.T, p counter, args ...string) *upJob {
	t.Helper()
	u := &upJob{out: filepath.Join(t.TempDir(), "out"), programs: make(chan error, 2)}
	file, err := os.Create(u.out)
	must(t, err)
	t.Cleanup(func() { file.Close() })
	u.cmd, _, _ = command(t, append([]string{"up", "--out", p.dir}, args...)...)
	u.cmd.Stdout, u.cmd.Stderr = file, file
	must(t, u.cmd.Start())
	p.coordinator = u.await(t, `coordinator is at (\S+):`)
	for range 2 {
		go func() { u.programs <- p.run(t) }()
	}
	return u
}

// await waits until the output has what matches, and returns the first part of it.
func (u *upJob) await(t *testing.T, pattern string) string {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for end := time.After(patience); ; {
		text, err := os.ReadFile(u.out)
		must(t, err)
		if m := regexp.MustCompile(pattern).FindSubmatch(text); m != nil {
			return string(m[1])
		}
		select {
		case <-look.C:
		case <-end:
			t.Fatalf("no %s in %s", pattern, text)
		}
	}
}

// TestUpStops: a job of the user's own programs that is stopped says where resuming
// starts, is refused by train with a word on what to use, goes on from there, and can be
// begun anew.
func TestUpStops(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	p := counter{dir: dir, calm: true, lossless: true, sums: make([]float32, 4)}
	u := startUp(t, p, "--workers", "2", "--shards", "4", "--consistency", "bsp", "--clocks", "100000000", "--grace",
		"1h")
	for clock := 0; clock < 20; {
		code, out, errs := invoke(t, "status", "--run", dir)
		m := regexp.MustCompile(`clock (\d+) of`).FindStringSubmatch(out)
		if code != 0 || m == nil {
			t.Fatalf("status: exit code %d: %s%s", code, out, errs)
		}
		clock, _ = strconv.Atoi(m[1])
		if clock > 0 && strings.Count(out, fmt.Sprintf(" pid %d ", os.Getpid())) != 2 {
			t.Errorf("the workers' process, %d, is not in the status:\n%s", os.Getpid(), out)
		}
	}
	if code, _, errs := invoke(t, "stop", "--run", dir); code != 0 {
		t.Fatalf("stop: exit code %d: %s", code, errs)
	}
	if code := exitCode(t, u.cmd.Wait()); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for range 2 {
		if err := <-u.programs; !errors.Is(err, perdure.ErrStopped) || errors.Is(err, perdure.ErrDone) {
			t.Errorf("a program ends with %v", err)
		}
	}
	cut := newestCut(t, dir)
	if at := u.await(t, `stopped at clock \d+; resuming starts at clock (\d+): perdure up --resume `+dir+
		"\n"); at != fmt.Sprint(cut) || cut < 20 {
		t.Errorf("resuming is said to start at clock %s; the newest checkpoint is of clock %d", at, cut)
	}

	for with, path := range map[string]string{"--resume": dir, "--from": filepath.Join(dir, "run.json")} {
		_, _, errs := invoke(t, "train", with, path)
		if want := "use: perdure up " + with + " " + path + "\n"; !strings.HasSuffix(errs, want) ||
			strings.Count(errs, "\n") != 1 {
			t.Errorf("train %s: %q does not end with %q", with, errs, want)
		}
	}
	if _, err := (&upCmd{From: filepath.Join(dir, "run.json")}).settings(); err != nil {
		t.Errorf("up --from: %v", err)
	}

	p.dir += "2"
	u = startUp(t, p, "--resume", dir, "--clocks", fmt.Sprint(cut+9), "--servers", "3")
	if code := exitCode(t, u.cmd.Wait()); code != 0 {
		t.Errorf("resumed: exit code %d%s", code, logs(p.dir))
	}
	if err := errors.Join(<-u.programs, <-u.programs); err != nil || p.sums[3] != float32(2*(cut+9)) {
		t.Errorf("resumed from clock %d: %v; the rows end as %v", cut, err, p.sums)
	}
	if code, out, errs := invoke(t, "status", "--run", p.dir); code != 0 ||
		!strings.Contains(out, fmt.Sprintf("done: %d clocks", cut+9)) ||
		!strings.Contains(out, "updates lost     0\n") {
		t.Errorf("status of an ended run: exit code %d: %s%s", code, out, errs)
	}
	if _, err := (&upCmd{
		Resume:   p.dir,
		jobFlags: jobFlags{given: map[string]bool{"seed": true}},
	}).settings(); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("up --resume --seed: %v", err)
	}
}
