package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestBenchRecovery measures a little of everything, and holds what it writes
// against what it prints and against itself.
func TestBenchRecovery(t *testing.T) {
	left := cleanBench(t)
	file := filepath.Join(t.TempDir(), "bench.json")
	code, out, errs := invoke(t, "bench", "recovery", "--recovery", "checkpoint:20", "--fault", "kill-server,kill-coordinator",
		"--rounds", "2", "--clocks", "10", "--batch", "8", "--mb", "3", "--json", file)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	left()
	text, err := os.ReadFile(file)
	must(t, err)
	var results []recoveryResult
	must(t, json.Unmarshal(text, &results))
	var names []string
	for _, r := range results {
		names = append(names, r.Recovery+" "+r.Fault)
		if !strings.Contains(out, r.line()+"\n") {
			t.Errorf("%s is not printed:\n%s", r.line(), out)
		}
		if r.Rounds != 2 || r.Servers != 3 || r.Workers != 2 || r.Shards != 6 || r.MB != 3 {
			t.Errorf("measured with other settings: %+v", r)
		}
		if r.DetectedMsMedian == nil || *r.DetectedMsMedian <= 0 || *r.LongestGetMsMedian <= 0 || *r.LongestClockMsMedian <= 0 ||
			*r.ServingAgainMsMax != max(*r.LongestGetMsMax, *r.LongestClockMsMax) || *r.ServingAgainMsMax < *r.ServingAgainMsMedian {
			t.Errorf("impossible figures: %s", r.line())
		}
		if killed := r.Fault == "kill-server"; killed && *r.LongestGetMsMedian < *r.DetectedMsMedian {
			t.Errorf("a read of a dead server's shard waited %g ms, less than until it was noticed: %s", *r.LongestGetMsMedian, r.line())
		}
		if !(*r.TrainRatio > 0 && *r.TrainRatioMin <= *r.TrainRatio && *r.PushRatio > 0 && *r.PushRatioMax >= *r.PushRatio) {
			t.Errorf("impossible ratios: train %g, push %g", *r.TrainRatio, *r.PushRatio)
		}
	}
	want := "checkpoint:20 kill-server,checkpoint:20 kill-coordinator"
	if got := strings.Join(names, ","); got != want {
		t.Errorf("measured %s, want %s", got, want)
	}
}

// TestBenchVictims: who is killed has the place in a chain that the fault names,
// and the shards that are watched are those in which it has.
func TestBenchVictims(t *testing.T) {
	var v perdurelib.View
	for s := range 6 { // chains of 0 1 2, 1 2 0, 2 0 1, …
		var sv perdurelib.ShardView
		sv.Server = s % 3
		sv.Followers = []perdurelib.Holder{{Server: (s + 1) % 3}, {Server: (s + 2) % 3}}
		v.Shards = append(v.Shards, sv)
	}
	v.Shards[5].Followers = v.Shards[5].Followers[:1] // one has 2 0 only
	all := []perdurelib.ShardID{0, 1, 2, 3, 4, 5}
	for _, c := range []struct {
		fault    string
		draw     int
		target   string
		affected []perdurelib.ShardID
	}{
		{"kill-head", 1, "server:1", []perdurelib.ShardID{1, 4}},
		{"kill-middle", 1, "server:2", []perdurelib.ShardID{1, 4}},
		{"kill-tail", 1, "server:0", []perdurelib.ShardID{1, 4, 5}},
		{"kill-server", 1, "server:1", []perdurelib.ShardID{0, 1, 2, 3, 4}},
		{"freeze", 2, "server:2", all},
		{"cut", 0, "server:0", all},
		{"drain", 0, "server:0", all},
		{"kill-coordinator", 0, "coordinator", all},
		{"kill-log", 0, "log", all},
	} {
		at := slices.IndexFunc(benchFaults, func(f benchFault) bool { return f.name == c.fault })
		target, affected := benchFaults[at].victim(&v, 3, func(int) int { return c.draw })
		if target.String() != c.target || !slices.Equal(affected, c.affected) {
			t.Errorf("%s hits %s, shards %v; want %s, %v", c.fault, target, affected, c.target, c.affected)
		}
	}
	for strategy, want := range map[string]string{
		"none": "kill-server freeze cut kill-coordinator drain", "checkpoint:5": "kill-server freeze cut kill-coordinator drain",
		"stateless":     "kill-server freeze cut kill-coordinator kill-log drain",
		"chain:2":       "kill-head kill-tail kill-server freeze cut kill-coordinator drain",
		"chain:3,async": "kill-head kill-middle kill-tail kill-server freeze cut kill-coordinator drain",
	} {
		r, err := perdurelib.ParseRecovery(strategy)
		must(t, err)
		var names []string
		for _, f := range benchFaults {
			if f.applies(r) {
				names = append(names, f.name)
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s goes through %s, want %s", strategy, got, want)
		}
	}
}

// TestLaps: the longest of those that count, and only what of it came after the
// failure.
func TestLaps(t *testing.T) {
	zero := time.Unix(1000, 0)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	laps := []lap{{0, at(-900), at(-1)}, {0, at(-50), at(30)}, {1, at(10), at(100)}, {2, at(20), at(500)}, {0, at(40), at(45)}}
	not2 := func(n int) bool { return n != 2 }
	for _, c := range []struct {
		after  time.Time
		counts func(int) bool
		want   time.Duration
	}{
		{at(0), not2, 90 * time.Millisecond},
		{at(0), func(n int) bool { return n == 0 }, 30 * time.Millisecond},
		{at(0), func(int) bool { return true }, 480 * time.Millisecond},
		{at(200), func(int) bool { return true }, 300 * time.Millisecond},
		{at(200), not2, 0},
	} {
		if got := longest(laps, c.after, c.counts); got != c.want {
			t.Errorf("longest after %v: %v, want %v", c.after.Sub(zero), got, c.want)
		}
	}
	if got := perSecond(laps, at(-10), at(90)); got != 30 {
		t.Errorf("%g laps a second, want 30", got)
	}
}

// TestCatchUp: two servers that copied 50 MB each, in 300 ms together; one that
// never came up with the tail does not count.
func TestCatchUp(t *testing.T) {
	struck := time.Unix(1000, 0)
	at := func(ms int) time.Time { return struck.Add(time.Duration(ms) * time.Millisecond) }
	event := func(kind, target string, ms int) wire.Event {
		return wire.Event{Kind: kind, Target: target, UnixNs: at(ms).UnixNano()}
	}
	told := []wire.Event{
		event("fault", "server:1", 0), event("joining", "shard:0", 500), event("joining", "shard:3", 500), event("joined", "shard:0", 600),
		event("joining", "shard:1", 600), event("joined", "shard:3", 800), event("joined", "shard:9", 900),
	}
	var reads, clocks []lap
	for ms := -500; ms < 1000; ms++ {
		reads = append(reads, lap{to: at(ms)})
		if ms < 0 || ms%2 == 0 {
			clocks = append(clocks, lap{to: at(ms)})
		}
	}
	c := newCatchUp(told, 50e6, reads, clocks, struck)
	near := func(got, want float64) bool { return math.Abs(got-want) < 0.01*want }
	if !near(c.gbPerS, 1.0/3) || !near(c.readRatio, 1) || !near(c.clockRatio, 0.5) {
		t.Errorf("got %+v, want 0.333 GB/s, 1 and 0.5 of before", c)
	}
	if c := newCatchUp(told[:2], 50e6, reads, clocks, struck); c != (catchUp{}) {
		t.Errorf("nobody joined, and it was measured as %+v", c)
	}
	r := &recoveryRun{benchRecoveryCmd: &benchRecoveryCmd{Snapshot: true}}
	res := r.faultResult(perdurelib.Recovery{Kind: perdurelib.RecoverChain, Replicas: 3}, &benchFaults[0], []outage{{detected: -1, get: time.Millisecond, catchUp: catchUp{bytes: 1, gbPerS: 0.5, readRatio: 1, clockRatio: 1}, raw: catchUp{1, 2, 0.25, 0.75}}})
	if res.DetectedMsMedian != nil || *res.ServingAgainMsMedian != 1 || !strings.HasSuffix(res.line(), "0.500; 1.00, 1.00 of before (0.25 of a plain copy: 2.000; 0.25, 0.75)") {
		t.Errorf("summed up as %s", res.line())
	}
}
