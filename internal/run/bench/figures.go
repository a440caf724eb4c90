// Package bench is what all benchmarks have in common: how their flags choose among what there
// is, how rounds become a median and a spread, which machine a figure is of, and the file that
// all figures go into. The benchmarks are below it:
//
//	moves       pushes and pulls against a raw exchange of the same bytes
//	raw         that raw exchange
//	strategies  what recovery strategies cost, and how long a failure is felt under them
//	programs    whole training programs against a plain loop
//
// All of it is safe for concurrent use.
package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/run/plain"
)

// Median returns the middle of some values.
func Median[T cmp.Ordered](v []T) T {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// Milliseconds is a duration as figures have it.
func Milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// Spread is the middle of what all rounds measured, the least and the most.
type Spread struct{ Median, Least, Most float64 }

// NewSpread is that of some values, one at least.
func NewSpread(v []float64) Spread { return Spread{Median(v), slices.Min(v), slices.Max(v)} }

func (s Spread) String() string { return fmt.Sprintf("%.2f (%.2f to %.2f)", s.Median, s.Least, s.Most) }

// Choose returns those of all that were given by name, in their own order, or
// all if none was.
func Choose[T any](flag string, given []string, all []T, name func(T) string) (chosen []T, err error) {
	var names []string
	for _, v := range all {
		names = append(names, name(v))
		if len(given) == 0 || slices.Contains(given, name(v)) {
			chosen = append(chosen, v)
		}
	}
	for _, g := range given {
		if !slices.Contains(names, g) {
			return nil, fmt.Errorf("%w: unknown --%s %q; choose %s", perdure.ErrUsage, flag, g,
				strings.Join(names, ", "))
		}
	}
	return chosen, nil
}

// Itself is the name of what is its own name, for Choose.
func Itself(s string) string { return s }

// MachineLine says what is measured, and on which machine.
func MachineLine(version string) string {
	return fmt.Sprintf("perdure %s, wire version %d, %s %s/%s, on %s, %d cores",
		version, wire.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, cpuModel(), runtime.NumCPU())
}

// cpuModel is the processor's name, where the system tells it.
func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // Linux has it
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "a processor of unknown model"
}

// Begin has this process be like a worker's, says at once if the results could not be
// written to the given file ("": to none), and makes a folder for what a benchmark writes. The
// caller removes it.
func Begin(results string) (dir string, err error) {
	machine.Garbage(1)
	if err := CheckWritable(results); err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp("", "perdure-bench-"); err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	return dir, nil
}

// CheckWritable says before the work, not after it, that its results could not
// be written. "" is no file.
func CheckWritable(path string) error {
	if path == "" {
		return nil
	}
	if i, err := os.Stat(path); err == nil && i.IsDir() {
		return fmt.Errorf("%w: --json %s is a folder; name a file", perdure.ErrUsage, path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".perdure-bench-")
	if err == nil {
		_ = f.Close() // nothing was written
		err = os.Remove(f.Name())
	}
	if err != nil {
		return fmt.Errorf("%w: --json %s: cannot write there: %w", perdure.ErrUsage, path, plain.Cause(err))
	}
	return nil
}

// WriteResults makes or replaces the file, as a whole.
func WriteResults(path string, results any) error {
	if path == "" {
		return nil
	}
	return disk.WriteFile(disk.OS(), path, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(results)
	})
}

// Millis is a duration in milliseconds, to the microsecond.
func Millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// MiddleMost returns the median of some values and the highest, nil of none.
func MiddleMost(v []float64) (middle, most *float64) {
	if len(v) == 0 {
		return nil, nil
	}
	m, x := Median(v), slices.Max(v)
	return &m, &x
}
