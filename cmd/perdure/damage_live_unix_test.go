//go:build unix

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDamagedSnapshots damages the newest snapshots under a job that goes on, of each shard
// in another way, and kills the servers that wrote them: their successors use none that is
// damaged, and the model is the same.
func TestDamagedSnapshots(t *testing.T) {
	args := []string{"--recovery", "stateless", "--snapshot-mb", "1", "--clocks", "200"}
	want := one(t, args...)
	ways := slices.Sorted(maps.Keys(damages))
	const shards = 6
	for first := 0; first < len(ways); first += shards {
		if first > 0 && testing.Short() {
			break
		}
		dir := filepath.Join(t.TempDir(), "run")
		_, done := start(t, small(append(args, "--compute-ms", "10", "--out", dir)...)...)
		awaitSnapshots(t, dir, shards)
		m := awaitStatus(t, dir, `server:0 +pid (\d+) .*\n +server:1 +pid (\d+) `)
		for _, text := range m[1:] { // nobody writes a newer one now
			must(t, syscall.Kill(pidOf(t, text), syscall.SIGSTOP))
		}
		newest := awaitSnapshots(t, dir, shards)
		for i, path := range newest {
			damages[ways[(first+i)%len(ways)]](t, path)
		}
		for _, text := range m[1:] {
			must(t, syscall.Kill(pidOf(t, text), syscall.SIGKILL))
		}
		if code, out, errs := done(); code != 0 {
			t.Fatalf("exit code %d: %s%s%s", code, out, errs, logs(dir))
		}
		if s := summary(t, dir); *s.ModelSHA256 != want || *s.UpdatesLost != 0 {
			t.Errorf("damaged: %v: model %s, want %s; %d updates lost", ways[first:], *s.ModelSHA256, want,
				*s.UpdatesLost)
		}
		found := 0
		for server := range 2 {
			text, err := os.ReadFile(filepath.Join(dir, "logs", fmt.Sprintf("server-%d.log", server)))
			must(t, err)
			found += strings.Count(string(text), "cannot use a snapshot")
		}
		if found == 0 {
			t.Errorf("nobody came upon a damaged snapshot: %v", ways[first:])
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
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-look.C {
		names, err := filepath.Glob(filepath.Join(dir, "snapshots", "s*.snapshot"))
		must(t, err)
		slices.Sort(names) // by shard, then by position
		newest := map[string]string{}
		for _, name := range names {
			shard, _, _ := strings.Cut(filepath.Base(name), "-")
			newest[shard] = name
		}
		if len(newest) == shards {
			return slices.Sorted(maps.Values(newest))
		}
	}
	t.Fatalf("not every shard has a snapshot%s", logs(dir))
	return nil
}
