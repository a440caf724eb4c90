// Package rundir reads and writes a run's directory: the settings of the job, its events, its measurements and its
// result.
//
//	run.json       settings; replaced as a whole
//	events.jsonl   events, one JSON object per line
//	series.csv     measurements over time, one row per point
//	clocks.csv     the clock of every slot over time
//	summary.json   result; written once, as a whole
//	logs/          one file for each process
//	checkpoint/    the job's checkpoints
//	job.yaml       of a job on several hosts: the text of its job file
//	metrics.json   metrics addresses of its processes; replaced as a whole
//	lock           locked while the run is alive, by its parent or by a coordinator without a parent
//
// Whole files are replaced atomically. Each line and row is appended by a single write, so that a run that is killed
// leaves only complete ones. They are durable after Close. If the disk is full, they wait in memory until the next
// write or Close, and the run continues. A Dir is safe for concurrent use.
package rundir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// Names in a run's directory.
const (
	RunFile       = "run.json"
	eventsFile    = "events.jsonl"
	seriesFile    = "series.csv"
	clocksFile    = "clocks.csv"
	summaryFile   = "summary.json"
	logsDir       = "logs"
	checkpointDir = "checkpoint"
	TargetsFile   = "metrics.json" // metrics addresses of the processes
	RequestFile   = "job.yaml"     // of a job on several hosts: the text that requested it
)

// Dir is the open directory of a run.
type Dir struct {
	path string
	lock disk.Lock // held while the run is alive; nil on systems without locks

	mu     sync.Mutex // guards the files: one line at a time
	events lines
	series lines
	clocks lines
}

// lines is a file that lines are appended to.
type lines struct {
	*os.File
	pending []byte // lines that did not fit on the disk
}

// record is a file of lines and how it starts.
type record struct {
	to           *lines
	name, header string
}

func (d *Dir) records() []record {
	return []record{
		{&d.events, eventsFile, ""}, {&d.series, seriesFile, seriesHeader}, {&d.clocks, clocksFile, clocksHeader},
	}
}

// maxPending limits how many bytes of lines wait for disk space, for each file.
const maxPending = 16 << 20

// Create creates the directory of a new run. It returns perdure.ErrUsage if the directory is not empty, so that files
// of different runs are never mixed.
func Create(path string) (*Dir, error) {
	if err := makeEmpty(path); err != nil {
		return nil, err
	}
	d := &Dir{path: path}
	if err := d.acquireLock(); err != nil {
		return nil, dirError(path, err)
	}
	for _, sub := range []string{logsDir, checkpointDir} {
		if err := os.Mkdir(filepath.Join(path, sub), 0o777); err != nil {
			return nil, dirError(path, err)
		}
	}
	for _, l := range d.records() {
		var err error
		if l.to.File, err = create(path, l.name); err == nil && l.header != "" {
			err = d.append(l.to, []byte(l.header+"\n"))
		}
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// initialEntries lists the entries that may be in the directory of a run that has not started.
var initialEntries = []string{
	lockName, logsDir, checkpointDir, eventsFile, seriesFile, clocksFile,
	"secret", "secret.servers", "control", "log", "snapshots",
}

// RemoveIncomplete removes the remains of an interrupted Create. They lack run.json, which is written last. begun
// reports whether the directory contains a run. RemoveIncomplete leaves a directory with any other entry unchanged.
func RemoveIncomplete(path string) (started bool, err error) {
	if _, err := os.Stat(filepath.Join(path, RunFile)); err == nil {
		return true, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) == 0 {
		return false, nil // Create reports the error
	}
	for _, e := range entries {
		if !slices.Contains(initialEntries, e.Name()) {
			return false, nil
		}
	}
	d := &Dir{path: path}
	if err := d.acquireLock(); err != nil {
		return false, dirError(path, err)
	}
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(path, e.Name())))
	}
	return false, errors.Join(err, d.releaseLock())
}

// releaseLock releases the lock.
func (d *Dir) releaseLock() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

// Reopen opens the directory of a run that continues. New records are appended to the existing ones. It returns an
// error if another process has opened the run.
func Reopen(path string) (*Dir, error) {
	d := &Dir{path: path}
	if err := d.acquireLock(); err != nil {
		if locked, is := errors.AsType[*disk.LockedError](err); is {
			return nil, perdure.Usagef("another process uses %s: %s", path, holderOf(locked))
		}
		return nil, dirError(path, err)
	}
	for _, l := range d.records() {
		if err := l.reopen(d); err != nil {
			return nil, errors.Join(err, d.releaseLock())
		}
	}
	return d, nil
}

// reopen opens the file of a run that continues, and writes the header if an older program did not.
func (l *record) reopen(d *Dir) (err error) {
	l.to.File, err = os.OpenFile(filepath.Join(d.path, l.name), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return dirError(d.path, err)
	}
	info, err := l.to.Stat()
	if err != nil || info.Size() > 0 || l.header == "" {
		return err
	}
	return d.append(l.to, []byte(l.header+"\n"))
}

// makeEmpty creates the directory unless it exists and is empty.
func makeEmpty(path string) error {
	if path == "" {
		return perdure.Usagef("the run's directory has no name; choose one, for example runs/first")
	}
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return perdure.Usagef("%s is a file; choose another directory for the run", path)
	}
	if err := os.MkdirAll(path, 0o777); err != nil {
		return dirError(path, err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return dirError(path, err)
	}
	if len(entries) > 0 {
		return perdure.Usagef("%s is not empty (it contains %s); choose another directory for the run", path,
			entries[0].Name())
	}
	return nil
}

// create creates a file that must not exist.
func create(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, dirError(dir, err)
	}
	return f, nil
}

// dirError returns an error of one line about a directory that cannot be used.
func dirError(path string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return perdure.Usagef("another run has just started in %s; choose another directory for the run", path)
	}
	if at, is := errors.AsType[*fs.PathError](err); is {
		err = at.Err
	}
	return perdure.Usagef("cannot write to %s: %w; choose another directory for the run", path, err)
}

// Path returns the directory's path as passed to Create.
func (d *Dir) Path() string { return d.path }

// LogFile returns the path of a process's log file: logs/NAME.log.
func (d *Dir) LogFile(name string) string { return filepath.Join(d.path, logsDir, name+".log") }

// Schema is the version of the layout of a run's directory and of the meaning of its files.
const Schema = 1

const schemaKey = "schema"

// WriteRun creates or replaces run.json.
func (d *Dir) WriteRun(run any) error {
	b, err := EncodeRun(run)
	if err != nil {
		return err
	}
	return d.write(RunFile, b)
}

// EncodeRun returns the content of run.json: the schema, followed by the fields of run.
func EncodeRun(run any) ([]byte, error) {
	b, err := json.MarshalIndent(run, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("rundir: encode %s: %w", RunFile, err)
	}
	b, ok := bytes.CutPrefix(b, []byte("{\n"))
	if !ok {
		return nil, fmt.Errorf("rundir: encode %s: it is not an object", RunFile)
	}
	return append(fmt.Appendf(nil, "{\n  %q: %d,\n", schemaKey, Schema), b...), nil
}

// replace writes v as the whole content of a file, or leaves the file unchanged.
func (d *Dir) replace(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("rundir: encode %s: %w", name, err)
	}
	return d.write(name, b)
}

func (d *Dir) write(name string, b []byte) error {
	err := disk.WriteFile(disk.OS(), filepath.ToSlash(filepath.Join(d.path, name)), func(w io.Writer) error {
		_, err := w.Write(append(b, '\n'))
		return err
	})
	if err != nil {
		return fmt.Errorf("rundir: write %s: %w", name, err)
	}
	return nil
}

// Event is an event of the run.
type Event struct {
	Seconds float64        `json:"seconds"` // since the first clock started
	Clock   perdure.Clock  `json:"clock"`   // the job's MinClock
	Kind    string         `json:"kind"`
	Target  string         `json:"target"` // "server:0"; "" for the job
	Text    string         `json:"text"`
	Details map[string]any `json:"details"`
}

// Event appends a line to events.jsonl.
func (d *Dir) Event(e Event) error {
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("rundir: encode %s event: %w", e.Kind, err)
	}
	return d.append(&d.events, append(b, '\n'))
}

// append writes one line with one write, or keeps it while the disk is full.
func (d *Dir) append(l *lines, line []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.pending = append(l.pending, line...)
	if err := l.write(); err != nil && (!disk.IsFull(err) || len(l.pending) > maxPending) {
		return fmt.Errorf("rundir: %w", err)
	}
	return nil
}

// write writes the waiting lines, or as much of them as fits on the disk.
func (l *lines) write() error {
	n, err := l.Write(l.pending)
	l.pending = slices.Delete(l.pending, 0, max(n, 0))
	return err
}

// DiskFull reports whether the newest lines did not fit on the disk.
func (d *Dir) DiskFull() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.events.pending)+len(d.series.pending)+len(d.clocks.pending) > 0
}

// Close makes everything that was appended durable and closes the files. Later appends fail.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var first error
	if d.lock != nil {
		defer func() { _ = d.lock.Close() }() // the lock ends with the process anyway
	}
	for _, l := range d.records() {
		if l.to.File == nil {
			continue // Create failed before
		}
		for _, do := range []func() error{l.to.write, l.to.Sync, l.to.Close} {
			if err := do(); err != nil && first == nil {
				first = fmt.Errorf("rundir: %w", err)
			}
		}
	}
	return first
}
