package main

import (
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestBenchReplay holds what is written against what is printed, against what was pushed,
// and against itself.
func TestBenchReplay(t *testing.T) {
	left := cleanBench(t)
	file := filepath.Join(t.TempDir(), "bench.json")
	code, out, errs := invoke(t, "bench", "recovery", "--measure", "replay", "--rounds", "1", "--mb", "6", "--shards", "2", "--json", file)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	left()
	text, err := os.ReadFile(file)
	must(t, err)
	var results []recoveryResult
	must(t, json.Unmarshal(text, &results))
	if len(results) != 1 {
		t.Fatalf("measured %+v", results)
	}
	r := results[0]
	if !strings.Contains(out, r.replayLine()+"\n") {
		t.Errorf("%s is not printed:\n%s", r.replayLine(), out)
	}
	if r.Recovery != "stateless" || r.Servers != 1 || r.Workers != 1 || r.Shards != 2 || r.MB != 6 {
		t.Errorf("measured with other settings: %+v", r)
	}
	if pushed := 2 * 4.194304; *r.ReplayMB < pushed || *r.ReplayMB > 1.01*pushed {
		t.Errorf("%g MB were read again, %g pushed", *r.ReplayMB, pushed)
	}
	if *r.ReplayEmptyMs <= 0 || *r.ReplayServingMs <= 0 || *r.ReplayBareMBPerS <= 0 {
		t.Errorf("impossible figures: %s", r.replayLine())
	}
	switch longer := *r.ReplayServingMs - *r.ReplayEmptyMs; {
	case longer > 0:
		if want := *r.ReplayMB / longer * 1e3; r.ReplayMBPerS == nil || math.Abs(*r.ReplayMBPerS-want) > 1e-6*want {
			t.Errorf("want %g MB/s: %s", want, r.replayLine())
		}
	case r.ReplayMBPerS != nil:
		t.Errorf("a rate of what took no time: %s", r.replayLine())
	}
}

// TestReplayed: a rate is that of the time which reading took longer than nothing, and
// there is none if in some round it took no longer.
func TestReplayed(t *testing.T) {
	r := &recoveryRun{benchRecoveryCmd: &benchRecoveryCmd{Shards: 4}}
	const ms = time.Millisecond
	rounds := []rereading{
		{empty: 100 * ms, serving: 1100 * ms, bytes: 300e6, bare: 500 * ms},
		{empty: 120 * ms, serving: 1620 * ms, bytes: 300e6, bare: 1000 * ms},
		{empty: 110 * ms, serving: 610 * ms, bytes: 300e6, bare: 600 * ms},
	}
	res := r.replayed(1, rounds)
	want := "1100.0 ms (610.0 to 1620.0), with nothing to read 110.0 (100.0 to 120.0)  300.0 MB, 300 MB/s (200 to 600), 0.67 of a bare reader's 500"
	if got := res.replayLine(); !strings.HasSuffix(got, want) || res.MB != replayMB {
		t.Errorf("summed up as %s; want %s", got, want)
	}
	rounds[1].serving = rounds[1].empty
	res = r.replayed(1, rounds)
	if got, want := res.replayLine(), "no MB/s, for a round took no longer than with nothing to read; a bare reader has 500"; !strings.HasSuffix(got, want) || res.ReplayMBPerS != nil || res.ReplayOfBare != nil {
		t.Errorf("summed up as %s; want %s", got, want)
	}
}

// TestReplayReadsWhole: figures of a shard that has a snapshot are refused.
func TestReplayReadsWhole(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "snapshots")
	shards := []perdurelib.ShardID{0, 3}
	must(t, readWhole(folder, shards))
	must(t, os.Mkdir(folder, 0o777))
	for _, shard := range []perdurelib.ShardID{1, 3} {
		about := &checkpoint.Snapshot{Job: "job", Shard: shard, Epoch: 1, Position: 7}
		_, err := checkpoint.WriteSnapshot(disk.OS(), folder, about, func(io.Writer) error { return nil })
		must(t, err)
		if err := readWhole(folder, shards); (err != nil) != (shard == 3) || err != nil && !strings.Contains(err.Error(), "shard 3 has a snapshot") {
			t.Errorf("with a snapshot of shard %d: %v", shard, err)
		}
	}
}

// TestReplayPlan: the log of a job has room for all that is pushed before a fifth of it is
// read, one server is taken unless another number is given, which other strategies need
// not have use for, and a disk without that room is refused before anything is begun.
func TestReplayPlan(t *testing.T) {
	b := &benchRecoveryCmd{Measure: []string{"replay"}, Rounds: 1, Clocks: 1, Batch: 1, Workload: "softmax", Servers: 3, Workers: 2, Shards: 2, Consistency: "bsp"}
	for _, c := range []struct{ given, mb, servers, pushes int }{{0, 0, 1, 120}, {0, 4, 1, 1}, {2, 5, 2, 2}} {
		if b.MB, b.Servers, b.given = c.mb, 3, nil; c.given > 0 {
			b.Servers, b.given = c.given, map[string]bool{"servers": true}
		}
		if c.mb > 0 { // 500 MB take more than any disk may have
			p, err := b.plan()
			must(t, err)
			if len(p.measures) != 1 || !p.measures["replay"] {
				t.Errorf("measures %v", p.measures)
			}
		}
		s, err := b.replaySettings()
		must(t, err)
		if s.Job.Servers != c.servers || s.Job.Slots != 1 || b.replayPushes() != c.pushes {
			t.Errorf("%d servers, %d workers, %d pushes; want %d, 1, %d", s.Job.Servers, s.Job.Slots, b.replayPushes(), c.servers, c.pushes)
		}
		if read := int64(c.pushes) * 4 << 20; s.LogBytes() < 5*read*11/10 || s.SnapshotBytes() < read*11/10 {
			t.Errorf("a log of %d bytes, snapshots after %d: too small for %d", s.LogBytes(), s.SnapshotBytes(), read)
		}
	}
	folder := t.TempDir()
	free, known := disk.Free(folder)
	if !known || free>>20/settings.LeastLogMB > 30_000 {
		t.Skip("the disk has room for any log")
	}
	b.Shards = int(free>>20/settings.LeastLogMB) + 1000
	if err := b.checkReplay(folder); err == nil || !strings.Contains(err.Error(), "are free in "+folder) {
		t.Errorf("a log that is too large for the disk is taken: %v", err)
	}
}
