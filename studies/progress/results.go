package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/itercost"
)

// trial is a task with a seed, and when which server dies.
type trial struct {
	task
	seed   uint64
	kill   int
	victim int
}

// draw draws the trials of all tasks.
func draw(n int) (trials []trial) {
	for _, t := range tasks {
		for seed := uint64(1); seed <= uint64(n); seed++ {
			r := rand.New(rand.NewPCG(seed, uint64(len(t.name))))
			trials = append(trials, trial{t, seed, t.first + r.IntN(t.last-t.first), r.IntN(2)})
		}
	}
	return trials
}

// result is what a failure cost under a strategy.
type result struct {
	*trial
	arm      string
	cost     itercost.Cost
	end      float64 // the measure at the end, less the twin's
	lost     int64   // updates
	failures int     // more than 1: something else died, too
	same     bool    // the model is the twin's, bit by bit
	epsilon  float64
}

// results reads the runs of all trials that are whole.
func (s *settings) results(trials []trial) (all []result, err error) {
	for i := range trials {
		of, err := s.judge(&trials[i])
		if errors.Is(err, os.ErrNotExist) {
			continue // -report, while runs are left
		}
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

// judge reads the runs of a trial.
func (s *settings) judge(tr *trial) (all []result, err error) {
	twin, err := s.read(tr, "")
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(twin.series, func(p itercost.Point) bool { return p.Clock >= tr.goal })
	if at < 0 {
		return nil, fmt.Errorf("%s ended before clock %d", tr.job("").name, tr.goal)
	}
	epsilon := twin.series[at].Value
	reached, err := itercost.Kappa(twin.series, epsilon)
	if err != nil {
		return nil, err
	}
	for _, arm := range arms {
		run, err := s.read(tr, arm)
		if err != nil {
			return nil, err
		}
		r := result{
			trial: tr, arm: arm, epsilon: epsilon, lost: *run.sum.UpdatesLost,
			failures: len(run.sum.Failures),
			end:      run.series[len(run.series)-1].Value - twin.series[len(twin.series)-1].Value,
			same:     *run.sum.ModelSHA256 == *twin.sum.ModelSHA256,
		}
		if r.cost, err = costOf(run, reached, epsilon); err != nil {
			return nil, fmt.Errorf("%s: %w", tr.job(arm).name, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// costOf counts iterations: those that were done again, and by how many clocks later than the
// twin the run reached ε for good.
func costOf(run *finished, twin itercost.Reach, epsilon float64) (itercost.Cost, error) {
	reached, err := itercost.Kappa(run.series, epsilon)
	if err != nil {
		return itercost.Cost{}, err
	}
	cost, err := itercost.Iota(reached, twin)
	cost.Clocks += int((*run.sum.ClocksRedone + int64(run.sum.Workers)/2) / int64(run.sum.Workers))
	return cost, err
}

// finished is a run that has ended.
type finished struct {
	sum    rundir.Summary
	series itercost.Series
}

func (s *settings) read(tr *trial, arm string) (*finished, error) {
	j := tr.job(arm)
	folder := s.folder(j)
	text, err := os.ReadFile(filepath.Join(folder, "summary.json"))
	if err != nil {
		return nil, err
	}
	f := &finished{}
	if err := json.Unmarshal(text, &f.sum); err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	if f.sum.UpdatesLost == nil || f.sum.ClocksRedone == nil || f.sum.ModelSHA256 == nil {
		return nil, fmt.Errorf("%s: the run did not end with a model", folder)
	}
	if arm != "" && len(f.sum.Failures) == 0 {
		return nil, fmt.Errorf("%s: nothing failed", folder)
	}
	file, err := os.Open(filepath.Join(folder, "series.csv"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err == nil {
		f.series, err = seriesOf(rows, tr.measure)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	return f, nil
}

// seriesOf takes a measure from a table of a run's course. Where clocks were done again the
// last time counts.
func seriesOf(rows [][]string, measure string) (s itercost.Series, err error) {
	clock, value := slices.Index(rows[0], "clock"), slices.Index(rows[0], measure)
	if clock < 0 || value < 0 {
		return nil, errors.New("series.csv has no column clock, or none " + measure)
	}
	for _, row := range rows[1:] {
		if row[value] == "" {
			continue
		}
		at, err1 := strconv.Atoi(row[clock])
		v, err2 := strconv.ParseFloat(row[value], 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		s = slices.DeleteFunc(s, func(p itercost.Point) bool { return p.Clock >= at })
		s = append(s, itercost.Point{Clock: at, Value: v})
	}
	return s, nil
}
