package study

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/runs"
	"github.com/perdure/perdure/internal/run/study/failurecost"
)

// Schema is the version of study.json.
const Schema = 1

// Results are the results of a study so far, stored as study.json.
type Results struct {
	Schema   int           `json:"schema"`
	Kind     string        `json:"kind"`
	Name     string        `json:"name"`
	Question string        `json:"question,omitempty"`
	Quick    bool          `json:"quick"`
	Version  string        `json:"version"` // of the perdure that executed the runs; several are separated by commas
	Builds   []string      `json:"builds"`  // of all runs
	Machine  Machine       `json:"machine"`
	Parallel int           `json:"at_once"` // maximum number of concurrent runs
	Axes     []string      `json:"axes"`
	Runs     int           `json:"runs"`    // planned
	Missing  int           `json:"missing"` // planned but not finished
	Cells    []CellResult  `json:"cells"`
	LeftOut  []SkippedCell `json:"left_out"`
	Notes    []string      `json:"notes"`
	Prices   string        `json:"prices,omitempty"` // source of the prices
}

// Machine is the machine that ran a study.
type Machine struct {
	Cores int    `json:"cores"`
	CPU   string `json:"cpu"`
}

// CellResult is the result of a cell's runs. Losses summarizes the trials of all twins.
type CellResult struct {
	Name     string             `json:"name"`
	Choices  []string           `json:"choices"` // one for each axis
	Failures string             `json:"failures"`
	Trials   []Trial            `json:"trials"`
	Failed   []FailedRun        `json:"failed"`
	Figures  map[string]Figure  `json:"figures"`
	Losses   []failurecost.Cell `json:"losses,omitempty"`

	pooled *failurecost.Result // nil for other kinds, and before the first twin
}

func (c *executor) results() (*Results, error) {
	finished := c.finished()
	r := &Results{
		Schema: Schema, Kind: c.Kind.Name, Name: c.Name, Question: c.Question, Quick: c.Quick,
		Builds: []string{}, Axes: []string{}, Runs: len(c.runs), Missing: len(c.runs) - len(finished),
		Machine: Machine{runtime.NumCPU(), machine.CPUModel()}, Parallel: maxConcurrent(finished),
		LeftOut: append([]SkippedCell{}, c.LeftOut...), Notes: append([]string{}, c.Notes...),
	}
	if c.prices != nil {
		r.Prices = c.prices.Source
	}
	for _, a := range c.Vary {
		r.Axes = append(r.Axes, a.Name)
	}
	var versions []string
	for _, of := range finished {
		versions = appendUnique(versions, of.done.Version)
		if of.done.Why == "" {
			r.Builds = appendUnique(r.Builds, of.done.Build)
		}
	}
	r.Version = cmp.Or(strings.Join(versions, ", "), c.Program.Version)
	for _, cell := range c.Cells {
		res := CellResult{
			Name: cell.Name, Choices: append([]string{}, cell.Labels...), Failures: cell.Plan,
			Trials: []Trial{}, Failed: []FailedRun{}, Figures: map[string]Figure{},
		}
		for _, of := range finished {
			switch {
			case of.cell != cell:
			case of.done.Why != "":
				res.Failed = append(res.Failed, FailedRun{of.seed, of.folder, of.done.Why})
			default:
				res.Trials = append(res.Trials, of.trial)
			}
		}
		for _, name := range Figures {
			var values []float64
			for _, t := range res.Trials {
				if v, ok := t.Figures[name]; ok {
					values = append(values, v)
				}
			}
			if len(values) > 0 {
				res.Figures[name] = figureOf(values)
			}
		}
		if c.Kind.Name == KindLosses {
			if err := res.pool(); err != nil {
				return nil, err
			}
		}
		r.Cells = append(r.Cells, res)
	}
	return r, nil
}

// appendUnique adds one if it is missing.
func appendUnique(all []string, one string) []string {
	if slices.Contains(all, one) {
		return all
	}
	return append(all, one)
}

// maxConcurrent returns the maximum number of concurrent runs. It is computed from the runs, because a study may be
// continued with another setting.
func maxConcurrent(finished []*run) (most int) {
	for _, a := range finished {
		began, n := a.done.began(), 0
		for _, b := range finished {
			if !b.done.began().After(began) && b.done.Ended.After(began) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// pool merges the results of all twins of a cell.
func (r *CellResult) pool() (err error) {
	var all []*failurecost.Result
	for _, t := range r.Trials {
		of, err := failurecost.Read(t.Folder)
		if err != nil {
			return err
		}
		all = append(all, of)
	}
	if len(all) == 0 {
		return nil
	}
	if r.pooled, err = failurecost.Pool(all); err == nil {
		r.Losses = r.pooled.Cells
	}
	return err
}

// Write writes study.json, runs.csv and, if the runs are jobs, series.csv to the study's directory.
func (r *Results) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(dir, "study.json"), r); err != nil {
		return err
	}
	if err := r.WriteRuns(dir); err != nil || r.Kind == KindLosses {
		return err
	}
	return r.writeSeries(dir)
}

// files returns the names of the files that Write writes.
func (r *Results) files() string {
	if r.Kind == KindLosses {
		return "study.json and runs.csv"
	}
	return "study.json, runs.csv and series.csv"
}

// WriteRuns writes runs.csv with a line for each run.
func (r *Results) WriteRuns(dir string) error {
	rows := [][]string{slices.Concat([]string{"cell"}, r.Axes, []string{"failures", "seed", "state"}, Figures,
		[]string{"model_sha256", "build", "folder", "why"})}
	for i := range r.Cells {
		c := &r.Cells[i]
		start := slices.Concat([]string{c.Name}, c.Choices, []string{c.Failures})
		for _, t := range c.Trials {
			row := append(slices.Clone(start), strconv.FormatUint(t.Seed, 10), "done")
			for _, name := range Figures {
				cell := ""
				if v, ok := t.Figures[name]; ok {
					cell = humanize.Format(v)
				}
				row = append(row, cell)
			}
			model := ""
			if t.Model != nil {
				model = *t.Model
			}
			rows = append(rows, append(row, model, t.Build, relativeDir(t.Folder), ""))
		}
		for _, f := range c.Failed {
			row := append(slices.Clone(start), strconv.FormatUint(f.Seed, 10), "failed")
			row = append(row, make([]string, len(Figures))...)
			rows = append(rows, append(row, "", "", relativeDir(f.Folder), f.Why))
		}
	}
	return humanize.WriteCSV(filepath.Join(dir, "runs.csv"), rows)
}

// writeSeries writes series.csv. It has all lines of the runs' series.csv, with the cell and the seed of each run.
// Columns that a run lacks are empty.
func (r *Results) writeSeries(dir string) error {
	var columns []string
	err := r.eachSeries(func(_ []string, s *rundir.Series) error {
		for _, c := range s.Columns {
			if !slices.Contains(columns, c) {
				columns = append(columns, c)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return disk.WriteFile(disk.OS(), filepath.ToSlash(filepath.Join(dir, "series.csv")), func(to io.Writer) error {
		w := csv.NewWriter(to)
		head := slices.Concat([]string{"cell"}, r.Axes, []string{"failures", "seed"})
		if err := w.Write(slices.Concat(head, columns)); err != nil {
			return err
		}
		err := r.eachSeries(func(of []string, s *rundir.Series) error {
			for _, row := range s.Rows {
				line := slices.Concat(of, make([]string, len(columns)))
				for i, value := range row {
					line[len(of)+slices.Index(columns, s.Columns[i])] = value
				}
				if err := w.Write(line); err != nil {
					return err
				}
			}
			return nil
		})
		w.Flush()
		return errors.Join(err, w.Error())
	})
}

// eachSeries passes the series of each run to use, one at a time, with the cell and the seed.
func (r *Results) eachSeries(use func(of []string, s *rundir.Series) error) error {
	for i := range r.Cells {
		c := &r.Cells[i]
		for _, t := range c.Trials {
			s, err := rundir.ReadSeries(t.Folder)
			if err != nil {
				return fmt.Errorf("%w; delete the directory %s and run the study again", err, t.Folder)
			}
			of := slices.Concat([]string{c.Name}, c.Choices, []string{c.Failures, strconv.FormatUint(t.Seed, 10)})
			if err := use(of, &s); err != nil {
				return err
			}
		}
	}
	return nil
}

// relativeDir returns a run's directory relative to the study's, to leave out where the study was stored.
func relativeDir(dir string) string {
	return filepath.ToSlash(filepath.Join(filepath.Base(filepath.Dir(dir)), filepath.Base(dir)))
}

// column is a figure in the table.
type column struct {
	figure, title string
	write         func(float64) string
}

// columns of the table; a column is shown if some cell has the figure.
var columns = []column{
	{"accuracy", "ACCURACY", humanize.Percent1},
	{"rmse", "RMSE", humanize.Short},
	{"loss", "LOSS", humanize.Short},
	{"seconds", "SECONDS", humanize.Short},
	{"goal-seconds", "TO GOAL", humanize.Short},
	{"clocks", "CLOCKS", humanize.Short},
	{"faults", "FAULTS", humanize.Short},
	{"lost", "LOST", humanize.Short},
	{"redone", "REDONE", humanize.Short},
	{"away", "AWAY s", humanize.Short},
	{"cost", "ON DEMAND", dollars},
	{"cost-spot", "SPOT", dollars},
	{"cost-month", "MONTH", dollars},
}

func dollars(v float64) string { return runs.DollarsText(&v) }

// has reports whether some cell has one of the figures.
func (r *Results) has(figures ...string) bool {
	return slices.ContainsFunc(r.Cells, func(c CellResult) bool {
		return slices.ContainsFunc(figures, func(f string) bool { return c.Figures[f].Trials > 0 })
	})
}

// shownColumns returns the columns to show. The loss is shown only if no cell has an accuracy or an RMSE.
func (r *Results) shownColumns() (all []column) {
	for _, c := range columns {
		if r.has(c.figure) && (c.figure != "loss" || !r.has("accuracy", "rmse")) {
			all = append(all, c)
		}
	}
	return all
}

// Print prints a table with the median of each figure for each cell, and the range if its values differ.
func (r *Results) Print(out io.Writer) error {
	if r.Question != "" {
		fmt.Fprintln(out, r.Question)
	}
	if r.Kind == KindLosses {
		return r.printLosses(out)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	heads := slices.Concat(r.Axes, []string{"failures", "trials"})
	shown := r.shownColumns()
	for _, c := range shown {
		heads = append(heads, c.title)
	}
	fmt.Fprintln(w, strings.ToUpper(strings.Join(heads, "\t")))
	for i := range r.Cells {
		cell := &r.Cells[i]
		count := strconv.Itoa(len(cell.Trials))
		if n := len(cell.Failed); n > 0 {
			count += fmt.Sprintf(", %d failed", n)
		}
		cells := slices.Concat(cell.Choices, []string{cell.Failures, count})
		for _, c := range shown {
			text := "-"
			if f, ok := cell.Figures[c.figure]; ok {
				text = plot.Spread{Mid: f.Median, Low: f.Low, High: f.High}.Text(c.write)
			}
			cells = append(cells, text)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return r.printRest(out)
}

// printLosses prints a table for each cell.
func (r *Results) printLosses(out io.Writer) error {
	for i := range r.Cells {
		c := &r.Cells[i]
		fmt.Fprintf(out, "\n%s: %d twins\n", c.Name, len(c.Trials))
		if c.pooled == nil {
			continue
		}
		if err := c.pooled.Print(out); err != nil {
			return err
		}
	}
	return r.printRest(out)
}

// printRest prints failed and missing runs, cells left out, and notes.
func (r *Results) printRest(out io.Writer) error {
	for i := range r.Cells {
		for _, f := range r.Cells[i].Failed {
			fmt.Fprintf(out, "failed   %s: %s\n", f.Folder, f.Why)
		}
	}
	if r.Missing > 0 {
		fmt.Fprintf(out, "missing  %d of %d runs; run the same command again to continue\n", r.Missing, r.Runs)
	}
	for _, l := range r.LeftOut {
		fmt.Fprintf(out, "left out %s: %s\n", l.Name, l.Why)
	}
	for _, n := range r.Notes {
		fmt.Fprintln(out, "note     "+n)
	}
	return nil
}
