package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/itercost"
)

// TestDraw: trials are a function of their seeds, and all within their bounds.
func TestDraw(t *testing.T) {
	all := draw(50)
	if !reflect.DeepEqual(all, draw(50)) || len(all) != 50*len(tasks) {
		t.Error("the same seeds draw other trials")
	}
	for _, tr := range all {
		if tr.kill < tr.first || tr.kill >= tr.last || tr.last >= tr.goal || tr.goal >= tr.clocks ||
			tr.first < interval {
			t.Errorf("%+v", tr)
		}
	}
}

// TestCost: clocks that are done again count, by worker, and so does a later ε.
func TestCost(t *testing.T) {
	rows := [][]string{
		{"clock", "test_loss"}, {"2", "5"}, {"4", "3"}, {"6", "2"}, {"4", "3.5"}, {"5", ""}, {"6", "2.5"}, {"8", "1"},
	}
	s, err := seriesOf(rows, "test_loss")
	want := itercost.Series{{Clock: 2, Value: 5}, {Clock: 4, Value: 3.5}, {Clock: 6, Value: 2.5}, {Clock: 8, Value: 1}}
	if err != nil || !reflect.DeepEqual(s, want) {
		t.Fatalf("%v, %v", s, err)
	}
	redone := int64(7)
	run := &finished{sum: rundir.Summary{ClocksRedone: &redone, Workers: 2}, series: s}
	if c, err := costOf(run, itercost.Reach{Clock: 4}, 2); err != nil || c.Clocks != 4+4 || c.Censored {
		t.Errorf("%v, %v", c, err)
	}
	if _, err := seriesOf(rows, "test_rmse"); err == nil {
		t.Error("a measure that is not there is taken")
	}
}

// TestReport: without runs the page says what was asked.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	args := []string{"-report", "-runs", filepath.Join(dir, "runs"), "-out", filepath.Join(dir, "page")}
	if err := conduct(context.Background(), args, io.Discard); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "page", "README.md")); err != nil {
		t.Error(err)
	}
}
