package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/worker"
)

// The sum oracle: eight real workers add whole numbers to a dense and a sparse table. What a slot adds in a clock is a
// function of the seed, also when a replacement process repeats the clock. So whichever process is killed or
// disconnected, each row at the end is a sum that follows from the seed. float32 holds it exactly.
const (
	sumsSlots   = 8
	sumsServers = 4
	sumsClocks  = 40
	sumsRows    = 96  // in the dense table
	sumsIDs     = 300 // row IDs of the sparse table that are used
)

var (
	sumsDense = perdure.TableSpec{Name: "dense", Rows: sumsRows, Dim: 4, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
	// clocks done by each slot; the other rows stay 0
	sumsCounts = perdure.TableSpec{
		Name: "counts", Rows: 2 * sumsSlots, Dim: 1,
		Rule: perdure.Rule{Kind: perdure.RuleAdd},
	}
	sumsSparse = perdure.TableSpec{Name: "sparse", Sparse: true, Dim: 3, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
)

// increments are what a slot adds in a clock: the first half, Flush if flush is set, then the second half.
type increments struct {
	halves [2]struct {
		first  perdure.RowID // first row of the dense table's run
		run    []float32
		ids    []perdure.RowID // some twice
		values []float32
	}
	flush bool
	read  bool
}

// drawIncrements is a pure function. The halves may have rows in common.
func drawIncrements(seed uint64, slot perdure.Slot, clock perdure.Clock) (inc increments) {
	rng := rand.New(rand.NewPCG(seed, uint64(slot)<<32|uint64(clock)))
	whole := func(n int) []float32 {
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(rng.IntN(15) - 5)
		}
		return values
	}
	inc.flush, inc.read = rng.IntN(3) == 0, rng.IntN(3) == 0
	for h := range inc.halves {
		p := &inc.halves[h]
		n := 1 + rng.IntN(sumsRows/2)
		p.first = perdure.RowID(rng.IntN(sumsRows - n + 1))
		p.run = whole(n * sumsDense.Dim)
		for range rng.IntN(20) {
			p.ids = append(p.ids, sumsID(seed, rng.IntN(sumsIDs)))
		}
		p.values = whole(len(p.ids) * sumsSparse.Dim)
	}
	return inc
}

func sumsID(seed uint64, k int) perdure.RowID { return perdure.RowID(mix(mix(seed) + uint64(k))) }

// sumsWorker is the program of one slot.
type sumsWorker struct {
	c             *worker.Client
	seed          uint64
	dense, sparse *worker.Table
	counts        *worker.Table
	seen          []float32 // values of counts since the job's last rollback
}

func newSumsWorker(ctx context.Context, c *worker.Client, seed uint64) (stepper, error) {
	dense, err := c.Table(ctx, sumsDense)
	if err != nil {
		return nil, err
	}
	sparse, err := c.Table(ctx, sumsSparse)
	if err != nil {
		return nil, err
	}
	counts, err := c.Table(ctx, sumsCounts)
	return &sumsWorker{c: c, seed: seed, dense: dense, sparse: sparse, counts: counts}, err
}

// resume checks the saved state. It must be the sum of all increments up to a clock that is not older than the one
// before the current clock, or than the clock that the job requires.
func (w *sumsWorker) resume(ctx context.Context) error {
	w.seen = make([]float32, sumsSlots)
	now := w.c.Now()
	got, err := w.c.LoadSaved(ctx)
	state := got.State
	if err != nil || state == nil && got.Older >= now {
		return err
	}
	var saved perdure.Clock
	var sum float64
	if _, err := fmt.Sscanf(string(state), "clock %d sum %g", &saved, &sum); err != nil {
		return fmt.Errorf("invalid state of slot %d %q at clock %d: %w", w.c.Slot(), state, now, err)
	}
	old := saved+got.Older < now-1
	if want := w.sum(saved); old || sum != want {
		return fmt.Errorf("slot %d starts at clock %d with the state %q; the sum up to that clock is %v", w.c.Slot(),
			now, state, want)
	}
	return nil
}

// sum returns the total that this slot has added when it ends a clock.
func (w *sumsWorker) sum(clock perdure.Clock) (sum float64) {
	for c := range clock + 1 {
		inc := drawIncrements(w.seed, w.c.Slot(), c)
		for _, h := range inc.halves {
			for _, v := range slices.Concat(h.run, h.values) {
				sum += float64(v)
			}
		}
	}
	return sum
}

// count adds 1 to the slot's own row of the counts table and checks what it reads. No row may decrease, and each must
// contain as many clocks as the consistency model promises.
func (w *sumsWorker) count(ctx context.Context, clock perdure.Clock) error {
	got := make([]float32, 2*sumsSlots)
	if err := w.counts.GetRun(ctx, 0, got); err != nil {
		return err
	}
	job := w.c.Job()
	for slot, n := range got[:sumsSlots] {
		least := clock - job.Consistency.Staleness - job.OnOutage.Clocks
		if own := slot == int(w.c.Slot()); own && (!job.OnOutage.Continue || job.OutageRows == perdure.RowsApply) {
			least = clock
		} else if own || job.Consistency.Kind == perdure.ASP {
			least = 0
		}
		if recovery.Of(job.Recovery).Traits().MayLoseUpdates() {
			least, w.seen[slot] = 0, 0 // lost updates are missing, even if they were read before
		}
		if n < float32(least) || n < w.seen[slot] || n > sumsClocks {
			return fmt.Errorf("slot %d at clock %d reads %[4]v clocks of slot %[3]d; before it read %[5]v, and %[6]s "+
				"promises at least %[7]d", w.c.Slot(), clock, slot, n, w.seen[slot], job.Consistency, least)
		}
	}
	w.seen = got
	return w.counts.IncRun(perdure.RowID(w.c.Slot()), []float32{1})
}

func (w *sumsWorker) step(ctx context.Context, clock perdure.Clock) error {
	if err := w.count(ctx, clock); err != nil {
		return err
	}
	inc := drawIncrements(w.seed, w.c.Slot(), clock)
	if inc.read {
		if err := w.dense.GetRun(ctx, 0, make([]float32, sumsRows*sumsDense.Dim)); err != nil {
			return err
		}
		ids := inc.halves[0].ids
		if err := w.sparse.GetRows(ctx, ids, make([]float32, len(ids)*sumsSparse.Dim)); err != nil {
			return err
		}
	}
	for _, h := range inc.halves {
		if err := w.dense.IncRun(h.first, h.run); err != nil {
			return err
		}
		if err := w.sparse.IncRows(h.ids, h.values); err != nil {
			return err
		}
		if inc.flush {
			if err := w.dense.Flush(); err != nil {
				return err
			}
			if err := w.sparse.Flush(); err != nil {
				return err
			}
		}
	}
	if err := pacePrograms(ctx); err != nil {
		return err
	}
	return w.c.SaveState(fmt.Appendf(nil, "clock %d sum %g", clock, w.sum(clock)))
}

// sumsWant adds up the increments of all slots and clocks.
func sumsWant(seed uint64) (dense []float32, sparse map[perdure.RowID][]float32) {
	dense, sparse = make([]float32, sumsRows*sumsDense.Dim), map[perdure.RowID][]float32{}
	for slot := range perdure.Slot(sumsSlots) {
		for clock := range perdure.Clock(sumsClocks) {
			inc := drawIncrements(seed, slot, clock)
			for _, h := range inc.halves {
				for i, v := range h.run {
					dense[int(h.first)*sumsDense.Dim+i] += v
				}
				for i, v := range h.values {
					id := h.ids[i/sumsSparse.Dim]
					if sparse[id] == nil {
						sparse[id] = make([]float32, sumsSparse.Dim)
					}
					sparse[id][i%sumsSparse.Dim] += v
				}
			}
		}
	}
	return dense, sparse
}

// sumsFaults draws a job's faults and its strategy.
func sumsFaults(seed uint64) (recovery string, faults []string) {
	rng := rand.New(rand.NewPCG(seed, 0x50b5))
	at := func() int { return 1 + rng.IntN(sumsClocks-1) }
	for range 2 + rng.IntN(3) {
		f := fmt.Sprintf("kill:worker:%d@clock:%d", rng.IntN(sumsSlots), at())
		if rng.IntN(3) == 0 {
			f += fmt.Sprintf("+%dms", 1+rng.IntN(200))
		}
		faults = append(faults, f)
	}
	faults = append(faults,
		fmt.Sprintf("cut:worker:%d@clock:%d+%dms", rng.IntN(sumsSlots), at(), 1+rng.IntN(150)),
		fmt.Sprintf("cut:server:%d@clock:%d+%dms", rng.IntN(4), at(), 1+rng.IntN(150)))
	switch rng.IntN(4) {
	case 0:
		faults = append(faults, fmt.Sprintf("kill:worker:*@clock:%d", at()))
	case 1:
		faults = append(faults, fmt.Sprintf("kill:server:%d@clock:%d", rng.IntN(4), at()))
		return fmt.Sprintf("checkpoint:%d", 1+rng.IntN(20)), faults
	}
	return []string{"none", "checkpoint:7"}[rng.IntN(2)], faults
}

// TestSums: every acknowledged increment is in its table exactly once. go test -run TestSums -storm.runs=1
// -storm.seed=S replays one job.
func TestSums(t *testing.T) {
	t.Parallel()
	seed, _ := stormSeeds(t)
	for i := range uint64(*stormRuns) {
		t.Run(fmt.Sprintf("seed=%d", seed+i), func(t *testing.T) {
			t.Parallel()
			recovery, faults := sumsFaults(seed + i)
			t.Logf("replay with -storm.runs=1 -storm.seed=%d: --recovery %s --fault %s", seed+i, recovery,
				strings.Join(faults, " --fault "))
			strategy, err := perdure.ParseRecovery(recovery)
			must(t, err)
			j := sumUp(t, seed+i, strategy, faults, func(context.Context, *localrun.Run) error { return nil })
			if struck := len(j.Job().Timeline()); struck < len(faults) {
				t.Errorf("%d faults struck, want %d", struck, len(faults))
			}
		})
	}
}

// TestStormSums: the same in the storms of TestStorm.
func TestStormSums(t *testing.T) {
	t.Parallel()
	seed, strategies := stormSeeds(t)
	for _, strategy := range strategies {
		for i := range (stormJobs() + 1) / 2 {
			t.Run(fmt.Sprintf("%s/seed=%d", strategy, seed+i), func(t *testing.T) {
				t.Parallel() // they mostly wait
				faults := drawStorm(seed+i, strategy, sumsServers, sumsSlots, sumsClocks)
				t.Log(replay(seed+i, strategy, faults))
				sumUp(t, seed+i, strategy, nil, (&storm{faults: faults, strategy: strategy}).rage, stormPace(strategy))
			})
		}
	}
}

// sumsModels are the consistency models of the jobs, selected by seed.
var sumsModels = []string{"asp", "ssp:2", "essp:2"}

// sumUp runs one job through planned faults and a storm until its end and checks its tables. env is added to its
// workers' environment.
func sumUp(
	t *testing.T, seed uint64, strategy perdure.Recovery, faults []string,
	rage func(context.Context, *localrun.Run) error, env ...string,
) *localrun.Run {
	model, err := perdure.ParseConsistency(sumsModels[seed/3%uint64(len(sumsModels))])
	must(t, err)
	t.Logf("model %s", model)
	job := perdure.JobSpec{
		Seed: seed, Slots: sumsSlots, Servers: sumsServers, Shards: 10, Clocks: sumsClocks, AwaitExport: true,
		Consistency: model, Recovery: strategy,
	}
	if seed%2 == 0 && recovery.Of(strategy).CheckContinue() == nil { // workers continue while a shard is unavailable
		job.OnOutage = perdure.OnOutage{Continue: true, Clocks: 10}
		job.OutageRows = []perdure.OutageRows{perdure.RowsFrozen, perdure.RowsApply}[seed/2%2]
		job.StaleScale = perdure.ScaleAverage // like train's default: sums stay whole numbers
	}
	j, ended := startPrograms(t, settings.Run{Faults: faults, Job: job}, "sums", env...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	alive, over := context.WithCancelCause(ctx)
	go func() { over(<-ended) }()
	if err := rage(alive, j); err != nil {
		t.Error(err)
	}
	select {
	case <-j.Complete():
	case <-alive.Done():
		t.Fatalf("the job ended early or timed out: %v", context.Cause(alive))
	}
	compareSums(ctx, t, j, seed)
	j.Job().MarkDone()
	j.Job().End(localrun.ErrExported)
	<-alive.Done()
	return j
}

// compareSums compares both tables at the job's end with the expected sums.
func compareSums(ctx context.Context, t *testing.T, j *localrun.Run, seed uint64) {
	c, err := locate.Observe(ctx, worker.Config{Coordinator: j.Coordinator(), Secret: j.Secrets().Job})
	must(t, err)
	defer c.Close()
	c.SetReadClock(sumsClocks)
	dense, err := c.Table(ctx, sumsDense)
	must(t, err)
	sparse, err := c.Table(ctx, sumsSparse)
	must(t, err)
	values := make([]float32, sumsRows*sumsDense.Dim)
	must(t, dense.GetRun(ctx, 0, values))
	ids, err := sparse.StoredRows(ctx)
	must(t, err)
	stored := make([]float32, len(ids)*sumsSparse.Dim)
	must(t, sparse.GetRows(ctx, ids, stored))

	counts, err := c.Table(ctx, sumsCounts)
	must(t, err)
	done := make([]float32, 2*sumsSlots)
	must(t, counts.GetRun(ctx, 0, done))
	if sent := j.Progress(); sent.UpdatesLost > 0 {
		comparePartial(t, sent, done[:sumsSlots])
		return
	}
	if want := slices.Repeat([]float32{sumsClocks}, sumsSlots); !slices.Equal(done[:sumsSlots], want) {
		t.Fatalf("the slots have finished %v clocks, want %v", done, want)
	}
	wantDense, wantSparse := sumsWant(seed)
	for i, want := range wantDense {
		if values[i] != want {
			t.Fatalf("value %d of row %d of the dense table is %v, but the increments add up to %v", i%sumsDense.Dim,
				i/sumsDense.Dim, values[i], want)
		}
	}
	for i, id := range ids {
		if got, want := stored[i*sumsSparse.Dim:(i+1)*sumsSparse.Dim], wantSparse[id]; !slices.Equal(got, want) {
			t.Fatalf("row %d of the sparse table is %v, but the increments add up to %v", id, got, want)
		}
	}
	if len(ids) != len(wantSparse) {
		t.Fatalf("the sparse table stores %d rows, but %d were updated", len(ids), len(wantSparse))
	}
}

// comparePartial checks a job that may lose updates under its strategy: every update that is not counted as lost must
// be in the rows.
func comparePartial(t *testing.T, sent wire.Progress, done []float32) {
	t.Logf("%d updates lost", sent.UpdatesLost)
	missing := int64(0)
	for _, n := range done {
		missing += sumsClocks - int64(n) // on one of ten shards
	}
	if lost := sent.UpdatesExpected - sent.UpdatesApplied; lost != sent.UpdatesLost || missing < 0 || missing > lost {
		t.Errorf("the rows lack %d updates, but %d are counted as lost; the slots have finished %v clocks", lost,
			sent.UpdatesLost, done)
	}
}
