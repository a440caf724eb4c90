package trials

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// pretend makes this test's own process a program that is run: it prints its
// arguments, and makes the folder that they end with.
const pretend = "TRIALS_TEST_PRETEND"

func TestMain(m *testing.M) {
	if os.Getenv(pretend) == "" {
		os.Exit(m.Run())
	}
	if slices.Contains(os.Args, "hang") {
		<-context.Background().Done()
	}
	_, _ = io.WriteString(os.Stdout, strings.Join(os.Args[1:3], " "))
	folder := os.Args[len(os.Args)-1]
	if os.Mkdir(folder, 0o777) != nil || os.WriteFile(filepath.Join(folder, "run.json"),
		[]byte(`{"version": "of a test"}`), 0o666) != nil {
		os.Exit(1)
	}
}

// TestRun: what was left is removed, and the output is told.
func TestRun(t *testing.T) {
	t.Setenv(pretend, "yes")
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each process sleeps for a second at its end
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "runs", "first")
	args := []string{"train", "softmax", folder}
	if err := os.MkdirAll(filepath.Join(folder, "left"), 0o777); err != nil {
		t.Fatal(err)
	}
	output, late, err := Run(context.Background(), self, args, folder, time.Minute)
	if err != nil || late || output != "train softmax" {
		t.Errorf("%q, late %v, %v", output, late, err)
	}
	if _, late, err := Run(context.Background(), self, []string{"hang"}, folder, time.Millisecond); !late ||
		err == nil {
		t.Errorf("a program that hangs: late %v, %v", late, err)
	}
}

func TestTables(t *testing.T) {
	dir := t.TempDir()
	v := 2.5
	rows := [][]string{{"a", "b", "c", "d"}, Record("x", math.NaN(), &v, (*float64)(nil))}
	if err := WriteCSV(filepath.Join(dir, "two.csv"), rows); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "two.csv")); err != nil || string(b) != "a,b,c,d\nx,,2.5,\n" {
		t.Errorf("%q, %v", b, err)
	}
	if err := WriteCSV(filepath.Join(dir, "none.csv"), rows[:1]); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "none.csv")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a table of no rows: %v", err)
	}
}

func TestSpread(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		values []float64
		want   Spread
		text   string
	}{
		{[]float64{3, 1, 2}, Spread{Mid: 2, Low: 1, High: 3, N: 3}, "2 (1 to 3)"},
		{[]float64{4, 1}, Spread{Mid: 2.5, Low: 1, High: 4, N: 2}, "2.500 (1 to 4)"},
		{[]float64{1.23456}, Spread{Mid: 1.23456, Low: 1.23456, High: 1.23456, N: 1}, "1.235"},
		{[]float64{2, inf, 1}, Spread{Mid: 2, Low: 1, High: inf, N: 3}, "2 (1 to ∞)"},
		{[]float64{inf, 1, inf}, Spread{Mid: inf, Low: 1, High: inf, N: 3}, "∞ (1 to ∞)"},
	} {
		got := SpreadOf(c.values)
		if got != c.want || got.String() != c.text {
			t.Errorf("%v: %+v, written %q; want %+v, %q", c.values, got, got, c.want, c.text)
		}
	}
	if got := SpreadOf([]float64{.1234, .2}).Text(Percent0); got != "16% (12% to 20%)" {
		t.Errorf("in percents: %q", got)
	}
	if none := SpreadOf(nil); !math.IsNaN(none.Mid) || none.String() != "–" {
		t.Errorf("of nothing: %+v, %q", none, none)
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 3: "3", 61.5: "61.50", 4.2073: "4.207", .04212: "0.042", 1234.56: "1235", .00021: "2.10e-04",
		1.5e7: "1.50e+07", -2.5: "-2.500",
	} {
		if got := Short(v); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
	if a, b := Roughly(50*time.Second), Roughly(40*time.Minute); a != "about 50 s" || b != "about 40 min" {
		t.Errorf("%q, %q", a, b)
	}
}
