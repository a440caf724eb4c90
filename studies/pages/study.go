package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/study"
	"github.com/perdure/perdure/internal/run/study/failurecost"
)

// outcome holds the results of a study so far, and the measurements of its runs.
type outcome struct {
	study.Results

	date    string // date of the newest run
	folder  string
	cells   []*cell
	unknown []string // labels that a page requested but no cell has
}

// cell is a set of runs that differ only in their seeds.
type cell struct {
	name   string
	trials []*trial
	failed []study.FailedRun
	labels labelSet            // one for each axis
	place  map[string]int      // index of each label among the labels of its axis
	losses *failurecost.Result // pooled over all twins; nil if there are none
}

// trial is a run that has ended.
type trial struct {
	figures map[string]float64
	summary rundir.Summary
	series  rundir.Series
}

// maxResultsBytes limits the size of study.json, in bytes.
const maxResultsBytes = 256 << 20

func readResults(dir string) (*study.Results, error) {
	b, err := disk.ReadRegular(filepath.Join(dir, "study.json"), maxResultsBytes)
	if err != nil {
		return nil, err
	}
	r := &study.Results{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "study.json"), err)
	}
	return r, nil
}

// open reads the runs in a study's directory.
func open(dir string, r *study.Results) (*outcome, error) {
	s := &outcome{Results: *r, folder: dir}
	shorten(&s.Results)
	for i := range s.Results.Cells {
		if err := s.open(&s.Results.Cells[i]); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// shorten cuts the labels of an axis to their first word if the result is still unique. The label of a choice with
// several settings lists them all.
func shorten(r *study.Results) {
	for axis := range r.Axes {
		full := map[string]string{} // by first word
		unique := true
		for _, c := range r.Cells {
			word, _, _ := strings.Cut(c.Choices[axis], " ")
			unique = unique && cmp.Or(full[word], c.Choices[axis]) == c.Choices[axis]
			full[word] = c.Choices[axis]
		}
		for _, c := range r.Cells {
			if unique {
				c.Choices[axis], _, _ = strings.Cut(c.Choices[axis], " ")
			}
		}
	}
}

// addCell adds a cell without trials.
func (s *outcome) addCell(r *study.CellResult) *cell {
	c := &cell{
		name: r.Name, failed: r.Failed, labels: labelSet{"failures": r.Failures}, place: map[string]int{},
	}
	for i, axis := range s.Axes {
		c.labels[axis] = r.Choices[i]
	}
	for axis, label := range c.labels {
		if c.place[axis] = slices.Index(s.labelsOf(axis), label); c.place[axis] < 0 {
			c.place[axis] = len(s.labelsOf(axis))
		}
	}
	s.cells = append(s.cells, c)
	return c
}

// open reads the runs of a cell.
func (s *outcome) open(r *study.CellResult) error {
	c := s.addCell(r)
	var twins []*failurecost.Result
	for _, of := range r.Trials {
		t := &trial{figures: of.Figures}
		run := filepath.Join(s.folder, r.Name, fmt.Sprintf("seed-%d", of.Seed))
		var err error
		if s.Kind == study.KindLosses {
			var twin *failurecost.Result
			twin, err = failurecost.Read(run)
			twins = append(twins, twin)
			s.updateDate(filepath.Join(run, "costs.json"))
		} else {
			if t.summary, err = rundir.ReadSummary(run); err == nil {
				t.series, err = rundir.ReadSeries(run)
			}
			s.updateDate(filepath.Join(run, "summary.json"))
		}
		if err != nil {
			return fmt.Errorf("%w; delete the directory %s and run the study again", err, run)
		}
		c.trials = append(c.trials, t)
	}
	if len(twins) > 0 {
		var err error
		if c.losses, err = failurecost.Pool(twins); err != nil {
			return err
		}
	}
	return nil
}

// updateDate updates s.date with the modification time of a run's file.
func (s *outcome) updateDate(file string) {
	if info, err := os.Stat(file); err == nil {
		s.date = max(s.date, info.ModTime().Format("2006-01-02"))
	}
}

// labelsOf returns the labels of an axis, or of "failures", in the order of the study's file.
func (s *outcome) labelsOf(axis string) (labels []string) {
	for _, c := range s.cells {
		if label, known := c.labels[axis]; known && !slices.Contains(labels, label) {
			labels = append(labels, label)
		}
	}
	return labels
}

// labelSet holds a label for each of some axes, or for "failures".
type labelSet map[string]string

// and returns a copy of a with one more label.
func (a labelSet) and(axis, label string) labelSet {
	more := labelSet{}
	maps.Copy(more, a)
	more[axis] = label
	return more
}

// where returns the cells that have all the given labels, in the order of the study's file.
func (s *outcome) where(labels labelSet) []*cell {
	for axis, label := range labels {
		if text := axis + "=" + label; !slices.Contains(s.labelsOf(axis), label) && !slices.Contains(s.unknown, text) {
			s.unknown = append(s.unknown, text)
		}
	}
	return plot.Where(s.cells, func(c *cell) bool {
		for axis, label := range labels {
			if c.labels[axis] != label {
				return false
			}
		}
		return true
	})
}

// only returns the cells that have one of the given labels of an axis.
func only(cells []*cell, axis string, labels ...string) []*cell {
	return plot.Where(cells, func(c *cell) bool { return slices.Contains(labels, c.labels[axis]) })
}

// cell returns the first cell that has the given labels, or else a cell without runs: with --quick a study may have
// fewer cells than its page mentions.
func (s *outcome) cell(labels labelSet) *cell {
	if found := s.where(labels); len(found) > 0 {
		return found[0]
	}
	return &cell{name: "none"}
}

// withFailures returns the cell that differs from c only in its failure plan.
func (s *outcome) withFailures(c *cell, failures string) *cell {
	return s.cell(c.labels.and("failures", failures))
}

// nameOf returns a cell's name: its labels of the given axes or, if none are given, of all axes that vary.
func (s *outcome) nameOf(c *cell, axes ...string) string {
	if len(axes) == 0 {
		for _, axis := range append(slices.Clone(s.Axes), "failures") {
			if len(s.labelsOf(axis)) > 1 {
				axes = append(axes, axis)
			}
		}
	}
	var words []string
	for _, axis := range axes {
		if label := c.labels[axis]; label != "" {
			words = append(words, label)
		}
	}
	return cmp.Or(strings.Join(words, " "), c.name)
}

// atATime describes how many runs ran at the same time.
func (s *outcome) atATime() string {
	if s.Parallel > 1 {
		return fmt.Sprintf("up to %d runs at a time", s.Parallel)
	}
	return "one run at a time"
}

// trialCount returns the number of trials per cell, or the range if cells differ.
func (s *outcome) trialCount() string {
	least, most := math.MaxInt, 0
	for _, c := range s.cells {
		least, most = min(least, len(c.trials)), max(most, len(c.trials))
	}
	if least == most {
		return fmt.Sprint(most)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

// hasSingleTrials reports whether each cell has only one trial, which shows nothing about chance.
func (s *outcome) hasSingleTrials() bool { return s.trialCount() == "1" }

// failedRuns formats the number of failed runs in some cells.
func failedRuns(cells []*cell) string {
	n, all := 0, 0
	for _, c := range cells {
		n, all = n+len(c.failed), all+len(c.failed)+len(c.trials)
	}
	return fmt.Sprintf("%d of %d runs", n, all)
}

// spread returns the median and the range of a measure over the trials that recorded it.
func (c *cell) spread(of measure) plot.Spread {
	var values []float64
	for _, t := range c.trials {
		if v := of(t); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return plot.SpreadOf(values)
}

// mid returns the median of a measure over the trials of a cell, or NaN if no trial recorded it.
func (c *cell) mid(of measure) float64 { return c.spread(of).Mid }

// sorted returns the cells in ascending order of the median of a measure, without cells that did not record it.
func sorted(cells []*cell, of measure) []*cell {
	some := plot.Where(cells, func(c *cell) bool { return known(c.spread(of)) })
	slices.SortStableFunc(some, func(a, b *cell) int { return cmp.Compare(a.mid(of), b.mid(of)) })
	return some
}

// ends returns the cells with the lowest and the highest median of a measure.
func ends(cells []*cell, of measure) (lowest, highest *cell) {
	some := sorted(cells, of)
	if len(some) == 0 {
		return &cell{name: "none"}, &cell{name: "none"}
	}
	return some[0], some[len(some)-1]
}

// distinguishable reports whether the trials distinguish two cells: both have several trials, and their ranges do not
// overlap.
func distinguishable(a, b *cell, of measure) bool {
	v, w := a.spread(of), b.spread(of)
	return len(a.trials) > 1 && len(b.trials) > 1 && (v.High < w.Low || w.High < v.Low)
}
