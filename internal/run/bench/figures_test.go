package bench_test

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
	"github.com/perdure/perdure/internal/run/bench"
)

func TestFigures(t *testing.T) {
	if got := bench.Median([]time.Duration{5, 1, 9}); got != 5 {
		t.Errorf("median %v", got)
	}
	if got := bench.Median([]float64{4, 1, 3, 2}); got != 3 { // the upper one of two
		t.Errorf("median %v", got)
	}
	if got := bench.NewSpread([]float64{0.5, 0.25, 1}).String(); got != "0.50 (0.25 to 1.00)" {
		t.Errorf("spread %s", got)
	}
	if middle, most := bench.MiddleMost(nil); middle != nil || most != nil {
		t.Errorf("of nothing: %v, %v", middle, most)
	}
	if middle, most := bench.MiddleMost([]float64{3, 9, 1}); *middle != 3 || *most != 9 {
		t.Errorf("%v, %v", *middle, *most)
	}
}

// TestChoose: what is chosen comes in the order of all there is, once each.
func TestChoose(t *testing.T) {
	all := []string{"a", "b", "c"}
	for _, c := range []struct{ given, want []string }{{nil, all}, {[]string{"c", "a", "c"}, []string{"a", "c"}}} {
		if got, err := bench.Choose("op", c.given, all, bench.Itself); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("of %q: %q, %v", c.given, got, err)
		}
	}
	if _, err := bench.Choose("op", []string{"d"}, all, bench.Itself); !errors.Is(err, perdure.ErrUsage) ||
		!strings.Contains(err.Error(), `--op "d"; choose a, b, c`) {
		t.Errorf("%v", err)
	}
}

// TestFile: results replace a file as a whole, and where they could not be written is known
// before.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "bench.json")
	for _, path := range []string{"", file} {
		if err := errors.Join(bench.CheckWritable(path), bench.WriteResults(path, []int{1, 2})); err != nil {
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
		if err := bench.CheckWritable(path); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
