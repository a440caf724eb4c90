package main

import (
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/rundir"
)

// column reads columns of a run's series.csv. It returns the rows in which all of them have values.
func column(t *testing.T, dir string, names ...string) (rows [][]float64) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "series.csv"))
	must(t, err)
	all, err := csv.NewReader(strings.NewReader(string(b))).ReadAll()
	must(t, err)
	for _, cells := range all[1:] {
		var row []float64
		for _, name := range names {
			if v, err := strconv.ParseFloat(cells[slices.Index(all[0], name)], 64); err == nil {
				row = append(row, v)
			}
		}
		if len(row) == len(names) {
			rows = append(rows, row)
		}
	}
	return rows
}

// checkMeasures checks the measures of time and of reads in a summary and a series.
func checkMeasures(t *testing.T, s rundir.Summary, dir string) {
	t.Helper()
	sumsUp := func(what string, parts ...float64) {
		sum := 0.0
		for _, v := range parts {
			if v < 0 || v > 1 {
				t.Errorf("%s: a part is %g of the total", what, v)
			}
			sum += v
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("%s: the parts sum to %g", what, sum)
		}
	}
	if s.TimeSplit == nil || len(s.MissingUpdates) == 0 {
		t.Fatalf("time split %v, missing updates %v", s.TimeSplit, s.MissingUpdates)
	}
	if split := s.TimeSplit; split != nil {
		sumsUp("summary", split.Compute, split.Staleness, split.Communication)
		var compute, all float64
		for i, w := range split.Workers {
			if w.Slot != i {
				t.Errorf("the time of slot %d is at the index of slot %d", w.Slot, i)
			}
			compute += w.ComputeS
			all += w.ComputeS + w.StalenessS + w.CommunicationS
		}
		if len(split.Workers) != s.Workers || math.Abs(compute/all-split.Compute) > 1e-6 {
			t.Errorf("%d workers computed %g of %g s, but the total is %g", len(split.Workers), compute, all,
				split.Compute)
		}
	}
	for _, row := range column(t, dir, "time_compute", "time_staleness", "time_communication") {
		sumsUp("series", row...)
	}
	if s.MissingUpdates == nil || s.ClockDifferential == nil {
		t.Error("the summary lacks histograms of reads")
	}
	for text := range s.MissingUpdates {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || s.MissingBound != nil && n > *s.MissingBound {
			t.Errorf("a read lacked %s updates, but the bound is %v", text, s.MissingBound)
		}
	}
}
