// Package bench measures the speed of data movement, of recovery and of whole training programs, for perdure bench:
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
	"github.com/perdure/perdure/internal/run/humanize"
)

// Median returns the middle value, or the upper one of two.
func Median[T cmp.Ordered](v []T) T {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// spread is the median, the minimum and the maximum over all rounds.
type spread struct{ Median, Min, Max float64 }

// newSpread returns the spread of v, which must not be empty.
func newSpread(v []float64) spread { return spread{Median(v), slices.Min(v), slices.Max(v)} }

func (s spread) String() string { return fmt.Sprintf("%.2f (%.2f to %.2f)", s.Median, s.Min, s.Max) }

// choose returns the elements of all whose names are given, in the order of all. If no names are given, it returns all.
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
			return nil, perdure.Usagef("unknown --%s %q; choose %s", flag, g, strings.Join(names, ", "))
		}
	}
	return chosen, nil
}

// itself returns s. It is the name function of choose for lists of names.
func itself(s string) string { return s }

// checkCounts returns an error unless all counts are between 1 and 1,000,000.
func checkCounts(counts map[string]int64) error {
	for what, n := range counts {
		if n < 1 || n > 1_000_000 {
			return perdure.Usagef("invalid number of %s %d; choose 1 to 1000000", what, n)
		}
	}
	return nil
}

// machineLine describes the version and the machine that are measured.
func machineLine(version string) string {
	return fmt.Sprintf("perdure %s, wire version %d, %s %s/%s, on %s, %d cores",
		version, wire.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, machine.CPUModel(), runtime.NumCPU())
}

// prepare sets up this process like that of a worker, checks that the results file is writable ("" for none), and
// creates a directory for a benchmark's output. The caller must remove it.
func prepare(results string) (dir string, err error) {
	machine.LimitGarbage(1)
	if err := checkWritable(results); err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp("", "perdure-bench-"); err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	return dir, nil
}

// checkWritable returns an error if results cannot be written to path, before the benchmark runs. "" means no file.
func checkWritable(path string) error {
	if path == "" {
		return nil
	}
	if i, err := os.Stat(path); err == nil && i.IsDir() {
		return perdure.Usagef("--json %s is a directory; choose a file", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".perdure-bench-")
	if err == nil {
		_ = f.Close() // nothing was written
		err = os.Remove(f.Name())
	}
	if err != nil {
		return perdure.Usagef("--json %s: cannot write the file: %w", path, humanize.Cause(err))
	}
	return nil
}

// writeResults creates or replaces the file atomically.
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

// milliseconds converts a duration to milliseconds.
func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }
