// Package bench implements the benchmarks of perdure bench:
//
//	moves      pushes and pulls, compared with a raw exchange of the same bytes
//	recovery   what recovery strategies cost, and how long readers and workers feel a failure
//	workloads  whole training programs, compared with the same kernel in a plain loop
//
// Each measures in rounds, reports the median and the spread, and writes its results to one JSON file. A
// benchmark uses the whole machine and sets the process's number of cores: run one at a time.
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

// spread is the middle of what all rounds measured, the least and the most.
type spread struct{ Median, Least, Most float64 }

// newSpread is that of some values, one at least.
func newSpread(v []float64) spread { return spread{Median(v), slices.Min(v), slices.Max(v)} }

// spreadOf is that of what rounds have measured.
func spreadOf[T any](rounds []T, what func(*T) float64) spread {
	var v []float64
	for i := range rounds {
		v = append(v, what(&rounds[i]))
	}
	return newSpread(v)
}

func (s spread) String() string { return fmt.Sprintf("%.2f (%.2f to %.2f)", s.Median, s.Least, s.Most) }

// choose returns those of all that were given by name, in their own order, or
// all if none was.
func choose[T any](flag string, given []string, all []T, name func(T) string) (chosen []T, err error) {
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

// itself is the name of what is its own name, for choose.
func itself(s string) string { return s }

// checkCounts refuses numbers of things of which there must be some, and not too many.
func checkCounts(counts map[string]int64) error {
	for what, n := range counts {
		if n < 1 || n > 1_000_000 {
			return fmt.Errorf("%w: %d %s; choose 1 to 1000000", perdure.ErrUsage, n, what)
		}
	}
	return nil
}

// machineLine says what is measured, and on which machine.
func machineLine(version string) string {
	return fmt.Sprintf("perdure %s, wire version %d, %s %s/%s, on %s, %d cores",
		version, wire.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, machine.CPUModel(), runtime.NumCPU())
}

// prepare has this process be like a worker's, says at once if the results could not be
// written to the given file ("": to none), and makes a folder for what a benchmark writes. The
// caller removes it.
func prepare(results string) (dir string, err error) {
	machine.Garbage(1)
	if err := checkWritable(results); err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp("", "perdure-bench-"); err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	return dir, nil
}

// checkWritable says before the work, not after it, that its results could not
// be written. "" is no file.
func checkWritable(path string) error {
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

// writeResults makes or replaces the file, as a whole.
func writeResults(path string, results any) error {
	if path == "" {
		return nil
	}
	return disk.WriteFile(disk.OS(), path, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(results)
	})
}

// milliseconds is a duration as figures have it.
func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// medianAndMax returns the median of some values and the highest, nil of none.
func medianAndMax(v []float64) (middle, most *float64) {
	if len(v) == 0 {
		return nil, nil
	}
	m, x := Median(v), slices.Max(v)
	return &m, &x
}
