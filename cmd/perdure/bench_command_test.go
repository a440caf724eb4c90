package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/localrun"
)

// cleanBench gives the commands of a test a temporary folder of their own, and a
// function that says what they have left of it, and of their processes.
func cleanBench(t *testing.T) (left func()) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return func() {
		t.Helper()
		names, err := os.ReadDir(dir)
		if err != nil || len(names) > 0 {
			t.Errorf("left behind: %v %v", names, err)
		}
		environs, err := filepath.Glob("/proc/[0-9]*/environ") // the pattern is right; nothing where there is no /proc
		must(t, err)
		for _, path := range environs {
			text, _ := os.ReadFile(path) // it may have ended
			own := path == fmt.Sprintf("/proc/%d/environ", os.Getpid())
			if !own && slices.Contains(strings.Split(string(text), "\x00"), "TMPDIR="+dir) {
				cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
				t.Errorf("a process is left: %s %q", path, cmdline)
			}
		}
	}
}

// TestBench runs the command over all that this build can do, and holds what it
// prints and what it writes against each other.
func TestBench(t *testing.T) {
	left := cleanBench(t)
	file := filepath.Join(t.TempDir(), "bench.json")
	must(t, os.WriteFile(file, []byte("old"), 0o666))
	sizes := "4KiB,64KiB"
	if !testing.Short() {
		sizes += ",1000rows" // a million of them are stored first
	}
	code, out, errs := invoke(t, "bench", "--size", sizes, "--rounds", "3", "--time", "30ms", "--shards", "3", "--json", file)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	left()

	beds, _, err := (&benchCmd{Size: strings.Split(sizes, ","), Rounds: 3, Time: time.Second, Shards: 3}).plan()
	must(t, err)
	text, err := os.ReadFile(file)
	must(t, err)
	var results []benchResult
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	must(t, d.Decode(&results))
	_, table, ok := strings.Cut(out, "allocs/op  M rows/s\n")
	if !ok {
		t.Fatalf("no heading in %s", out)
	}
	var lines []string
	for _, bed := range beds {
		for _, m := range bed.lines {
			if len(results) == 0 {
				t.Fatalf("no result of %+v", m)
			}
			r := results[0]
			results = results[1:]
			lines = append(lines, r.line())
			got := measurement{op: r.Op, rule: perdurelib.RuleKind(r.Rule), size: benchSize{r.Size, r.Bytes, r.Rows}, conns: r.Conns, shards: r.Shards, socket: r.Socket}
			if got != m {
				t.Errorf("the result of %+v is called %+v", m, got)
			}
			if !(r.RatioMin > 0 && r.RatioMin <= r.Ratio && r.Ratio <= r.RatioMax && r.PerdureGBPerS > 0 && r.RawGBPerS > 0) {
				t.Errorf("impossible figures: %+v", r)
			}
			if r.RawConns != 1 && r.RawConns != r.Conns {
				t.Errorf("%d connections of the raw exchange, %d of Perdure", r.RawConns, r.Conns)
			}
			if !(r.P50Us > 0 && r.P50Us <= r.P99Us && r.AllocsPerOp >= 0 && r.Ops >= 3 && r.Rounds == 3) || (r.MRowsPerS > 0) != (r.Rows > 0) {
				t.Errorf("impossible figures: %+v", r)
			}
		}
	}
	if want := strings.Join(lines, "\n") + "\n"; table != want || len(results) > 0 {
		t.Errorf("printed:\n%s\nwritten:\n%s\nand %d more", table, want, len(results))
	}
}

// TestBenchInterrupted: Ctrl-C ends the bench soon, whatever it is at, and it
// leaves neither processes nor files.
func TestBenchInterrupted(t *testing.T) {
	for _, c := range []struct{ at, time string }{{`^op `, "1h"}, {`^pull`, "500ms"}} {
		t.Run(c.at, func(t *testing.T) {
			left := cleanBench(t)
			file := filepath.Join(t.TempDir(), "bench.json")
			cmd, _, end := begin(t, c.at, "bench", "--time", c.time, "--size", "4KiB,64KiB,4MiB", "--json", file)
			must(t, cmd.Process.Signal(os.Interrupt))
			interrupted := time.Now()
			code, errs := end()
			if took := time.Since(interrupted); code != exitSignal || errs != "perdure: interrupted\n" || took > 10*time.Second {
				t.Errorf("exit code %d after %v: %q", code, took, errs)
			}
			if _, err := os.Stat(file); err == nil {
				t.Error("there is a file of results")
			}
			left()
		})
	}
}

// TestBenchMovesWhatItSays: a push is applied when it returns, a pull brings what
// the server has, and it is found out when they do not, or when the server was
// another one in between.
func TestBenchMovesWhatItSays(t *testing.T) {
	t.Setenv(asCommand, "1") // for the job's processes
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	run := &benchRun{benchCmd: &benchCmd{}}
	m := measurement{op: "push", rule: perdurelib.RuleAdd, size: benchSizes[0], conns: 1, socket: "tcp"}
	on := bed{conns: 1, shards: 3, socket: "tcp", lines: []measurement{m}}
	dir := filepath.Join(t.TempDir(), "job")
	job, err := startBenchJob(ctx, cancel, dir, &on)
	must(t, err)
	defer func() { must(t, job.close()) }()
	tables, err := run.tables(ctx, job.client, &on)
	must(t, err)
	table := tables[on.tableOf(&m)]

	got, delta := make([]float32, m.size.bytes/4), benchDelta(int(m.size.bytes/4))
	push := table.operation(ctx, &m)
	pull := table.operation(ctx, &measurement{op: "pull", size: m.size})
	for n := range 20 {
		push.prepare()
		must(t, push.do())
		pull.prepare()
		must(t, pull.do())
		table.Forget()
		must(t, table.pulled(ctx, nil, got))
		for i := range got {
			if want := float32(n+1) * delta[i]; got[i] != want {
				t.Fatalf("after %d pushes value %d is %v, want %v%s", n+1, i, got[i], want, logs(dir))
			}
		}
	}
	must(t, table.verify(ctx))
	table.pushes++
	if err := table.verify(ctx); err == nil {
		t.Error("a push that was not made is not missed")
	}
	table.pushes--

	must(t, job.undisturbed())
	must(t, job.Job().Group().Kill(wire.RoleServer, 0))
	within, enough := context.WithTimeout(ctx, patience)
	defer enough()
	for job.undisturbed() == nil {
		must(t, push.do())
		must(t, within.Err())
	}
	if err := table.verify(within); err == nil {
		t.Error("what a killed server held is not missed")
	}
}

// counted is a connection that counts what its peer moved.
type counted struct {
	net.Conn
	read, written *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// TestRawExchange: as many bytes go each way as it says, on however many
// connections; and an exchange that is on its way can be stopped.
func TestRawExchange(t *testing.T) {
	for _, kind := range benchSockets {
		for _, conns := range []int{1, 3} {
			t.Run(fmt.Sprint(kind, conns), func(t *testing.T) {
				addr := localrun.AnyPort
				if kind == "unix" {
					addr = filepath.Join(t.TempDir(), "s")
				}
				l, err := net.Listen(kind, addr)
				must(t, err)
				defer l.Close()
				var read, written atomic.Int64
				served := make(chan struct{})
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						go func() {
							answerRaw(counted{c, &read, &written})
							served <- struct{}{}
						}()
					}
				}()
				s := rawShape{Ask: 88, Answer: 1<<20 + 1, Chunk: 100_000, Buffer: 1 << 20}
				r, err := dialRaw(t.Context(), l.Addr(), conns, s)
				must(t, err)
				const times = 5
				for range times {
					must(t, r.exchange())
				}
				must(t, r.close())
				for range conns {
					<-served
				}
				if got, want := read.Load(), times*s.Ask+int64(conns)*32; got != want {
					t.Errorf("the peer read %d bytes, want %d", got, want)
				}
				if got, want := written.Load(), times*s.Answer; got != want {
					t.Errorf("the peer wrote %d bytes, want %d", got, want)
				}
			})
		}
	}
}

// TestRawStop: an exchange that nobody answers fails when it is stopped.
func TestRawStop(t *testing.T) {
	l, err := net.Listen("tcp", localrun.AnyPort)
	must(t, err)
	defer l.Close() // nobody accepts: the system does
	r, err := dialRaw(t.Context(), l.Addr(), 2, rawShape{Ask: 1, Answer: 1, Chunk: 1})
	must(t, err)
	failed := make(chan error)
	go func() { failed <- r.exchange() }()
	r.stop()
	if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
	must(t, r.close())
}

// TestRawRefuses: a peer that asks for nonsense is turned away before anything
// is made room for.
func TestRawRefuses(t *testing.T) {
	for _, s := range []rawShape{{Ask: 0, Answer: 1, Chunk: 1}, {Ask: 1, Answer: mostRaw + 1, Chunk: 1}, {Ask: 1, Answer: 1, Chunk: -1}} {
		if s.check() == nil {
			t.Errorf("%+v is taken", s)
		}
	}
}

func TestBenchResult(t *testing.T) {
	ms := time.Millisecond
	m := &measurement{op: "push", rule: perdurelib.RuleSGD, size: benchSize{"1000rows", 256_000, 1000}, conns: 4, socket: "unix"}
	var laps []time.Duration
	for i := range 101 {
		laps = append(laps, time.Duration(100-i)*ms)
	}
	got := newResult(m, [][2]stretch{
		{{ops: 10, took: 10 * ms}, {ops: 10, took: 5 * ms}},  // 0.256 and 0.512 GB/s
		{{ops: 10, took: 20 * ms}, {ops: 10, took: 5 * ms}},  // 0.128 and 0.512
		{{ops: 10, took: 40 * ms}, {ops: 20, took: 20 * ms}}, // 0.064 and 0.256
	}, laps, 202)
	want := benchResult{
		Op: "push", Rule: "sgd", Size: "1000rows", Bytes: 256_000, Rows: 1000, Conns: 4, Socket: "unix",
		PerdureGBPerS: 0.128, RawGBPerS: 0.512, Ratio: 0.25, RatioMin: 0.25, RatioMax: 0.5,
		P50Us: 50_000, P99Us: 99_000, AllocsPerOp: 2, MRowsPerS: 0.5, Rounds: 3, Ops: 101,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	line := "push  sgd   1000rows        4  unix           0.128     0.512  0.25 (0.25 to 0.50)     50000.0     99000.0         2.0     0.500"
	if got.line() != line {
		t.Errorf("got  %s\nwant %s", got.line(), line)
	}
}

// TestBenchPlan: what is chosen is measured, each once, and nothing else; what
// the build cannot do is named.
func TestBenchPlan(t *testing.T) {
	b := &benchCmd{Op: []string{"push", "pull"}, Rule: []string{"sgd", "add", "sgd"}, Shards: 2, Size: []string{"64KiB"}, Conns: []int{1, 1}, Socket: []string{"tcp"}, Rounds: 1, Time: 1}
	beds, skipped, err := b.plan()
	must(t, err)
	size := benchSizes[1]
	want := []bed{{conns: 1, shards: 2, socket: "tcp", lines: []measurement{
		{op: "pull", size: size, conns: 1, shards: 2, socket: "tcp"},
		{op: "push", rule: "add", size: size, conns: 1, shards: 2, socket: "tcp"},
		{op: "push", rule: "sgd", size: size, conns: 1, shards: 2, socket: "tcp"},
	}}}
	if !reflect.DeepEqual(beds, want) || len(skipped) > 0 {
		t.Errorf("got  %+v, skipped %q\nwant %+v", beds, skipped, want)
	}

	// All there is: pull, push with three rules, six sizes; inc with the four dense
	// ones.
	possible := 0
	for _, g := range group(benchOps, benchRules, benchSizes) {
		possible += len(g)
	}
	if want := (1+3)*6 + 4; possible != want {
		t.Errorf("%d measurements of one kind of connection, want %d", possible, want)
	}
}

// TestRawWays: the raw exchange may have one connection or as many as Perdure,
// unless it is said how many.
func TestRawWays(t *testing.T) {
	for _, c := range []struct {
		conns, asked int
		want         []int
	}{{1, 0, []int{1}}, {4, 0, []int{1, 4}}, {4, 4, []int{4}}, {4, 2, []int{2}}} {
		for _, size := range benchSizes {
			var got []int
			for _, way := range rawWays(&measurement{size: size, conns: c.conns}, c.asked) {
				if !slices.Contains(got, way.conns) {
					got = append(got, way.conns)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s, %d connections, %d asked for: %d are tried", size.name, c.conns, c.asked, got)
			}
		}
	}
}

// TestDrawRows: rows are drawn once each.
func TestDrawRows(t *testing.T) {
	const n = 100_000
	ids := drawRows(rand.New(rand.NewPCG(1, n)), n)
	slices.Sort(ids)
	if len(ids) != n || len(slices.Compact(ids)) != n {
		t.Error("a row was drawn twice")
	}
}

// TestBenchHeader: what people paste says what it was measured on.
func TestBenchHeader(t *testing.T) {
	b := &benchCmd{Shards: 5, Rounds: 7, Time: 3 * time.Second}
	want := regexp.MustCompile(`^perdure .*, go\S+ \w+/\w+, on .+, \d+ cores\n.*5 shards.* 7 rounds in 3s, .*\nskipped.*: elephants\n\nop .* M rows/s\n$`)
	if got := b.header([]string{"elephants"}); !want.MatchString(got) {
		t.Errorf("%s", got)
	}
}
