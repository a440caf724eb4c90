package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
)

// startUp starts perdure up in a counter's directory, and both programs.
func startUp(t *testing.T, p *counter, args ...string) (u *process, programs func() []error) {
	t.Helper()
	u, p.coordinator = up(t, p.dir, args...)
	return u, p.both(t)
}

// TestUpStops: a stopped job of user programs reports where it resumes. perdure train rejects it and names the right
// command. perdure up resumes, forks and repeats it.
func TestUpStops(t *testing.T) {
	dir := newFolder(t)
	p := &counter{dir: dir, calm: true, lossless: true, sums: make([]float32, 4)}
	u, programs := startUp(t, p, "--workers", "2", "--shards", "4", "--consistency", "bsp", "--clocks", "100000000",
		"--grace", "1h")
	for clock := 0; clock < 20; {
		code, out, errs := invoke(t, "status", "--run", dir)
		m := regexp.MustCompile(`clock (\d+) of`).FindStringSubmatch(out)
		if code != 0 || m == nil {
			t.Fatalf("status: exit code %d: %s%s", code, out, errs)
		}
		clock, _ = strconv.Atoi(m[1])
		if clock > 0 && strings.Count(out, fmt.Sprintf(" pid %d ", os.Getpid())) != 2 {
			t.Errorf("the status lacks the workers' process %d:\n%s", os.Getpid(), out)
		}
	}
	wantOut(t, 0, []string{"stop", "--run", dir})
	if code, _, _ := u.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, err := range programs() {
		if !errors.Is(err, perdure.ErrStopped) || errors.Is(err, perdure.ErrDone) {
			t.Errorf("a program ended with %v", err)
		}
	}
	cut := newestCut(t, dir)
	if at := u.Says(`stopped at clock \d+; resuming starts at clock (\d+): perdure up --resume ` + dir +
		"$")[1]; at != fmt.Sprint(cut) || cut < 20 {
		t.Errorf("the output says that resuming starts at clock %s, but the newest checkpoint is of clock %d", at, cut)
	}

	for with, path := range map[string]string{"--resume": dir, "--from": filepath.Join(dir, "run.json")} {
		wantRefused(t, exitUsage, regexp.QuoteMeta("use: perdure up "+with+" "+path)+"\n$", "train", with, path)
	}
	own := settings.Flags{Workload: settings.OwnWorkload}
	if _, err := own.Repeat(filepath.Join(dir, "run.json")); err != nil {
		t.Errorf("up --from: %v", err)
	}
	own.Given, own.Shape.Workers = map[string]bool{"workers": true}, 3 // launch always gives a number
	if _, err := own.Repeat(filepath.Join(dir, "run.json")); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("up --from --workers 3 for a run of 2: %v", err)
	}

	p.dir += "2"
	u, programs = startUp(t, p, "--resume", dir, "--clocks", fmt.Sprint(cut+9), "--servers", "3", "--workers", "2")
	if code, _, _ := u.Wait(); code != 0 {
		t.Errorf("resumed: exit code %d%s", code, logs(p.dir))
	}
	if err := errors.Join(programs()...); err != nil || p.sums[3] != float32(2*(cut+9)) {
		t.Errorf("resumed from clock %d: %v; the final rows are %v", cut, err, p.sums)
	}
	wantOut(t, 0, []string{"status", "--run", p.dir}, fmt.Sprintf("done: %d clocks in ", cut+9), "updates lost     0\n")
	wantRefused(t, exitUsage, "use: perdure up --fork", "train", "--fork", dir)
	p.dir += "3"
	u, programs = startUp(t, p, "--fork", fmt.Sprintf("%s@%d", dir, cut), "--clocks", fmt.Sprint(cut+9), "--recovery",
		"chain:2")
	if code, _, _ := u.Wait(); code != 0 {
		t.Errorf("forked: exit code %d%s", code, logs(p.dir))
	}
	if err := errors.Join(programs()...); err != nil || p.sums[3] != float32(2*(cut+9)) {
		t.Errorf("forked from clock %d: %v; the final rows are %v", cut, err, p.sums)
	}
	seed := settings.Flags{Workload: settings.OwnWorkload, Given: map[string]bool{"seed": true}}
	if _, err := seed.Resume(p.dir); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("up --resume --seed: %v", err)
	}
}
