package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/run/bench"
	"github.com/perdure/perdure/internal/run/workload/logreg"
	"github.com/perdure/perdure/worker"
)

// alone starts a `perdure up` job and its only worker.
func alone(b *testing.B, args ...string) (c *worker.Client, dir string) {
	b.Helper()
	dir = newFolder(b)
	p, coordinator := up(b, dir, append([]string{
		"--workers", "1", "--servers", "1", "--clocks", "1000000000",
	}, args...)...)
	c, err := joins(b.Context(), dir, coordinator, 0)
	must(b, err)
	b.Cleanup(func() {
		c.Close()
		_ = p.Process.Signal(os.Interrupt) // the process may have ended
		p.Wait()
	})
	return c, dir
}

// BenchmarkSoftmax trains softmax with one worker, one server, ssp:2 and batch 64, and the same kernel in a plain loop.
// It prints the samples/s of both and their ratio: the median over pairs that ran one after the other.
func BenchmarkSoftmax(b *testing.B) {
	for _, shards := range []int{1, 16} {
		b.Run(fmt.Sprintf("shards=%d", shards), func(b *testing.B) {
			const batch, clocks = 64, 2000
			machine.LimitGarbage(1) // like every worker process
			machine.LimitCores(1)
			data, err := dataset.Embedded()
			must(b, err)
			m, err := logreg.NewSoftmax(data, logreg.SoftmaxOptions{Seed: 1, Slots: 1, Batch: batch})
			must(b, err)
			rule := perdurelib.Rule{Kind: perdurelib.RuleSGD, Rate: 0.05}
			c, _ := alone(b, "--shards", strconv.Itoa(shards), "--consistency", "ssp:2", "--recovery", "none")
			table, err := c.Table(b.Context(), perdurelib.TableSpec{
				Name: "w", Rows: int64(m.Rows()), Dim: m.Classes(),
				Rule: rule,
			})
			must(b, err)
			served := func() time.Duration {
				w := make([]float32, m.Rows()*m.Classes())
				gradient := make([]float32, len(w))
				begin := time.Now()
				for range clocks {
					must(b, table.GetRun(b.Context(), 0, w))
					m.Gradient(w, 0, c.Now(), gradient)
					must(b, table.IncRun(0, gradient))
					_, err := c.Clock(b.Context())
					must(b, err)
				}
				return time.Since(begin)
			}
			plain := func() time.Duration {
				begin := time.Now()
				logreg.TrainPlainSoftmax(m, clocks, rule.RateAt)
				return time.Since(begin)
			}
			served() // warms up
			plain()
			var fast, slow, ratios []float64
			for range max(9, b.N) {
				p, s := plain().Seconds(), served().Seconds()
				fast, slow, ratios = append(fast, batch*clocks/p), append(slow, batch*clocks/s), append(ratios, p/s)
			}
			b.ReportMetric(bench.Median(fast), "plain-samples/s")
			b.ReportMetric(bench.Median(slow), "samples/s")
			b.ReportMetric(bench.Median(ratios), "of-plain")
			b.ReportMetric(slices.Min(ratios), "of-plain-least")
			b.ReportMetric(slices.Max(ratios), "of-plain-most")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkServingAgain kills the only server of a job with a 100 MB table ten times. It prints the time until the
// death was detected, and until a server served again from the local checkpoint.
func BenchmarkServingAgain(b *testing.B) {
	const kills = 10
	c, dir := alone(b, "--shards", "16", "--consistency", "bsp", "--recovery", "checkpoint:2")
	rows := bigTable(b, c, 100<<20)
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	until := func(clock perdurelib.Clock) { // trains until a clock, through rollbacks
		for c.Now() < clock {
			_ = rows.Inc(0, make([]float32, rows.Spec().Dim)) // dropped by a rollback, repeated after it
			_, err := c.Clock(ctx)
			must(b, err)
		}
	}
	until(4)
	for i := range kills {
		now, generation := c.Now(), c.Generation()
		if code, _, errs := invoke(b, "fault", "kill:server:0@0s", "--run", dir); code != 0 {
			b.Fatal(errs)
		}
		for c.Generation() == generation { // the rollback happens during training
			until(c.Now() + 1)
		}
		until(now + 4)
		b.Logf("kill %d: back at clock %d", i+1, c.Now())
	}
	noticed, serving := delays(b, dir)
	if len(noticed) != kills || len(serving) != kills {
		b.Fatalf("%d kills were detected and %d recovered from, of %d", len(noticed), len(serving), kills)
	}
	b.ReportMetric(bench.Median(noticed), "ms-noticed")
	b.ReportMetric(slices.Max(noticed), "ms-noticed-most")
	b.ReportMetric(bench.Median(serving), "ms-serving")
	b.ReportMetric(slices.Max(serving), "ms-serving-most")
	b.ReportMetric(0, "ns/op")
}

// bigTable creates a table of the given size in bytes, with rows of 4 KiB.
func bigTable(b *testing.B, c *worker.Client, bytes int64) *worker.Table {
	b.Helper()
	t, err := c.Table(b.Context(), perdurelib.TableSpec{
		Name: "big", Rows: bytes / 4096, Dim: 1024, Rule: perdurelib.Rule{Kind: perdurelib.RuleAdd},
	})
	must(b, err)
	return t
}

// delays reads from a run's events how many milliseconds after each fault it was detected, and recovered from.
func delays(b *testing.B, dir string) (noticed, serving []float64) {
	b.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
	must(b, err)
	fault := 0.0
	for line := range strings.Lines(string(text)) {
		kind := regexp.MustCompile(`"kind":"(\w+)"`).FindStringSubmatch(line)
		at := regexp.MustCompile(`"unix_ns":(\d+)`).FindStringSubmatch(line)
		if kind == nil || at == nil {
			continue
		}
		ns, err := strconv.ParseFloat(at[1], 64)
		must(b, err)
		switch kind[1] {
		case "fault":
			fault = ns
		case "detected":
			noticed = append(noticed, (ns-fault)/1e6)
		case "serving":
			serving = append(serving, (ns-fault)/1e6)
		}
	}
	return noticed, serving
}

// BenchmarkServerMemory keeps a 1 GB table on one server, updates and reads all of it, and prints the server's memory
// beyond that of an idle one, as a multiple of the rows: at the end and at its peak.
func BenchmarkServerMemory(b *testing.B) {
	if runtime.GOOS != "linux" {
		b.Skip("reads /proc")
	}
	for _, recovery := range []string{"none", "checkpoint:4"} {
		b.Run(recovery, func(b *testing.B) {
			const size, chunk = 1 << 30, 8 << 20
			c, dir := alone(b, "--shards", "16", "--consistency", "ssp:2", "--recovery", recovery)
			_, out, _ := invoke(b, "status", "--run", dir)
			pid := regexp.MustCompile(`server:0 +pid (\d+)`).FindStringSubmatch(out)
			if pid == nil {
				b.Fatalf("status: %s", out)
			}
			idle := memoryOf(b, pid[1], "VmRSS")
			t := bigTable(b, c, size)
			delta := make([]float32, chunk/4)
			for first := int64(0); first < size; first += chunk {
				must(b, t.IncRun(perdurelib.RowID(first/4096), delta))
				_, err := c.Clock(b.Context())
				must(b, err)
			}
			for range 3 { // so that a read requires all updates to be applied
				_, err := c.Clock(b.Context())
				must(b, err)
			}
			must(b, t.GetRun(b.Context(), 0, make([]float32, size/4)))
			b.ReportMetric((memoryOf(b, pid[1], "VmRSS")-idle)/size, "of-rows")
			b.ReportMetric((memoryOf(b, pid[1], "VmHWM")-idle)/size, "of-rows-most")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// memoryOf returns a memory figure of a process in bytes.
func memoryOf(b *testing.B, pid, name string) float64 {
	b.Helper()
	text, err := os.ReadFile("/proc/" + pid + "/status")
	must(b, err)
	m := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		b.Fatalf("process %[2]s has no %[1]s", name, pid)
	}
	kb, err := strconv.ParseFloat(string(m[1]), 64)
	must(b, err)
	return kb * 1024
}
