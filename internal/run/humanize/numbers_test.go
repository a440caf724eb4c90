package humanize

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestCSV(t *testing.T) {
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
		t.Errorf("table without rows: %v", err)
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 3: "3", 61.5: "61.50", 4.2073: "4.207", .04212: "0.042", 1234.56: "1235", .00021: "2.10e-04",
		1.5e7: "1.50e+07", -2.5: "-2.500",
	} {
		if got := Short(v); got != want {
			t.Errorf("%v is formatted as %s, want %s", v, got, want)
		}
	}
	if a, b := Roughly(50*time.Second), Roughly(40*time.Minute); a != "about 50 s" || b != "about 40 min" {
		t.Errorf("%q, %q", a, b)
	}
}
