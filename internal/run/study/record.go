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
	"github.com/perdure/perdure/internal/run/plain"
)

// done is what stands beside a run's folder when the run has ended: what was asked, of which build, and how it went.
// A run without it was interrupted, and is begun again.
type done struct {
	Args    []string `json:"args"`
	Version string   `json:"version"`
	Build   string   `json:"build"` // the program's SHA-256, its first 12 digits
	Seconds float64  `json:"seconds"`
	Why     string   `json:"why,omitempty"` // why the run failed; "": it did not

	Ended time.Time `json:"ended"`
}

const doneEnd = ".json" // of the name of a done's file, behind the run's folder

// readDone reads what stands beside a run; nil: nothing that can be used.
func readDone(folder string) (*done, error) {
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // somebody wants it done again
	}
	b, err := disk.ReadRegular(folder+doneEnd, 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", folder+doneEnd, plain.Cause(err))
	}
	var d done
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, nil // written in part: the run is begun again
	}
	return &d, nil
}

func (d *done) began() time.Time {
	return d.Ended.Add(-time.Duration(d.Seconds * float64(time.Second)))
}

// writeJSON writes a file whole, or leaves it as it is.
func writeJSON(path string, v any) error {
	return disk.WriteFile(disk.OS(), filepath.ToSlash(path), func(w io.Writer) error { return plain.JSON(w, v) })
}

// Program is the command that runs, as it is on the disk.
type Program struct {
	Path, Version, Build string
	info                 fs.FileInfo
}

// OpenProgram looks at a program.
func OpenProgram(path, version string) (p Program, err error) {
	p = Program{Path: path, Version: version}
	f, err := os.Open(path)
	if err != nil {
		return p, fmt.Errorf("this program's file cannot be read: %w", err)
	}
	defer f.Close() // only read
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

// changed reports whether another file is there than was opened.
func (p *Program) changed() bool {
	info, err := os.Stat(p.Path)
	return err != nil || !os.SameFile(info, p.info) || info.Size() != p.info.Size() ||
		!info.ModTime().Equal(p.info.ModTime())
}

// lockName is the file whose lock a study's process holds while it runs.
const lockName = "lock"

// hold keeps other processes from conducting a study in a folder.
func hold(folder string) (io.Closer, error) {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return nil, fmt.Errorf("%w: cannot write into %s: %w", perdure.ErrUsage, folder, plain.Cause(err))
	}
	locker, ok := disk.OS().(disk.Locker)
	if !ok {
		return io.NopCloser(nil), nil
	}
	who := fmt.Sprintf("pid %d", os.Getpid())
	lock, err := locker.Lock(filepath.ToSlash(filepath.Join(folder, lockName)), who)
	if locked := (*disk.LockedError)(nil); errors.As(err, &locked) {
		return nil, fmt.Errorf("%w: another study runs in %s (%s); wait until it has ended, or choose another folder "+
			"with --out", perdure.ErrUsage, folder, locked.Holder)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: cannot write into %s: %w", perdure.ErrUsage, folder, plain.Cause(err))
	}
	return lock, nil
}

// errMixed says that runs would be of two builds.
func errMixed(runs int, of *done, now *Program, where string) error {
	return fmt.Errorf("%w: %d of the runs in %s are of another build of perdure (%s %s; this is %s %s): their times "+
		"and results may not compare; add --mixed to go on all the same, or --out for another folder", perdure.ErrUsage,
		runs, where, of.Version, of.Build, now.Version, now.Build)
}
