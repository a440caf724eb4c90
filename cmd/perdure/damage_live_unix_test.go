//go:build unix

package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestDamagedSnapshots damages the newest snapshot of each shard in a running job, each in another way, and kills the
// servers that wrote them. Their replacements use none of the damaged ones, and the model is the same.
func TestDamagedSnapshots(t *testing.T) {
	t.Parallel()
	args := []string{"--recovery", "stateless", "--log", "file:?snapshot-mb=1", "--clocks", "200"}
	want := one(t, args...)
	ways := slices.Sorted(maps.Keys(damages))
	const shards = 6
	for first := 0; first < len(ways); first += shards {
		if first > 0 && testing.Short() {
			break
		}
		dir := newFolder(t)
		job := start(t, small(append(args, "--compute-ms", "10", "--fault", stall(100), "--out", dir)...)...)
		awaitSnapshots(t, dir, shards)
		m := awaitStatus(t, dir, `server:0 +pid (\d+) .*\n +server:1 +pid (\d+) `)
		for _, text := range m[1:] { // no server writes a newer snapshot now
			must(t, syscall.Kill(pidOf(t, text), syscall.SIGSTOP))
		}
		newest := awaitSnapshots(t, dir, shards)
		for i, path := range newest {
			damages[ways[(first+i)%len(ways)]](t, path)
		}
		for _, text := range m[1:] {
			must(t, syscall.Kill(pidOf(t, text), syscall.SIGKILL))
		}
		t.Logf("damaged: %v", ways[first:])
		unstall(t, dir)
		s := job.succeeds(dir)
		sameModel(t, s, want, dir)
		found := 0
		for server := range 2 {
			log := fileOf(t, dir, "logs", fmt.Sprintf("server-%d.log", server))
			found += strings.Count(log, "cannot use a snapshot")
		}
		if found == 0 {
			t.Errorf("no server reported a damaged snapshot: %v", ways[first:])
		}
	}
}

func pidOf(t *testing.T, text string) int {
	t.Helper()
	pid, err := strconv.Atoi(text)
	must(t, err)
	return pid
}

// awaitSnapshots returns the newest snapshot of each shard, once all have one.
func awaitSnapshots(t *testing.T, dir string, shards int) []string {
	t.Helper()
	var newest map[string]string
	await(t, func() bool {
		newest = map[string]string{}
		names, err := filepath.Glob(filepath.Join(dir, "snapshots", "s*.snapshot"))
		must(t, err)
		slices.Sort(names) // by shard, then by position
		for _, name := range names {
			shard, _, _ := strings.Cut(filepath.Base(name), "-")
			newest[shard] = name
		}
		return len(newest) == shards
	}, func() string { return "not every shard has a snapshot" + logs(dir) })
	return slices.Sorted(maps.Values(newest))
}
