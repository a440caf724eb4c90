package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/run/bench"
)

// cleanBench prepares a bench with a temporary directory of its own. The returned function checks that no files or
// processes are left.
func cleanBench(t *testing.T, args ...string) (p *process, left func()) {
	t.Helper()
	dir := t.TempDir()
	p = command(t, append([]string{"bench"}, args...)...)
	p.Env = append(os.Environ(), "TMPDIR="+dir)
	p.Start()
	return p, func() {
		t.Helper()
		names, err := os.ReadDir(dir)
		if err != nil || len(names) > 0 {
			t.Errorf("files are left: %v %v", names, err)
		}
		environs, err := filepath.Glob(
			"/proc/[0-9]*/environ") // the pattern is valid; without /proc there are no matches
		must(t, err)
		for _, path := range environs {
			text, _ := os.ReadFile(path) // the process may have ended
			if slices.Contains(strings.Split(string(text), "\x00"), "TMPDIR="+dir) {
				cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
				t.Errorf("a process is left: %s %q", path, cmdline)
			}
		}
	}
}

// benched runs perdure bench and returns its results file and its output.
func benched[R any](t *testing.T, args ...string) (results []R, out string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bench.json")
	must(t, os.WriteFile(file, []byte("old"), 0o666))
	p, left := cleanBench(t, append(args, "--json", file)...)
	code, out, errs := p.Wait()
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	left()
	must(t, json.Unmarshal([]byte(fileOf(t, file)), &results))
	return results, out
}

// TestBench runs the command over everything that this build can measure, and compares its output with its results
// file.
func TestBench(t *testing.T) {
	t.Parallel()
	sizes := "4KiB,64KiB"
	if !testing.Short() {
		sizes += ",1000rows" // stores a million rows first
	}
	results, out := benched[bench.MovesResult](t, "--size", sizes, "--rounds", "3", "--time", "30ms", "--shards", "3")
	_, table, ok := strings.Cut(out, "allocs/op  M rows/s\n")
	if !ok {
		t.Fatalf("no table heading in %s", out)
	}
	var lines []string
	measured := map[string]int{} // by operation
	ways := map[string]bool{}    // kinds of sockets, and connections
	for _, r := range results {
		lines, measured[r.Op], ways[fmt.Sprint(r.Socket, r.Conns)] = append(lines, r.Line()), measured[r.Op]+1, true
		if !(r.RatioMin > 0 && r.RatioMin <= r.Ratio && r.Ratio <= r.RatioMax && r.PerdureGBPerS > 0 &&
			r.RawGBPerS > 0) {
			t.Errorf("impossible figures: %+v", r)
		}
		if r.RawConns != 1 && r.RawConns != r.Conns {
			t.Errorf("%d connections for the raw exchange, %d for Perdure", r.RawConns, r.Conns)
		}
		if !(r.P50Us > 0 && r.P50Us <= r.P99Us && r.AllocsPerOp >= 0 && r.Ops >= 3 && r.Rounds == 3) ||
			(r.MRowsPerS > 0) != (r.Rows > 0) {
			t.Errorf("impossible figures: %+v", r)
		}
		if r.Shards != 3 || !slices.Contains(strings.Split(sizes, ","), r.Size) {
			t.Errorf("unexpected settings: %+v", r)
		}
	}
	if want := strings.Join(lines, "\n") + "\n"; table != want {
		t.Errorf("printed:\n%s\nwritten:\n%s", table, want)
	}
	if len(ways) != 2 && len(ways) != 4 { // not every system has Unix sockets
		t.Errorf("measured over %v", ways)
	}
	for op, each := range map[string]int{"pull": 1, "push": 3, "inc": 1} {
		blocks := 1 + strings.Count(sizes, ",")
		if op == "inc" {
			blocks = 2 // sparse rows are always copied
		}
		if measured[op] != len(ways)*each*blocks {
			t.Errorf("%d measurements of %s, want %d", measured[op], op, len(ways)*each*blocks)
		}
	}
}

// TestBenchTLS: --socket tls measures over TLS only.
func TestBenchTLS(t *testing.T) {
	t.Parallel()
	results, _ := benched[bench.MovesResult](t, "--socket", "tls", "--size", "4KiB,64KiB", "--op", "pull,push",
		"--rule", "add", "--conns", "1,2", "--rounds", "1", "--time", "10ms")
	for _, r := range results {
		if r.Socket != "tls" || r.Ratio <= 0 {
			t.Errorf("impossible figures: %+v", r)
		}
	}
	if len(results) != 2*2*2 {
		t.Errorf("%d measurements", len(results))
	}
}

// TestBenchInterrupted: Ctrl-C ends the bench soon, whatever it is doing, and leaves neither processes nor files.
func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ at, time string }{{`^op `, "1h"}, {`^pull`, "500ms"}} {
		t.Run(c.at, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bench.json")
			p, left := cleanBench(t, "--time", c.time, "--size", "4KiB,64KiB,4MiB", "--json", file)
			p.Says(c.at)
			interrupted := time.Now()
			code, _, errs := p.Stop()
			if took := time.Since(interrupted); code != exitSignal || errs != "perdure: interrupted\n" ||
				took > 10*time.Second {
				t.Errorf("exit code %d after %v: %q", code, took, errs)
			}
			if _, err := os.Stat(file); err == nil {
				t.Error("an interrupted bench wrote a results file")
			}
			left()
		})
	}
}
