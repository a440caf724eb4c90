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
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/worker"
)

var stormRows = flag.String("storm.rows", "scar:20,1/8,priority;none",
	"likewise those under which rows of a shard may lack updates")

// rowsModels are the models of such jobs, by their seeds.
var rowsModels = []string{"bsp", "ssp:3", "essp:3", "asp"}

// The row oracle: each row says of which clocks of which slot it has the update. Of each slot it
// has three values: how many updates were added, and the sums of 2^clock of the first clocks and
// of the others. So the sums are sets of clocks, as long as nothing is added twice; and then the
// number would be larger than the set.
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
	if clock%4 == 0 { // what is read does not count, but that somebody reads
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

// setLacks is how many updates a row lacks; err: it has one twice, or one that was never sent.
func setLacks(row []float32) (lacks int, err error) {
	lacks = sumsSlots * sumsClocks
	for own := range slices.Chunk(row, 3) {
		has := 0
		for _, v := range own[1:] {
			set := uint32(max(0, v))
			if float32(set) != v || set >= 1<<clocksInValue {
				return 0, fmt.Errorf("%v is no set of clocks", v)
			}
			has += bits.OnesCount32(set)
		}
		if own[0] != float32(has) {
			return 0, fmt.Errorf("%v updates were added, of %d clocks", own[0], has)
		}
		lacks -= has
	}
	return lacks, nil
}

// TestStormRows: in the storms of TestStorm, under strategies that lose what was acknowledged,
// no row has an update twice. What the job says is lost, all rows of the shard lack; what dense
// ones lack beside that it says is lost in part. Each row is what its shard was restored to last, and every update
// from its base on.
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
	if seed/4%2 == 1 && model.Kind != perdure.BSP && recovery.Of(strategy).MayContinue() == nil {
		job.OnOutage = perdure.OnOutage{Continue: true, Clocks: 10}
		job.OutageRows, job.StaleScale = perdure.RowsApply, perdure.ScaleAverage
	}
	// all files of rows stay, so that it can be told with what each shard began last
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
		t.Fatalf("the job has ended, or does not: %v", context.Cause(alive))
	}
	compareSets(ctx, t, j, seed)
	j.Job().Over()
	j.Job().End(localrun.ErrOver)
	<-alive.Done()
}

// compareSets holds what rows lack at the job's end against what it says is lost. That a sparse
// row was never saved, and is lost as a whole, nobody knows any more: of these rows all that is
// known is that they lack what is lost at least.
func compareSets(ctx context.Context, t *testing.T, j *localrun.Run, seed uint64) {
	rows, sparseRows, wholeRows, home := readSets(ctx, t, j, seed)
	status, v, err := reach.Look(ctx, j.Control())
	for err != nil && ctx.Err() == nil { // the coordinator may be away still
		status, v, err = reach.Look(ctx, j.Control())
	}
	must(t, err)
	least, most := make([]int, len(v.Shards)), make([]int, len(v.Shards))
	for s := range least {
		least[s] = sumsSlots * sumsClocks
	}
	note := func(what string, shard perdure.ShardID, row []float32, sparse bool) {
		lacks, err := setLacks(row)
		if err != nil {
			t.Fatalf("%s of shard %d: %v: %v", what, shard, err, row)
		}
		least[shard] = min(least[shard], lacks)
		if !sparse {
			most[shard] = max(most[shard], lacks)
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
			t.Errorf("a whole table is torn: row %d has %v, and row 0 %v", i, row, wholeRows[:setDim])
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

// judgeSets judges what the best and the worst row of each shard lack.
func judgeSets(t *testing.T, status *control.Status, v *words.View, least, most []int) {
	partly, once, best, worst := int64(0), true, int64(0), int64(0)
	if status.Saving != nil && status.Saving.Rows != nil {
		partly = status.Saving.Rows.PartlyLost
	}
	for s := range v.Shards {
		best, worst = best+int64(least[s]), worst+int64(most[s])
		once = once && v.Shards[s].Epoch <= 2
	}
	lost := status.UpdatesLost
	t.Logf("%d updates are lost, %d more in part; the best rows lack %d, the worst %d", lost, partly, best, worst)
	switch {
	case lost > best || worst > lost+partly:
		t.Errorf("the job says that %d updates are lost, and %d more in part; the best rows lack %d, and the worst %d",
			lost, partly, best, worst)
	case once && lost != best:
		t.Errorf("the best rows lack %d updates; the job says that %d are lost", best, lost)
	}
}

// readSets reads the rows as of the job's end.
func readSets(
	ctx context.Context, t *testing.T, j *localrun.Run, seed uint64,
) (dense, sparse, whole []float32, home perdure.ShardID) {
	c, err := reach.Observe(ctx, worker.Config{Coordinator: j.Coordinator(), Secret: j.Secrets().Job})
	must(t, err)
	defer c.Close()
	c.At(sumsClocks)
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
