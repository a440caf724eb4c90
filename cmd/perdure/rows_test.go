package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/worker"
)

var stormRows = flag.String("storm.rows", "scar:20,1/8,priority;none",
	"like -storm.sums, for the strategies under which rows of a shard may lack updates")

// rowsModels are the consistency models of these jobs, selected by seed.
var rowsModels = []string{"bsp", "ssp:3", "essp:3", "asp"}

// The row oracle: each row records which clocks of which slot it contains. For each slot it has three values: the
// number of updates added, the sum of 2^clock over the first half of the clocks, and the same sum over the second half.
// So the sums are sets of clocks as long as nothing is added twice. If something is, the number is larger than the set.
const (
	clockSets     = 64             // rows
	wholeSets     = 16             // of the whole table
	clocksInValue = sumsClocks / 2 // which float32 holds exactly
	setDim        = 3 * sumsSlots
)

var (
	setsDense = perdure.TableSpec{
		Name: "sets", Rows: clockSets, Dim: setDim, Rule: perdure.Rule{Kind: perdure.RuleAdd},
	}
	setsSparse = perdure.TableSpec{
		Name: "sparse-sets", Sparse: true, Dim: setDim, Rule: perdure.Rule{Kind: perdure.RuleAdd},
	}
	setsWhole = perdure.TableSpec{
		Name: "whole-sets", Rows: wholeSets, Whole: true, Dim: setDim, Rule: perdure.Rule{Kind: perdure.RuleAdd},
	}
)

// setsWorker adds each clock's update to all rows.
type setsWorker struct {
	c                    *worker.Client
	ids                  []perdure.RowID
	dense, sparse, whole *worker.Table
}

func newSetsWorker(ctx context.Context, c *worker.Client, seed uint64) (stepper, error) {
	w := &setsWorker{c: c, ids: setIDs(seed)}
	var err1, err2, err3 error
	w.dense, err1 = c.Table(ctx, setsDense)
	w.sparse, err2 = c.Table(ctx, setsSparse)
	w.whole, err3 = c.Table(ctx, setsWhole)
	return w, errors.Join(err1, err2, err3)
}

func setIDs(seed uint64) (ids []perdure.RowID) {
	for k := range clockSets {
		ids = append(ids, sumsID(seed, k))
	}
	return ids
}

func (w *setsWorker) resume(context.Context) error { return nil }

func (w *setsWorker) step(ctx context.Context, clock perdure.Clock) error {
	rows := make([]float32, clockSets*setDim)
	if clock%4 == 0 { // the values do not matter, only that a client reads
		if err := w.dense.GetRun(ctx, 0, rows); err != nil {
			return err
		}
		clear(rows)
	}
	for row := range clockSets {
		own := rows[row*setDim+3*int(w.c.Slot()):]
		own[0], own[1+clock/clocksInValue] = 1, float32(int(1)<<(clock%clocksInValue))
	}
	if err := w.dense.IncRun(0, rows); err != nil {
		return err
	}
	if err := w.sparse.IncRows(w.ids, rows); err != nil {
		return err
	}
	if err := w.whole.IncRun(0, rows[:wholeSets*setDim]); err != nil {
		return err
	}
	return pacePrograms(ctx)
}

// setLacks returns how many updates a row lacks. It fails if the row contains one twice, or one that was never sent.
func setLacks(row []float32) (missing int, err error) {
	missing = sumsSlots * sumsClocks
	for own := range slices.Chunk(row, 3) {
		has := 0
		for _, v := range own[1:] {
			set := uint32(max(0, v))
			if float32(set) != v || set >= 1<<clocksInValue {
				return 0, fmt.Errorf("%v is not a set of clocks", v)
			}
			has += bits.OnesCount32(set)
		}
		if own[0] != float32(has) {
			return 0, fmt.Errorf("%v updates were added, but the set has %d clocks", own[0], has)
		}
		missing -= has
	}
	return missing, nil
}

// TestStormRows: in the storms of TestStorm, under strategies that lose acknowledged updates, no row contains an update
// twice. All rows of a shard lack the updates that the job reports as lost. Dense rows may also lack updates that the
// job reports as partly lost. Each row consists of what its shard was last restored to and of every later update.
func TestStormRows(t *testing.T) {
	t.Parallel()
	eachStorm(t, "storm.rows", *stormRows, sumsServers, sumsSlots, sumsClocks,
		func(t *testing.T, seed uint64, s *storm) { rowsThrough(t, seed, s.strategy, s.rage) })
}

func rowsThrough(
	t *testing.T, seed uint64, strategy perdure.Recovery, rage func(context.Context, *localrun.Run) error,
) {
	model, err := perdure.ParseConsistency(rowsModels[seed%uint64(len(rowsModels))])
	must(t, err)
	t.Logf("model %s", model)
	job := perdure.JobSpec{
		Seed: seed, Slots: sumsSlots, Servers: sumsServers, Shards: 10, Clocks: sumsClocks, AwaitExport: true,
		Consistency: model, Recovery: strategy,
	}
	if seed/4%2 == 1 && model.Kind != perdure.BSP && recovery.Of(strategy).CheckContinue() == nil {
		job.OnOutage = perdure.OnOutage{Continue: true, Clocks: 10}
		job.OutageRows, job.StaleScale = perdure.RowsApply, perdure.ScaleAverage
	}
	// Keep all row files, so that the test can tell from which one each shard last started.
	j, ended := startPrograms(t, settings.Run{Job: job, Checkpoints: settings.Checkpoints{Keep: 0}}, "sets",
		stormPace(strategy))
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
	compareSets(ctx, t, j, seed)
	j.Job().MarkDone()
	j.Job().End(localrun.ErrExported)
	<-alive.Done()
}

// compareSets compares what rows lack at the job's end with the loss that the job reports. The job cannot know of a
// sparse row that was never saved and is lost as a whole. Such rows must only lack at least the reported loss.
func compareSets(ctx context.Context, t *testing.T, j *localrun.Run, seed uint64) {
	rows, sparseRows, wholeRows, home := readSets(ctx, t, j, seed)
	status, v, err := locate.QueryState(ctx, j.Control())
	for err != nil && ctx.Err() == nil { // the coordinator may still be unavailable
		status, v, err = locate.QueryState(ctx, j.Control())
	}
	must(t, err)
	least, most := make([]int, len(v.Shards)), make([]int, len(v.Shards))
	for s := range least {
		least[s] = sumsSlots * sumsClocks
	}
	note := func(what string, shard perdure.ShardID, row []float32, sparse bool) {
		missing, err := setLacks(row)
		if err != nil {
			t.Fatalf("%s of shard %d: %v: %v", what, shard, err, row)
		}
		least[shard] = min(least[shard], missing)
		if !sparse {
			most[shard] = max(most[shard], missing)
		}
	}
	for i := range clockSets {
		row := perdure.RowID(i)
		note(fmt.Sprintf("row %d", i), placement.ShardOf(&perdure.TableSpec{Rows: clockSets}, len(v.Shards), row),
			rows[i*setDim:(i+1)*setDim], false)
		id := setIDs(seed)[i]
		note(fmt.Sprintf("sparse row %d", id), placement.ShardOf(&perdure.TableSpec{Sparse: true}, len(v.Shards), id),
			sparseRows[i*setDim:(i+1)*setDim], true)
	}
	for i := range wholeSets {
		row := wholeRows[i*setDim : (i+1)*setDim]
		if note(fmt.Sprintf("row %d of a whole table", i), home, row, false); !slices.Equal(row, wholeRows[:setDim]) {
			t.Errorf("a whole table is torn: row %d is %v, but row 0 is %v", i, row, wholeRows[:setDim])
		}
	}
	judgeSets(t, &status, &v, least, most)
	exactSets(t, j, &v, status.UpdatesLost, func(judge func(string, perdure.ShardID, perdure.RowID, []float32)) {
		for i := range perdure.RowID(clockSets) {
			id := setIDs(seed)[i]
			judge(setsDense.Name, placement.ShardOf(&perdure.TableSpec{Rows: clockSets}, len(v.Shards), i), i,
				rows[i*setDim:][:setDim])
			judge(setsSparse.Name, placement.ShardOf(&perdure.TableSpec{Sparse: true}, len(v.Shards), id), id,
				sparseRows[i*setDim:][:setDim])
		}
		for i := range perdure.RowID(wholeSets) {
			judge(setsWhole.Name, home, i, wholeRows[i*setDim:][:setDim])
		}
	})
}

// judgeSets compares what the best and the worst row of each shard lack with the reported loss.
func judgeSets(t *testing.T, status *control.Status, v *protocol.View, least, most []int) {
	partly, once, best, worst := int64(0), true, int64(0), int64(0)
	if status.Saving != nil && status.Saving.Rows != nil {
		partly = status.Saving.Rows.PartlyLost
	}
	for s := range v.Shards {
		best, worst = best+int64(least[s]), worst+int64(most[s])
		once = once && v.Shards[s].Epoch <= 2
	}
	lost := status.UpdatesLost
	t.Logf("%d updates lost, %d more partly lost; the best rows lack %d, the worst %d", lost, partly, best, worst)
	switch {
	case lost > best || worst > lost+partly:
		t.Errorf("the job reports %d lost updates and %d more partly lost ones; the best rows lack %d, the worst %d",
			lost, partly, best, worst)
	case once && lost != best:
		t.Errorf("the best rows lack %d updates; the job reports %d lost", best, lost)
	}
}

// readSets reads the rows at the job's end.
func readSets(
	ctx context.Context, t *testing.T, j *localrun.Run, seed uint64,
) (dense, sparse, whole []float32, home perdure.ShardID) {
	c, err := locate.Observe(ctx, worker.Config{Coordinator: j.Coordinator(), Secret: j.Secrets().Job})
	must(t, err)
	defer c.Close()
	c.SetReadClock(sumsClocks)
	dense, sparse = make([]float32, clockSets*setDim), make([]float32, clockSets*setDim)
	whole = make([]float32, wholeSets*setDim)
	table, err := c.Table(ctx, setsDense)
	must(t, err)
	must(t, table.GetRun(ctx, 0, dense))
	table, err = c.Table(ctx, setsSparse)
	must(t, err)
	must(t, table.GetRows(ctx, setIDs(seed), sparse))
	table, err = c.Table(ctx, setsWhole)
	must(t, err)
	must(t, table.GetRun(ctx, 0, whole))
	return dense, sparse, whole, table.Spec().Shard
}
