package dataset

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// covertypeLine returns an example with two numbers of its own.
func covertypeLine(first, second, label string) string {
	return first + "," + second + strings.Repeat(",4", covertypeFeatures-2) + "," + label + "\n"
}

func covertypeFolder(t *testing.T, train, test string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"covtrain.csv": train, "covtest.csv.gz": string(gz(t, []byte(test)))} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCovertype(t *testing.T) {
	train := "Elevation" + strings.Repeat(",x", covertypeFeatures) + "\n" +
		covertypeLine("1", "10", "7") + "\n" + covertypeLine("3", "-10", "1")
	set, err := Open(covertypeFolder(t, train, covertypeLine("5", "0", "2")))
	if err != nil {
		t.Fatal(err)
	}
	if set.Train.N != 2 || set.Test.N != 1 || set.Train.Dim != 54 || set.Test.Classes != 7 || set.Train.Pixels != nil {
		t.Fatalf("%+v", set)
	}
	for i, want := range [][]float32{{-1, 1, 0}, {1, -1, 0}} {
		if got := set.Train.Row(i)[:3]; got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
			t.Errorf("train %d: %v, want %v", i, got, want)
		}
	}
	// Scaled by the training examples' means and deviations: (2, 1), (0, 10), and (4, 0).
	if got := set.Test.Row(0)[:3]; got[0] != 3 || got[1] != 0 || got[2] != 0 {
		t.Errorf("test: %v", got)
	}
	if set.Train.Labels[0] != 6 || set.Train.Labels[1] != 0 || set.Test.Labels[0] != 1 {
		t.Errorf("labels %v, %v", set.Train.Labels, set.Test.Labels)
	}
}

func TestCovertypeRefuses(t *testing.T) {
	good := covertypeLine("1", "2", "3")
	for _, c := range []struct{ train, test, file, want string }{
		{good + "1,2,3\n", good, "covtrain.csv", "line 2: 3 columns; a CoverType line has 54 features and a label"},
		{good, good + strings.Replace(good, ",4", ",4,4", 1), "covtest.csv.gz", "line 2: 56 columns"},
		{
			good, good + good + covertypeLine("x", "2", "3"), "covtest.csv.gz",
			`line 3: feature 1, "x", is not a finite number`,
		},
		{covertypeLine("1", "NaN", "3"), good, "covtrain.csv", `line 1: feature 2, "NaN"`},
		{good + covertypeLine("1", "Inf", "3"), good, "covtrain.csv", `line 2: feature 2, "Inf"`},
		{good + covertypeLine("1", "", "3"), good, "covtrain.csv", `line 2: feature 2, ""`},
		{
			good + covertypeLine("1", "2", "0"), good, "covtrain.csv",
			`line 2: label "0" is not a whole number from 1 to 7`,
		},
		{good, good + covertypeLine("1", "2", "8"), "covtest.csv.gz", `line 2: label "8"`},
		{good, covertypeLine("1", "2", "1.5"), "covtest.csv.gz", `line 1: label "1.5"`},
		{"", good, "covtrain.csv", "is empty"},
		{good, "\n", "covtest.csv.gz", "holds no examples"},
	} {
		dir := covertypeFolder(t, c.train, c.test)
		_, err := Open(dir)
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), filepath.Join(dir, c.file)+": ") ||
			!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v: want one line with %s and %q", err, c.file, c.want)
		}
	}
	dir := covertypeFolder(t, good, good)
	if err := os.Remove(filepath.Join(dir, "covtest.csv.gz")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "covtest.csv") {
		t.Errorf("without a test file: %v", err)
	}
}

// TestStandardised checks that the scaled features are standardised.
func TestStandardised(t *testing.T) {
	var text strings.Builder
	for i := range 50 {
		text.WriteString(covertypeLine(string(rune('0'+i%10)), "0."+string(rune('0'+i*7%10)), "1"))
	}
	set, err := LoadCovertype(covertypeFolder(t, text.String(), covertypeLine("1", "2", "3")))
	if err != nil {
		t.Fatal(err)
	}
	for f := range 2 {
		sum, squares := 0.0, 0.0
		for i := range set.Train.N {
			v := float64(set.Train.Row(i)[f])
			sum += v
			squares += v * v
		}
		if math.Abs(sum/50) > 1e-6 || math.Abs(squares/50-1) > 1e-6 {
			t.Errorf("feature %d has mean %v and variance %v", f, sum/50, squares/50)
		}
	}
}
