package bench

import (
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/shardstore"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestWhole checks that a job is whole if every shard has its full number of replicas and no server is joining.
func TestWhole(t *testing.T) {
	chain := func(servers ...int) (s protocol.ShardView) {
		s.Server = servers[0]
		for _, n := range servers[1:] {
			s.Followers = append(s.Followers, protocol.Holder{Server: n})
		}
		return s
	}
	joined := chain(2, 0)
	joined.Joining = &protocol.Holder{Server: 3}
	for _, c := range []struct {
		shards []protocol.ShardView
		copies int
		whole  bool
	}{
		{nil, 1, false},
		{[]protocol.ShardView{chain(0), chain(1)}, 1, true},
		{[]protocol.ShardView{chain(0), chain(-1)}, 1, false},
		{[]protocol.ShardView{chain(0, 1), chain(1, 2)}, 2, true},
		{[]protocol.ShardView{chain(0, 1), chain(1)}, 2, false},
		{[]protocol.ShardView{chain(0, 1), joined}, 2, false},
	} {
		if got := isFullyReplicated(&protocol.View{Shards: c.shards}, c.copies); got != c.whole {
			t.Errorf("%d copies of %+v are whole: %t", c.copies, c.shards, got)
		}
	}
}

// TestReplayed checks that the rate comes from the additional time of reading, and that there is no rate if some round
// had none.
func TestReplayed(t *testing.T) {
	const ms = time.Millisecond
	rounds := []replaySample{
		{empty: 100 * ms, serving: 1100 * ms, bytes: 300e6, bare: 500 * ms},
		{empty: 120 * ms, serving: 1620 * ms, bytes: 300e6, bare: 1000 * ms},
		{empty: 110 * ms, serving: 610 * ms, bytes: 300e6, bare: 600 * ms},
	}
	summed := func() *RecoveryResult {
		r := &RecoveryResult{Recovery: "stateless"}
		for i := range rounds {
			r.samples = append(r.samples, rounds[i].sample())
		}
		return r
	}
	want := "1100.0 ms (610.0 to 1620.0), with nothing to read 110.0 (100.0 to 120.0)  300.0 MB, 300 MB/s (200 to " +
		"600), 0.67 of a bare reader's 500"
	if got := summed().replayLine(); !strings.HasSuffix(got, want) {
		t.Errorf("summed up as %s; want %s", got, want)
	}
	rounds[1].serving = rounds[1].empty
	res := summed()
	if got, want := res.replayLine(), "no MB/s: a round took no longer than one with nothing to read; a bare "+
		"reader reaches 500"; !strings.HasSuffix(got, want) || res.value("replay_mb_per_s") != nil ||
		res.value("replay_of_bare") != nil {
		t.Errorf("summed up as %s; want %s", got, want)
	}
}

// TestReplayReadsWhole checks that results of a shard with a snapshot are rejected.
func TestReplayReadsWhole(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshots")
	shards := []perdure.ShardID{0, 3}
	in := store.NewDir(disk.OS(), dir)
	must(t, checkNoSnapshots(in, shards))
	must(t, os.Mkdir(dir, 0o777))
	for _, shard := range []perdure.ShardID{1, 3} {
		about := &shardstore.SnapshotHeader{Job: "job", Shard: shard, Epoch: 1, Position: 7}
		_, err := shardstore.WriteSnapshot(in, about, func(io.Writer) error { return nil })
		must(t, err)
		if err := checkNoSnapshots(in, shards); (err != nil) != (shard == 3) || err != nil &&
			!strings.Contains(err.Error(), "shard 3 has a snapshot") {
			t.Errorf("with a snapshot of shard %d: %v", shard, err)
		}
	}
}

// TestReplayPlan checks that the job's log is five times larger than the pushes, that one server is used unless another
// number is given, and that a disk without enough space is rejected.
func TestReplayPlan(t *testing.T) {
	b := &RecoveryOptions{
		Measure: []string{"replay"}, Rounds: 1, Clocks: 1, Batch: 1, Workload: "softmax", Servers: 3,
		Workers: 2, Shards: 2, Consistency: "bsp",
	}
	for _, c := range []struct{ given, mb, servers, pushes int }{{0, 0, 1, 120}, {0, 4, 1, 1}, {2, 5, 2, 2}} {
		if b.MB, b.Servers, b.ServersGiven = c.mb, 3, false; c.given > 0 {
			b.Servers, b.ServersGiven = c.given, true
		}
		if c.mb > 0 { // 500 MB may be too much for the disk
			p, err := b.plan()
			must(t, err)
			if len(p.measures) != 1 || !p.measures["replay"] {
				t.Errorf("measures %v", p.measures)
			}
		}
		s, err := b.replaySettings()
		must(t, err)
		if s.Job.Servers != c.servers || s.Job.Slots != 1 || b.replayPushes() != c.pushes {
			t.Errorf("%d servers, %d workers, %d pushes; want %d, 1, %d", s.Job.Servers, s.Job.Slots, b.replayPushes(),
				c.servers, c.pushes)
		}
		if read := int64(c.pushes) * 4 << 20; s.LogBytes() < 5*read*11/10 || s.SnapshotBytes() < read*11/10 {
			t.Errorf("a log of %d bytes, snapshots after %d: too small for %d", s.LogBytes(), s.SnapshotBytes(), read)
		}
	}
	dir := t.TempDir()
	free, known := disk.FreeBytes(dir)
	if !known || free>>20/settings.MinLogMB > 30_000 {
		t.Skip("the disk has room for any log")
	}
	b.Shards = int(free>>20/settings.MinLogMB) + 1000
	if err := b.checkReplay(dir); err == nil || !strings.Contains(err.Error(), "are free in "+dir) {
		t.Errorf("a log that is too large for the disk is accepted: %v", err)
	}
}

// TestBenchVictims checks that a fault kills a server with the right position in a chain, and that the affected shards
// are those in which it has that position.
func TestBenchVictims(t *testing.T) {
	var v protocol.View
	for s := range 6 { // chains of 0 1 2, 1 2 0, 2 0 1, …
		var sv protocol.ShardView
		sv.Server = s % 3
		sv.Followers = []protocol.Holder{{Server: (s + 1) % 3}, {Server: (s + 2) % 3}}
		v.Shards = append(v.Shards, sv)
	}
	v.Shards[5].Followers = v.Shards[5].Followers[:1] // one has only 2 0
	all := []perdure.ShardID{0, 1, 2, 3, 4, 5}
	for _, c := range []struct {
		fault    string
		draw     int
		target   string
		affected []perdure.ShardID
	}{
		{"kill:head", 1, "server:1", []perdure.ShardID{1, 4}},
		{"kill:middle", 1, "server:2", []perdure.ShardID{1, 4}},
		{"kill:tail", 1, "server:0", []perdure.ShardID{1, 4, 5}},
		{"kill:server", 1, "server:1", []perdure.ShardID{0, 1, 2, 3, 4}},
		{"freeze:server", 2, "server:2", all},
		{"cut:server", 0, "server:0", all},
		{"term:server", 0, "server:0", all},
		{"kill:coordinator", 0, "coordinator", all},
		{"kill:log", 0, "log", all},
	} {
		at := slices.IndexFunc(allFailures, func(f failure) bool { return f.name == c.fault })
		target, affected := allFailures[at].victim(&v, 3, func(int) int { return c.draw })
		if target.String() != c.target || !slices.Equal(affected, c.affected) {
			t.Errorf("%s hits %s, shards %v; want %s, %v", c.fault, target, affected, c.target, c.affected)
		}
	}
	for strategy, want := range map[string]string{
		"none":         "kill:server freeze:server cut:server kill:coordinator term:server",
		"checkpoint:5": "kill:server freeze:server cut:server kill:coordinator term:server",
		"stateless":    "kill:server freeze:server cut:server kill:coordinator kill:log term:server",
		"chain:2":      "kill:head kill:tail kill:server freeze:server cut:server kill:coordinator term:server",
		"chain:3,async": "kill:head kill:middle kill:tail kill:server freeze:server cut:server kill:coordinator " +
			"term:server",
	} {
		r, err := perdure.ParseRecovery(strategy)
		must(t, err)
		var names []string
		for _, f := range allFailures {
			if f.applies(r) {
				names = append(names, f.name)
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s applies to %s, want %s", strategy, got, want)
		}
	}
}

// TestLaps checks that the longest lap is found among those that count, and that only the part after the failure
// counts.
func TestLaps(t *testing.T) {
	zero := time.Unix(1000, 0)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	laps := []lap{
		{0, at(-900), at(-1)},
		{0, at(-50), at(30)},
		{1, at(10), at(100)},
		{2, at(20), at(500)},
		{0, at(40), at(45)},
	}
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

// TestCatchUp checks the rate of two servers that copied 50 MB each, in 300 ms together. A server that did not finish
// joining does not count.
func TestCatchUp(t *testing.T) {
	struck := time.Unix(1000, 0)
	at := func(ms int) time.Time { return struck.Add(time.Duration(ms) * time.Millisecond) }
	event := func(kind, target string, ms int) wire.Event {
		return wire.Event{Kind: kind, Target: target, UnixNs: at(ms).UnixNano()}
	}
	sent := []wire.Event{
		event("fault", "server:1", 0), event("joining", "shard:0", 500), event("joining", "shard:3", 500),
		event("joined", "shard:0", 600),
		event("joining", "shard:1", 600), event("joined", "shard:3", 800), event("joined", "shard:9", 900),
	}
	var reads, clocks []lap
	for ms := -500; ms < 1000; ms++ {
		reads = append(reads, lap{to: at(ms)})
		if ms < 0 || ms%2 == 0 {
			clocks = append(clocks, lap{to: at(ms)})
		}
	}
	c := sample{}
	bytes := c.addCatchUp(sent, 50e6, reads, clocks, struck)
	near := func(got, want float64) bool { return math.Abs(got-want) < 0.01*want }
	if !near(bytes, 100e6) || !near(c["catch_up_gb_per_s"], 1.0/3) || !near(c["catch_up_read_ratio"], 1) ||
		!near(c["catch_up_clock_ratio"], 0.5) {
		t.Errorf("got %g bytes, %+v, want 0.333 GB/s, 1 and 0.5 of before", bytes, c)
	}
	c = sample{}
	if n := c.addCatchUp(sent[:2], 50e6, reads, clocks, struck); n != 0 || len(c) != 0 {
		t.Errorf("%g bytes, %+v without a server that joined", n, c)
	}
	res := RecoveryResult{Recovery: "chain:3", Fault: "kill:head", samples: []sample{{
		"longest_get_ms": 1, "longest_clock_ms": 0, "serving_again_ms": 1,
		"catch_up_gb_per_s": 0.5, "catch_up_read_ratio": 1, "catch_up_clock_ratio": 1,
		"catch_up_raw_gb_per_s": 2, "catch_up_raw_read_ratio": 0.25, "catch_up_raw_clock_ratio": 0.75,
		"catch_up_of_raw": 0.25,
	}}}
	if res.value("detected_ms_median") != nil || res.value("serving_again_ms_median") != 1.0 ||
		!strings.HasSuffix(res.faultLine(), "0.500; 1.00, 1.00 (0.25 of a plain copy: 2.000; 0.25, 0.75)") {
		t.Errorf("summed up as %s", res.faultLine())
	}
}

// TestResultKeys checks the form of a line in the results file: medians and extremes over the rounds, objects for
// groups of figures, and null for all that was not measured.
func TestResultKeys(t *testing.T) {
	r := &RecoveryResult{Recovery: "none", Rounds: 3, samples: []sample{
		{"train_ratio": 1},
		{"train_ratio": 0.5},
		{"train_ratio": 0.75, "drain.mb": 2, "drain.updates_lost": 7},
		{"drain.mb": 1, "drain.updates_lost": 0},
	}}
	text, err := json.Marshal(r)
	must(t, err)
	var got map[string]any
	must(t, json.Unmarshal(text, &got))
	want := map[string]any{
		"recovery": "none", "rounds": 3.0, "train_ratio": 0.75, "train_ratio_min": 0.5, "train_ratio_max": 1.0,
		"push_ratio": nil, "save": nil, "rows": nil, "replay_mb": nil, "detected_ms_median": nil,
	}
	for key, v := range want {
		if is, there := got[key]; !there || is != v {
			t.Errorf("%s is %v, want %v", key, is, v)
		}
	}
	if drain, _ := got["drain"].(map[string]any); drain["mb"] != 2.0 || drain["updates_lost"] != 7.0 ||
		drain["seconds"] != nil {
		t.Errorf("drain: %v", drain)
	}
}

// TestPauses checks that a clock in progress at the cut counts as a pause after the cut, and not before it.
func TestPauses(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	laps := []lap{{0, at(0), at(7)}, {1, at(7), at(10)}, {0, at(8), at(90)}, {1, at(10), at(12)}, {1, at(60), at(65)}}
	for what, c := range map[string]struct{ got, want time.Duration }{
		"before the cut":               {longestEnded(laps, at(1), at(10)), 6 * time.Millisecond},
		"after it":                     {longestBegun(laps, at(10), at(50)), 80 * time.Millisecond},
		"after it, as before":          {longestBegun(laps[3:], at(10), at(50)), 2 * time.Millisecond},
		"where nothing ended":          {longestEnded(laps, at(10), at(11)), 0},
		"where all began later":        {longestBegun(laps[4:], at(10), at(50)), 0},
		"one that began before all is": {longestEnded(laps[2:3], at(20), at(90)), 70 * time.Millisecond},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
}

// TestDrains checks the summary of servers that handed over their shards, which is empty if no server did.
func TestDrains(t *testing.T) {
	r := RecoveryResult{samples: []sample{{}, {}}}
	if r.drain() != "" {
		t.Errorf("no server handed over: %s", r.drain())
	}
	r.samples = []sample{
		{
			"drain.mb": 100, "drain.seconds": 0.5, "drain.tcp_mb_per_s": 1000, "drain.tcp_seconds": 0.1,
			"drain.file_mb_per_s": 200, "drain.file_seconds": 0.5, "drain.updates_lost": 0,
		},
		{
			"drain.mb": 300, "drain.seconds": 0.1, "drain.tcp_mb_per_s": 500, "drain.tcp_seconds": 0.6,
			"drain.file_mb_per_s": 400, "drain.file_seconds": 0.75, "drain.updates_lost": 2,
		},
		{"drain.mb": 200, "drain.seconds": 0.2, "drain.updates_lost": 2},
	}
	const want = "\n  hands over 200.0 MB in 0.20 s (0.10 to 0.50); 2 updates lost; plain TCP 1000 MB/s, 0.60 s; " +
		"a plain file 400 MB/s, 0.75 s"
	if got := r.drain(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
