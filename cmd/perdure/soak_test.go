package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/worker"
)

var soakTime = flag.Duration("soak.time", 10*time.Second, "how long TestSoak trains")

// The growth that a process is allowed between the first and the last fifth of the time after its warm-up. For memory
// the larger of two limits applies. Under the race detector most resident memory belongs to the detector and grows for
// a long time, so the test judges the heap instead.
const (
	soakWarmUp = 0.2
	// Clocks between checkpoints. The first checkpoints fall into the warm-up, because each server allocates its
	// buffers then.
	soakSaves = 20
	soakPart  = 0.05
	// A server may have allocated few of its checkpoint buffers in the warm-up if other processes had the processors.
	soakBytes      = 16 << 20
	soakGoroutines = 2
	soakSamples    = 30 // fewer samples of a process are inconclusive
)

// The tables of the soak test. Rows of the sparse table are updated during soakSpell clocks and never again: without
// eviction the table would grow forever.
const (
	soakSpell = 16
	soakIDs   = 2048 // in one spell
)

var (
	// 16 MiB, and as much optimizer state
	soakDense = perdure.TableSpec{
		Name: "dense", Rows: 1 << 16, Dim: 64,
		Rule: perdure.Rule{Kind: perdure.RuleMomentum, Rate: 0.01},
	}
	soakSparse = perdure.TableSpec{
		Name: "sparse", Sparse: true, Dim: 16,
		Rule: perdure.Rule{Kind: perdure.RuleAdam, Rate: 0.01}, Evict: 64,
	}
)

// soakWorker is the program of one slot. It reads and updates parts of both tables at a steady pace.
type soakWorker struct {
	c             *worker.Client
	seed          uint64
	dense, sparse *worker.Table
	pace          *time.Ticker
	run, rows     []float32
	ids           []perdure.RowID
}

func newSoakWorker(ctx context.Context, c *worker.Client, seed uint64) (stepper, error) {
	dense, err := c.Table(ctx, soakDense)
	if err != nil {
		return nil, err
	}
	sparse, err := c.Table(ctx, soakSparse)
	return &soakWorker{
		c: c, seed: seed, dense: dense, sparse: sparse, pace: time.NewTicker(10 * time.Millisecond),
		run: make([]float32, 256*soakDense.Dim), rows: make([]float32, 256*soakSparse.Dim),
		ids: make([]perdure.RowID, 256),
	}, err
}

// resume reads the whole dense table once in parts. From then on the cache holds all of it and cannot grow.
func (w *soakWorker) resume(ctx context.Context) error {
	for first := perdure.RowID(0); first < perdure.RowID(soakDense.Rows); first += 256 {
		if err := w.dense.GetRun(ctx, first, w.run); err != nil {
			return err
		}
	}
	return nil
}

func (w *soakWorker) step(ctx context.Context, clock perdure.Clock) error {
	<-w.pace.C
	rng := rand.New(rand.NewPCG(w.seed, uint64(w.c.Slot())<<32|uint64(clock)))
	first := perdure.RowID(rng.Int64N(soakDense.Rows - 256))
	if err := w.dense.GetRun(ctx, first, w.run); err != nil {
		return err
	}
	if err := w.dense.IncRun(first, w.run); err != nil {
		return err
	}
	if clock%3 == 0 {
		if err := w.dense.Flush(); err != nil {
			return err
		}
	}
	for i := range w.ids {
		w.ids[i] = perdure.RowID(mix(uint64(clock/soakSpell)*soakIDs + rng.Uint64N(soakIDs)))
	}
	if err := w.sparse.GetRows(ctx, w.ids, w.rows); err != nil {
		return err
	}
	for i := range w.rows {
		w.rows[i] = rng.Float32() - 0.5
	}
	if err := w.sparse.IncRows(w.ids, w.rows); err != nil {
		return err
	}
	return w.c.SaveState(fmt.Appendf(nil, "%d", clock))
}

// use is the resource use of a process at one time.
type use struct {
	rss, heap  int64 // bytes
	goroutines int
}

// watch samples the processes of a job until ctx ends. It returns the samples by process name and incarnation in order
// of time.
func watch(ctx context.Context, api *control.Client, every time.Duration) (uses map[string][]use, last control.Status) {
	uses = map[string][]use{}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return uses, last
		case <-tick.C:
		}
		s, err := api.Status(ctx)
		if err != nil || s.State == control.StateStarting {
			continue // only workers are killed, so the coordinator answers soon
		}
		last = s
		for _, p := range s.Processes {
			rss, err := residentBytes(p.PID)
			if p.State != control.ProcessLive || err != nil || p.Resources.Goroutines == 0 {
				continue // the process has just ended or started
			}
			name := fmt.Sprintf("%s:%d#%d", p.Role, p.Index, p.Incarnation)
			uses[name] = append(uses[name], use{rss, p.Resources.HeapBytes, p.Resources.Goroutines})
		}
	}
}

// residentBytes reads a process's resident memory as described in proc_pid_statm(5).
func residentBytes(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(b)
	if len(fields) < 2 {
		return 0, fmt.Errorf("invalid statm %q", b)
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// fifths returns the typical use in each fifth of the time after the warm-up. That is the median, except for the heap
// and the goroutines. The smallest heap has the least garbage, and the smallest number of goroutines excludes those
// that briefly write a segment.
func fifths(uses []use) (typical [5]use) {
	uses = uses[int(soakWarmUp*float64(len(uses))):]
	for i := range typical {
		part := uses[i*len(uses)/5 : max(i*len(uses)/5+1, (i+1)*len(uses)/5)]
		typical[i] = use{
			rss:  medianUse(part, func(u use) int64 { return u.rss }),
			heap: slices.MinFunc(part, func(a, b use) int { return cmp.Compare(a.heap, b.heap) }).heap,
			goroutines: slices.MinFunc(part, func(a,
				b use,
			) int {
				return cmp.Compare(a.goroutines, b.goroutines)
			}).goroutines,
		}
	}
	return typical
}

func medianUse[T cmp.Ordered](uses []use, of func(use) T) T {
	values := make([]T, len(uses))
	for i, u := range uses {
		values[i] = of(u)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// judge returns an error if a process has grown more than allowed.
func judge(uses []use) error {
	typical := fifths(uses)
	from, to := typical[0], typical[4]
	what, before, after := "resident memory", from.rss, to.rss
	if underRace {
		what, before, after = "heap", from.heap, to.heap
	}
	if most := max(soakBytes, int64(soakPart*float64(before))); after-before > most {
		return fmt.Errorf("%s grew from %.1f to %.1f MB; at most %.1f MB of growth is allowed", what, mb(before),
			mb(after), mb(most))
	}
	if d := to.goroutines - from.goroutines; d > soakGoroutines || d < -soakGoroutines {
		return fmt.Errorf("goroutines changed from %d to %d", from.goroutines, to.goroutines)
	}
	return nil
}

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }

// TestSoak: the processes of a long job do not grow. Once a minute a worker is killed.
func TestSoak(t *testing.T) {
	onlyAll(t)
	if _, err := residentBytes(os.Getpid()); errors.Is(err, os.ErrNotExist) {
		t.Skip("this system has no /proc to read a process's memory from")
	}
	seed := *stormSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1e9
	}
	model := []perdure.Consistency{{Kind: perdure.ASP}, {Kind: perdure.SSP, Staleness: 2}}[seed%2]
	var faults []string
	for at := time.Minute; at < *soakTime-time.Minute/2; at += time.Minute {
		faults = append(faults, fmt.Sprintf("kill:worker:%d@%s", 2+len(faults)%2, at))
	}
	t.Logf("replay with -soak.time=%s -storm.seed=%d: %s, %d kills", *soakTime, seed, model, len(faults))
	// Servers produce so little garbage that they collect it only once in minutes, and their memory would rise until
	// then. Only live memory counts here.
	t.Setenv("GOGC", "20")
	j, ended := startPrograms(t, settings.Run{Faults: faults, Job: perdure.JobSpec{
		Seed: seed, Slots: 4, Servers: 2, Shards: 8, Clocks: 1 << 30, Consistency: model,
		Recovery: perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: soakSaves},
	}}, "soak")
	ctx, cancel := context.WithTimeout(t.Context(), *soakTime)
	defer cancel()
	uses, last := watch(ctx, j.Control(), min(time.Second, *soakTime/100))
	j.Job().End(localrun.ErrInterrupted)
	if err := <-ended; !errors.Is(err, localrun.ErrInterrupted) {
		t.Fatalf("the job ended early: %v", err)
	}
	if last.Generation != 1 || last.Clock < perdure.Clock(soakTime.Seconds()) {
		t.Errorf("the soak ended at clock %d in generation %d", last.Clock, last.Generation)
	}
	soakReport(t, uses, last)
}

// soakReport prints and judges all processes.
func soakReport(t *testing.T, uses map[string][]use, last control.Status) {
	t.Logf("%d clocks, pushed %.0f MB, pulled %.0f MB", last.Clock, mb(last.BytesPushed), mb(last.BytesPulled))
	names, judged := []string{}, 0
	for name := range uses {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		decision := "flat"
		switch err := judge(uses[name]); {
		case len(uses[name]) < soakSamples:
			decision = "too short to judge"
		case err != nil:
			decision = "GROWS"
			t.Errorf("%s: %v", name, err)
			fallthrough
		default:
			judged++
		}
		line := fmt.Sprintf("%-14s %4d samples, %s; by fifths, resident/heap MB (goroutines):", name, len(uses[name]),
			decision)
		for _, u := range fifths(uses[name]) {
			line += fmt.Sprintf(" %.1f/%.1f (%d)", mb(u.rss), mb(u.heap), u.goroutines)
		}
		t.Log(line)
	}
	if want := 7; judged < want {
		t.Errorf("only %d processes have enough samples: %s; want %d", judged, strings.Join(names, ", "), want)
	}
}

// TestJudge: judge detects growth and tolerates noise.
func TestJudge(t *testing.T) {
	series := func(f func(i int) (bytes int64, goroutines int)) (uses []use) {
		for i := range 100 {
			bytes, goroutines := f(i)
			uses = append(uses, use{rss: bytes, heap: bytes, goroutines: goroutines})
		}
		return uses
	}
	const size = 100 << 20
	for _, c := range []struct {
		name string
		uses []use
		flat bool
	}{
		{"flat", series(func(int) (int64, int) { return size, 20 }), true},
		{"sawtooth", series(func(i int) (int64, int) { return size + int64(i%7)<<22, 20 + i%2 }), true},
		{"warm-up", series(func(i int) (int64, int) { return size + int64(min(i, 19))<<22, 20 + min(i, 19) }), true},
		{"memory", series(func(i int) (int64, int) { return size + int64(i)*size/300, 20 }), false},
		{"goroutines", series(func(i int) (int64, int) { return size, 20 + i/20 }), false},
		{"fewer goroutines", series(func(i int) (int64, int) { return size, 20 - i/20 }), false},
	} {
		if err := judge(c.uses); (err == nil) != c.flat {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
