package study

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/humanize"
)

// runRecord is stored next to a run's directory when the run has ended. It records the arguments, the build and the
// result. A run without it was interrupted and starts again.
type runRecord struct {
	Args    []string `json:"args"`
	Version string   `json:"version"`
	Build   string   `json:"build"` // first 12 digits of the program's SHA-256
	Seconds float64  `json:"seconds"`
	Why     string   `json:"why,omitempty"` // why the run failed; "" if it did not

	Ended time.Time `json:"ended"`
}

const recordExt = ".json" // appended to the name of the run's directory

// readRunRecord reads the record of a run. It returns nil if there is none that can be used.
func readRunRecord(dir string) (*runRecord, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the user deleted the run to repeat it
	}
	b, err := disk.ReadRegular(dir+recordExt, 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", dir+recordExt, humanize.Cause(err))
	}
	var d runRecord
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, nil // incomplete: the run starts again
	}
	return &d, nil
}

func (d *runRecord) began() time.Time {
	return d.Ended.Add(-time.Duration(d.Seconds * float64(time.Second)))
}

// writeJSON writes a file atomically.
func writeJSON(path string, v any) error {
	return disk.WriteFile(disk.OS(), filepath.ToSlash(path), func(w io.Writer) error { return humanize.JSON(w, v) })
}

// Program is the executable file that runs.
type Program struct {
	Path, Version, Build string
	info                 fs.FileInfo
}

// OpenProgram reads a program's file and computes its build.
func OpenProgram(path, version string) (p Program, err error) {
	p = Program{Path: path, Version: version}
	f, err := os.Open(path)
	if err != nil {
		return p, fmt.Errorf("cannot read the program's file: %w", err)
	}
	defer f.Close() // opened read-only
	if p.info, err = f.Stat(); err != nil {
		return p, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return p, err
	}
	p.Build = fmt.Sprintf("%x", h.Sum(nil))[:12]
	return p, nil
}

// changed reports whether the program's file was replaced since it was opened.
func (p *Program) changed() bool {
	info, err := os.Stat(p.Path)
	return err != nil || !os.SameFile(info, p.info) || info.Size() != p.info.Size() ||
		!info.ModTime().Equal(p.info.ModTime())
}

// lockName is the file that is locked while a study runs.
const lockName = "lock"

// hold locks a study's directory against other processes.
func hold(dir string) (io.Closer, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, perdure.Usagef("cannot write to %s: %w", dir, humanize.Cause(err))
	}
	locker, ok := disk.OS().(disk.Locker)
	if !ok {
		return io.NopCloser(nil), nil
	}
	who := fmt.Sprintf("pid %d", os.Getpid())
	lock, err := locker.Lock(filepath.ToSlash(filepath.Join(dir, lockName)), who)
	if locked, is := errors.AsType[*disk.LockedError](err); is {
		return nil, perdure.Usagef("another study is running in %s (%s); wait until it has ended, or choose another "+
			"directory with --out", dir, locked.Holder)
	}
	if err != nil {
		return nil, perdure.Usagef("cannot write to %s: %w", dir, humanize.Cause(err))
	}
	return lock, nil
}

// errMixed returns the error for runs of different builds.
func errMixed(runs int, of *runRecord, now *Program, where string) error {
	return perdure.Usagef("%d of the runs in %s were made by a different build of perdure (%s %s; this is %s %s), so "+
		"their times and results may not be comparable; add --mixed to continue anyway, or --out for another directory",
		runs, where, of.Version, of.Build, now.Version, now.Build)
}
