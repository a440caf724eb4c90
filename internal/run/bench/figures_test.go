package bench

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

func TestFigures(t *testing.T) {
	if got := Median([]time.Duration{5, 1, 9}); got != 5 {
		t.Errorf("median %v", got)
	}
	if got := Median([]float64{4, 1, 3, 2}); got != 3 { // the upper one of two
		t.Errorf("median %v", got)
	}
	if got := newSpread([]float64{0.5, 0.25, 1}).String(); got != "0.50 (0.25 to 1.00)" {
		t.Errorf("spread %s", got)
	}
}

// TestChoose checks that choices are returned once each and in the order of all.
func TestChoose(t *testing.T) {
	all := []string{"a", "b", "c"}
	for _, c := range []struct{ given, want []string }{{nil, all}, {[]string{"c", "a", "c"}, []string{"a", "c"}}} {
		if got, err := choose("op", c.given, all, itself); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("of %q: %q, %v", c.given, got, err)
		}
	}
	if _, err := choose("op", []string{"d"}, all, itself); !errors.Is(err, perdure.ErrUsage) ||
		!strings.Contains(err.Error(), `--op "d"; choose a, b, c`) {
		t.Errorf("%v", err)
	}
}

// TestResultsFile checks that results replace a file atomically, and that an unwritable file is reported before the
// benchmark runs.
func TestResultsFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "bench.json")
	for _, path := range []string{"", file} {
		if err := errors.Join(checkWritable(path), writeResults(path, []int{1, 2})); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
	var got []int
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &got)
	}
	if err != nil || !reflect.DeepEqual(got, []int{1, 2}) {
		t.Errorf("%s, %v", text, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "none", "bench.json")} {
		if err := checkWritable(path); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
