package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/runs"
)

// TestRuns: for runs with and without a fault, each command reports what happened.
func TestRuns(t *testing.T) {
	t.Parallel()
	root := newFolder(t)
	calm, hit := filepath.Join(root, "calm"), filepath.Join(root, "hit")
	train := []string{
		"train", "--workers", "2", "--servers", "2", "--clocks", "60", "--recovery", "resend:20", "-q", "--out",
	}
	wantOut(t, 0, append(train, calm))
	wantOut(t, 0, append(train, hit, "--fault", "kill:server:0@clock:30"))

	_, out, _ := invoke(t, "runs", "ls", root, "--json", "--sort", "faults")
	var lines []runs.Line
	must(t, json.Unmarshal([]byte(out), &lines))
	if len(lines) != 2 || lines[0].Folder != calm || *lines[1].Faults != 1 || lines[1].State != runs.Done ||
		*lines[0].Model != *lines[1].Model || *lines[1].Lost != 0 {
		t.Errorf("unexpected list: %s", out)
	}
	wantOut(t, 0, []string{"runs", "show", hit}, "1 kill, 0 updates lost", "kill   server:0", "train loss")
	wantOut(t, 0, []string{"status", "--run", hit}, "1 kill, 0 updates lost", "kill   server:0")
	wantOut(t, 0, []string{"runs", "ls", calm, hit}, (*lines[0].Model)[:12])
	wantOut(t, 0, []string{"runs", "export", root, "--csv", filepath.Join(root, "runs.csv")}, "2 runs")
	wantOut(t, 0, []string{"report", root, "-o", filepath.Join(root, "all.html")}, "a report of 2 runs")
	wantOut(t, 0, []string{"report", hit, "-o", filepath.Join(root, "hit.md")}, "a report of 1 run and 4 pictures")
	wantOut(t, 0, []string{"runs", "rm", calm, hit}, "is deleted")
	if left, err := os.ReadDir(root); err != nil || len(left) != 7 {
		t.Errorf("unexpected files: %v (%v)", left, err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"runs", "ls", root}, "there is no run in"},
		{[]string{"runs", "show", root}, "is not a run's directory"},
		{[]string{"runs", "ls", filepath.Join(root, "gone")}, "gone does not exist"},
		{[]string{"runs", "rm", root}, "is not a run's directory"},
		{[]string{"report", root}, "there is no run in"},
	} {
		if code, _, errs := invoke(t, c.args...); code != exitUsage || !strings.Contains(errs, c.want) ||
			strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: exit code %d: %s", c.args, code, errs)
		}
	}
}
