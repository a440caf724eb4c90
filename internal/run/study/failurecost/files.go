package failurecost

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/humanize"
)

// resultName is the file with the complete result.
const resultName = "costs.json"

// maxResultBytes limits the size of a result that is read, in bytes.
const maxResultBytes = 256 << 20

// Write writes the result to a directory: costs.json, trials.csv, costs.md with tables, and costs.svg with a plot.
func (r *Result) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return perdure.Usagef("cannot write to %s: %w", dir, humanize.Cause(err))
	}
	f, err := os.Create(filepath.Join(dir, resultName))
	if err != nil {
		return err
	}
	if err := errors.Join(humanize.JSON(f, r), f.Close()); err != nil {
		return err
	}
	return errors.Join(humanize.WriteCSV(filepath.Join(dir, "trials.csv"), r.Rows()),
		os.WriteFile(filepath.Join(dir, "costs.md"), []byte(r.tables()), 0o666),
		os.WriteFile(filepath.Join(dir, "costs.svg"), r.Picture().SVG(true), 0o666))
}

// tables returns all tables that are not empty.
func (r *Result) tables() string {
	var all []string
	for _, t := range []string{r.Table(), r.PerturbationTable(), r.BoundsTable()} {
		if t != "" {
			all = append(all, t)
		}
	}
	return strings.Join(all, "\n")
}

// Rows returns the rows of trials.csv: a header and one row for each trial.
func (r *Result) Rows() [][]string {
	rows := [][]string{{
		"strategy", "lost", "seed", "clocks", "servers", "shards", "norms", "cost", "censored", "bound", "neat",
	}}
	for _, t := range r.Trials {
		var clocks, servers, shards, norms []string
		for _, f := range t.Failures {
			clocks = append(clocks, fmt.Sprint(f.Clock))
			servers = append(servers, strings.Trim(fmt.Sprint(f.Servers), "[]"))
			shards = append(shards, strings.Trim(fmt.Sprint(f.Shards), "[]"))
			norms = append(norms, humanize.Format(f.Norm))
		}
		bound := math.NaN()
		if t.Bound != nil {
			bound = float64(*t.Bound)
		}
		rows = append(rows, humanize.Record(t.Strategy, t.Lost, t.Seed, strings.Join(clocks, ";"),
			strings.Join(servers, ";"), strings.Join(shards, ";"), strings.Join(norms, ";"), t.Cost, t.Censored,
			bound, t.SimpleBound))
	}
	return rows
}

// Read reads a result that Write wrote.
func Read(dir string) (*Result, error) {
	path := filepath.Join(dir, resultName)
	b, err := disk.ReadRegular(path, maxResultBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, perdure.Usagef("%s has no %s; perdure study losses --out writes it", dir, resultName)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, humanize.Cause(err))
	}
	r := &Result{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if r.Schema != Schema {
		return nil, perdure.Usagef("%s has schema %d, but this version of perdure reads %d; run the study again", path,
			r.Schema, Schema)
	}
	return r, nil
}

// Pool merges the results of several twins with equal settings. Trials of the same strategy and lost part share a cell.
func Pool(all []*Result) (*Result, error) {
	if len(all) == 0 {
		return nil, perdure.Usagef("there are no twins")
	}
	sum := *all[0]
	sum.Twins, sum.Trials, sum.Repeats, sum.Bytes = nil, nil, nil, map[string]int64{}
	for _, r := range all {
		if r.Workload != sum.Workload || r.Measure != sum.Measure || r.Clocks != sum.Clocks || r.Strike != sum.Strike {
			return nil, perdure.Usagef("twins have different settings: %s for %d clocks and %s for %d", sum.Workload,
				sum.Clocks, r.Workload, r.Clocks)
		}
		sum.Twins = append(sum.Twins, r.Twins...)
		sum.Trials = append(sum.Trials, r.Trials...)
		sum.Repeats = append(sum.Repeats, r.Repeats...)
		for strategy, n := range r.Bytes {
			sum.Bytes[strategy] += n
		}
	}
	return &sum, sum.sum()
}
