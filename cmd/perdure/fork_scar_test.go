package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// steady returns the settings of a run that is slow enough to record everything that it saves.
func steady(more ...string) []string {
	return small(append([]string{"--compute-ms", "30"}, more...)...)
}

// savedRows describes, for each row of a running checkpoint, the saved values and the clock at which they were saved.
// It also returns the clock of the last save if that is the same in all shards, otherwise -1.
func savedRows(t *testing.T, in store.Store, m *checkpoint.Running) (text string, clock perdurelib.Clock) {
	t.Helper()
	var b strings.Builder
	for shard := range m.Shards {
		var parts []*table.Part
		for i, spec := range m.Tables {
			first, n := placement.Range(&spec, m.Job.Shards, perdurelib.ShardID(shard))
			parts = append(parts, table.NewUninitialized(spec, perdurelib.TableID(i), m.Job.Seed, first, n))
		}
		l, err := checkpoint.RestoreRows(in, m.Job.ID, perdurelib.ShardID(shard), m.Shards[shard].Files, parts)
		must(t, err)
		clocks := []perdurelib.Clock{0}
		for _, s := range l.Segments {
			clocks = append(clocks, s.Cut)
		}
		if last := clocks[len(clocks)-1]; shard == 0 {
			clock = last
		} else if clock != last {
			clock = -1
		}
		for i, p := range parts {
			for at := range p.Stored() {
				fmt.Fprintln(&b, shard, i, at, clocks[1+l.FileIndex[i][at]], p.Values(at, 1)[:p.Spec.Dim])
			}
		}
	}
	return b.String(), clock
}

// running returns the running checkpoints in a run's directory, newest first.
func running(t *testing.T, dir string) (in store.Store, all []*checkpoint.Running) {
	t.Helper()
	in = store.NewDir(disk.OS(), filepath.Join(dir, "checkpoint"))
	found, err := checkpoint.List(in)
	must(t, err)
	for i := range found.Checkpoints {
		if k := &found.Checkpoints[i]; k.Number > 0 {
			all = append(all, &k.Running)
		}
	}
	return in, all
}

// TestForkSelected: a fork under scar can start from a run that keeps a checkpoint of each clock at which scar would
// have saved. It starts with the same running checkpoint that a scar run has at that clock: the same rows with the same
// values. So a death then restores the same rows.
func TestForkSelected(t *testing.T) {
	t.Parallel()
	_, prefix := trained(t, steady("--recovery", "checkpoint:10", "--keep-checkpoints", "0", "--clocks", "35")...)
	for _, strategy := range brief(1, []string{"scar:40,1/4,priority", "scar:40,1/4,round", "scar:80,1/8,random"}) {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			_, dir := trained(t, steady("--recovery", strategy, "--keep-checkpoints", "0", "--clocks", "35")...)
			in, all := running(t, dir)
			at := map[perdurelib.Clock]string{}
			for _, m := range all {
				text, clock := savedRows(t, in, m)
				at[clock] = text
			}
			clock := slices.Max(slices.Collect(maps.Keys(at)))
			if clock < 20 {
				t.Fatalf("the newest clocks of running checkpoints are %v, want 20 or later",
					slices.Collect(maps.Keys(at)))
			}
			from := fmt.Sprintf("%s@%d", prefix, clock)
			fork := func(more ...string) []string {
				return append([]string{"train", "--quiet", "--fork", from, "--recovery", strategy}, more...)
			}
			s, to := trained(t, fork("--clocks", fmt.Sprint(clock+5))...)
			made, its := running(t, to)
			if text, last := savedRows(t, made, its[len(its)-1]); last != clock || text != at[clock] {
				t.Errorf("at clock %d the fork has saved\n%.2000s\nbut a run under %s has saved\n%.2000s", clock, text,
					strategy, at[clock])
			}
			if *s.ModelSHA256 != one(t, "--clocks", fmt.Sprint(clock+5), "--recovery", "none") {
				t.Error("the model of an undisturbed fork differs")
			}
			kill := []string{
				"--fault", fmt.Sprintf("kill:server:0@clock:%d", clock+5), "--clocks", fmt.Sprint(clock + 8),
			}
			lost, _ := trained(t, fork(kill...)...)
			would, _ := trained(t, steady(append(kill, "--recovery", strategy)...)...)
			a, b := lost.Saving.Rows, would.Saving.Rows
			late := b.AgeClocks > a.AgeClocks // its last files were not recorded when its server died
			if !late && (a.Restored != b.Restored || a.Initial != b.Initial) || a.Initial+a.Restored == 0 {
				t.Errorf("after a server's death the fork restores %+v and the scar run %+v, under %s", a, b, strategy)
			}
		})
	}
	p := start(t, "train", "--fork", prefix+"@20", "--recovery", "scar:8,1/4", "--clocks", "22", "--out",
		newFolder(t))
	p.Says("all rows count as saved at clock 20: the earlier saves of scar:8,1/4,priority are not reconstructed " +
		"because " +
		"no checkpoint of clock 2 is kept")
	p.Wait()
}
