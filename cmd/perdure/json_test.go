package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/logserver"
)

// TestJSON: with --json, commands print JSON and nothing else.
func TestJSON(t *testing.T) {
	t.Parallel()
	_, dir := trained(t, small("--clocks", "20", "--recovery", "checkpoint:10")...)
	for _, args := range [][]string{
		{"version"},
		{"workloads"},
		{"data"},
		{"runs", "ls", dir},
		{"runs", "show", dir},
		{"status", dir},
		{"status", "--run", dir},
		{"checkpoint", "ls", dir},
		{"checkpoint", "show", dir},
		{"checkpoint", "verify", dir},
	} {
		code, out, errs := invoke(t, append(args, "--json")...)
		var document any
		if err := json.Unmarshal([]byte(out), &document); err != nil || code != 0 || errs != "" {
			t.Errorf("%v: exit code %d, %v, %q\n%s", args, code, err, errs, out)
		}
	}
}

// toldAsJSON runs a command that must print exactly one document, and decodes it.
func toldAsJSON(t *testing.T, code int, document any, args ...string) {
	t.Helper()
	got, out, errs := invoke(t, append(args, "--json")...)
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(document); err != nil || d.More() || got != code || (code == 0) != (errs == "") {
		t.Errorf("%v: exit code %d, want %d; %v; %q\n%s", args, got, code, err, errs, out)
	}
}

// TestJSONOfWhatIsDone: commands that write or delete files report them in a document.
func TestJSONOfWhatIsDone(t *testing.T) {
	t.Parallel()
	s, dir := trained(t, small("--clocks", "20", "--recovery", "checkpoint:10", "--keep-checkpoints", "0")...)
	to := t.TempDir()
	type exported struct {
		Clock            int64
		Job, File, Notes any
		Model            string `json:"model_sha256"`
	}
	for i, args := range [][]string{{"export", dir}, {"checkpoint", "export", dir}} {
		var e exported
		file := filepath.Join(to, fmt.Sprint(i))
		toldAsJSON(t, 0, &e, append(args, "-o", file)...)
		if e.Clock != 20 || e.Model != *s.ModelSHA256 || e.File != file || e.Job == "" || e.Job == nil {
			t.Errorf("%v: %+v", args, e)
		}
	}
	var p struct {
		DryRun      bool `json:"dry_run"`
		Kept        []struct{ Clock, Whole, Defects any }
		Checkpoints int
		Files       []string
		Bytes       int64
	}
	toldAsJSON(t, 0, &p, "checkpoint", "prune", dir, "--keep", "1", "--dry-run")
	if dry := p; !dry.DryRun || len(dry.Kept) != 1 || dry.Checkpoints == 0 || len(dry.Files) == 0 || dry.Bytes == 0 {
		t.Errorf("prune --dry-run: %+v", dry)
	}
	was := p.Files
	toldAsJSON(t, 0, &p, "checkpoint", "prune", dir, "--keep", "1")
	if p.DryRun || !slices.Equal(p.Files, was) {
		t.Errorf("prune: %+v, but --dry-run listed %v", p, was)
	}
	toldAsJSON(t, 0, &p, "checkpoint", "prune", dir, "--keep", "1")
	if p.Files == nil || len(p.Files) != 0 || p.Checkpoints != 0 {
		t.Errorf("prune without anything to delete: %+v", p)
	}

	var w struct {
		Files []struct {
			File, Of string
			Rows     int
		}
		Notes []string
	}
	toldAsJSON(t, 0, &w, "runs", "export", dir, "--csv", filepath.Join(to, "runs.csv"))
	if len(w.Files) != 1 || w.Files[0].Rows != 1 || w.Files[0].Of != "runs" || len(w.Notes) != 0 {
		t.Errorf("runs export: %+v", w)
	}
	type removed struct {
		Folder, State, Store string
		Deleted              bool
		Bytes                int64
		Left                 []string
	}
	for _, dry := range []bool{true, false} {
		var r []removed
		toldAsJSON(t, 0, &r, "runs", "rm", dir, fmt.Sprintf("--dry-run=%t", dry))
		if len(r) != 1 || r[0].Folder != dir || r[0].Deleted == dry || r[0].Bytes == 0 {
			t.Errorf("dry %t: %+v", dry, r)
		}
	}
}

// TestJSONOfSomeRemoved: if an argument is not a run, the document still reports the runs that were deleted.
func TestJSONOfSomeRemoved(t *testing.T) {
	t.Parallel()
	_, dir := trained(t, small("--clocks", "5")...)
	var r []map[string]any
	toldAsJSON(t, exitUsage, &r, "runs", "rm", dir, t.TempDir())
	if len(r) != 1 || r[0]["deleted"] != true {
		t.Errorf("%v", r)
	}
}

// TestJSONOfRunningJob: commands to a running job report their result in a document.
func TestJSONOfRunningJob(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	job := atClock30(t, dir, "--compute-ms", "20")
	var a struct {
		Accepted string
		Changes  []struct {
			Worker int
			Joins  bool
			Clock  int64
		}
	}
	toldAsJSON(t, 0, &a, "fault", "--run", dir, "slow*2:worker:0@10h")
	if a.Accepted == "" {
		t.Errorf("fault: %+v", a)
	}
	a.Accepted = ""
	toldAsJSON(t, 0, &a, "scale", "--run", dir, "--leave", "2")
	if len(a.Changes) != 1 || a.Changes[0].Worker != 2 || a.Changes[0].Joins || a.Changes[0].Clock < 1 {
		t.Errorf("scale: %+v", a)
	}
	wantOut(t, 0, []string{"stop", dir})
	job.Wait()
}

// TestJSONOfLog: dump and verify print JSON, also for a damaged log.
func TestJSONOfLog(t *testing.T) {
	t.Parallel()
	run := t.TempDir()
	s, err := logserver.Serve(filepath.Join(run, "log"), logserver.ServeOptions{})
	must(t, err)
	l, err := updatelog.Dial(t.Context(), s.URL(),
		updatelog.DialOptions{Options: updatelog.Options{Job: "first", Shards: 2}})
	must(t, err)
	tick := wire.Append(nil, &wire.Frame{Header: wire.Header{Kind: wire.KindTick, Slot: 3, Clock: 17, Incarnation: 1}})
	for _, e := range [][]byte{tick, []byte("something else to be found in the file")} {
		done := make(chan error, 1)
		must(t, l.Append(t.Context(), 1, [][]byte{e}, func(_ updatelog.Position, err error) { done <- err }))
		must(t, <-done)
	}
	must(t, l.Close())

	type frame struct {
		Kind                                              string
		Slot, Incarnation, Clock, Part, Parts, Generation int
		Last                                              int `json:"last_clock"`
		Bytes                                             int
	}
	var dump []struct {
		Position, Group, Part, Parts, Bytes int
		Stored, Producer                    string
		Entries                             []struct {
			Resume, Bytes int
			Frames        []frame
		}
	}
	toldAsJSON(t, 0, &dump, "log", "dump", run, "--shard", "1")
	want := frame{Kind: "tick", Slot: 3, Incarnation: 1, Clock: 17, Last: 17, Part: 1, Parts: 1}
	if len(dump) != 2 || len(dump[0].Entries) != 1 || !slices.Equal(dump[0].Entries[0].Frames, []frame{want}) ||
		len(dump[1].Entries[0].Frames) != 0 {
		t.Errorf("dump: %+v", dump)
	}
	must(t, s.Close())
	var found []struct {
		Job, Damage                    string
		Shard, Records, Entries, Bytes int
		Whole                          bool
	}
	toldAsJSON(t, 0, &found, "log", "verify", run)
	if len(found) != 2 || !found[1].Whole || found[1].Entries != 2 {
		t.Errorf("verify: %+v", found)
	}
	changeByte(t, filepath.Join(run, "log"), "something else")
	toldAsJSON(t, 1, &found, "log", "verify", run)
	if found[1].Whole || found[1].Records != 1 || !strings.Contains(found[1].Damage, "is damaged") {
		t.Errorf("verify of a damaged log: %+v", found)
	}
}

// TestRunIsNamedOnce: status and stop accept a run's directory as an argument or with --run, but not both.
func TestRunIsNamedOnce(t *testing.T) {
	t.Parallel()
	wantRefused(t, exitUsage, "the run is given twice", "status", "a", "--run", "b")
	wantRefused(t, exitUsage, "the run is given twice", "stop", "a", "--run", "b")
}
