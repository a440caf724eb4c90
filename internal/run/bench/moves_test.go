package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestBenchMovesWhatItSays checks that a push is applied when it returns, that a pull returns the server's values, and
// that missing pushes and a replaced server are detected.
func TestBenchMovesWhatItSays(t *testing.T) {
	startsItself(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	m := measurement{Op: "push", Rule: perdure.RuleAdd, Size: moveSizes[0], Conns: 1, Socket: "tcp"}
	on := movesTestbed{
		Conns: 1, Shards: 3, Socket: "tcp", Size: m.Size, Rule: m.Rule, Lines: []measurement{m},
	}
	dir := filepath.Join(t.TempDir(), "job")
	job, err := startMovesJob(ctx, cancel, dir, &on, "")
	must(t, err)
	defer func() { must(t, job.Close()) }()
	table, err := makeTable(ctx, job.Client, &on)
	must(t, err)

	got, delta := make([]float32, m.Size.Bytes/4), pushDelta(int(m.Size.Bytes/4))
	push := table.Operation(ctx, &m)
	pull := table.Operation(ctx, &measurement{Op: "pull", Size: m.Size})
	for n := range 20 {
		push.Prepare()
		must(t, push.Do())
		pull.Prepare()
		must(t, pull.Do())
		table.Forget()
		must(t, table.pull(ctx, nil, got))
		for i := range got {
			if want := float32(n+1) * delta[i]; got[i] != want {
				t.Fatalf("after %d pushes value %d is %v, want %v", n+1, i, got[i], want)
			}
		}
	}
	must(t, table.Verify(ctx))
	table.Pushes++
	if err := table.Verify(ctx); err == nil {
		t.Error("a missing push is not detected")
	}
	table.Pushes--

	must(t, job.Undisturbed())
	must(t, job.Job().Group().Kill(wire.RoleServer, 0))
	within, enough := context.WithTimeout(ctx, 3*time.Minute)
	defer enough()
	for job.Undisturbed() == nil {
		must(t, push.Do())
		must(t, within.Err())
	}
	if err := table.Verify(within); err == nil {
		t.Error("the lost rows of a killed server are not detected")
	}
}

func TestBenchResult(t *testing.T) {
	ms := time.Millisecond
	m := &measurement{
		Op: "push", Rule: perdure.RuleSGD, Size: moveSize{"1000rows", 256_000, 1000}, Conns: 4,
		Socket: "unix",
	}
	var laps []time.Duration
	for i := range 101 {
		laps = append(laps, time.Duration(100-i)*ms)
	}
	got := newMovesResult(m, [][2]roundWork{
		{{Ops: 10, Took: 10 * ms}, {Ops: 10, Took: 5 * ms}},  // 0.256 and 0.512 GB/s
		{{Ops: 10, Took: 20 * ms}, {Ops: 10, Took: 5 * ms}},  // 0.128 and 0.512
		{{Ops: 10, Took: 40 * ms}, {Ops: 20, Took: 20 * ms}}, // 0.064 and 0.256
	}, laps, 202)
	want := MovesResult{
		Op: "push", Rule: "sgd", Size: "1000rows", Bytes: 256_000, Rows: 1000, Conns: 4, Socket: "unix",
		PerdureGBPerS: 0.128, RawGBPerS: 0.512, Ratio: 0.25, RatioMin: 0.25, RatioMax: 0.5,
		P50Us: 50_000, P99Us: 99_000, AllocsPerOp: 2, MRowsPerS: 0.5, Rounds: 3, Ops: 101,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	line := "push  sgd   1000rows        4  unix           0.128     0.512  0.25 (0.25 to 0.50)     50000.0     " +
		"99000.0         2.0     0.500"
	if got.Line() != line {
		t.Errorf("got  %s\nwant %s", got.Line(), line)
	}
}

// TestBenchPlan checks that the chosen measurements are planned once each, and that unsupported ones are named.
func TestBenchPlan(t *testing.T) {
	b := &MovesOptions{
		Op: []string{"push", "pull"}, Rule: []string{"sgd", "add", "sgd"}, Shards: 2, Size: []string{"64KiB"},
		Conns: []int{1, 1}, Socket: []string{"tcp"}, Rounds: 1, Time: 1,
	}
	beds, skipped, err := b.plan()
	must(t, err)
	size := moveSizes[1]
	want := []movesTestbed{
		{Conns: 1, Shards: 2, Socket: "tcp", Size: size, Rule: "add", Lines: []measurement{
			{Op: "pull", Size: size, Conns: 1, Shards: 2, Socket: "tcp"},
			{Op: "push", Rule: "add", Size: size, Conns: 1, Shards: 2, Socket: "tcp"},
		}},
		{Conns: 1, Shards: 2, Socket: "tcp", Size: size, Rule: "sgd", Lines: []measurement{
			{Op: "push", Rule: "sgd", Size: size, Conns: 1, Shards: 2, Socket: "tcp"},
		}},
	}
	if !reflect.DeepEqual(beds, want) || len(skipped) > 0 {
		t.Errorf("got  %+v, skipped %q\nwant %+v", beds, skipped, want)
	}

	// In all: pull, and push with three rules, for six sizes each; inc for the four dense sizes.
	all := &MovesOptions{Conns: []int{1}, Socket: []string{"tcp"}, Rounds: 1, Time: 1}
	beds, _, err = all.plan()
	must(t, err)
	possible := 0
	for _, bed := range beds {
		possible += len(bed.Lines)
	}
	if want := (1+3)*6 + 4; possible != want {
		t.Errorf("%d measurements of one kind of connection, want %d", possible, want)
	}
}

// TestRawWays checks that the raw exchange uses one connection or as many as Perdure, unless a number is given.
func TestRawWays(t *testing.T) {
	for _, c := range []struct {
		conns, asked int
		want         []int
	}{{1, 0, []int{1}}, {4, 0, []int{1, 4}}, {4, 4, []int{4}}, {4, 2, []int{2}}} {
		for _, size := range moveSizes {
			var got []int
			for _, way := range rawConfigs(&measurement{Size: size, Conns: c.conns}, c.asked) {
				if !slices.Contains(got, way.conns) {
					got = append(got, way.conns)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s, %d connections, %d requested: tried %d", size.Name, c.conns, c.asked, got)
			}
		}
	}
}

// TestDrawRows checks that no row is drawn twice.
func TestDrawRows(t *testing.T) {
	const n = 100_000
	ids := drawRows(rand.New(rand.NewPCG(1, n)), n)
	slices.Sort(ids)
	if len(ids) != n || len(slices.Compact(ids)) != n {
		t.Error("a row was drawn twice")
	}
}

// TestBenchHeader checks that the header describes the version and the machine.
func TestBenchHeader(t *testing.T) {
	b := &MovesOptions{Shards: 5, Rounds: 7, Time: 3 * time.Second}
	want := regexp.MustCompile(`^perdure .*, go\S+ \w+/\w+, on .+, \d+ cores\n.*5 shards.* 7 rounds in 3s, ` +
		`.*\nskipped.*: elephants\n\nop .* M rows/s\n$`)
	if got := b.header([]string{"elephants"}); !want.MatchString(got) {
		t.Errorf("%s", got)
	}
}

// TestRunMoves measures one line through the Go API and checks that the results match the plan.
func TestRunMoves(t *testing.T) {
	startsItself(t)
	t.Setenv("GOGC", "100") // do not change the GC setting of this process
	var out bytes.Buffer
	o := MovesOptions{
		Op: []string{"pull", "push"}, Rule: []string{"add"}, Size: []string{"4KiB"}, Conns: []int{1},
		Socket: []string{"tcp"},
		Rounds: 2, Time: 10 * time.Millisecond, JSON: filepath.Join(t.TempDir(), "bench.json"), Version: "x",
	}
	must(t, RunMoves(t.Context(), &out, o))
	text, err := os.ReadFile(o.JSON)
	must(t, err)
	var results []MovesResult
	must(t, json.Unmarshal(text, &results))
	beds, _, err := o.plan()
	must(t, err)
	if len(beds) != 1 || len(results) != len(beds[0].Lines) {
		t.Fatalf("planned %+v, measured %+v", beds, results)
	}
	for i, r := range results {
		got := measurement{
			Op: r.Op, Rule: perdure.RuleKind(r.Rule), Size: moveSize{r.Size, r.Bytes, r.Rows}, Conns: r.Conns,
			Shards: r.Shards, Socket: r.Socket,
		}
		if got != beds[0].Lines[i] || r.PerdureGBPerS <= 0 || r.RawGBPerS <= 0 ||
			!strings.Contains(out.String(), r.Line()) {
			t.Errorf("%+v is %+v of %+v", r, got, beds[0].Lines[i])
		}
	}
}
