// Package rundir reads and writes a run's folder: what the job was asked to do, what happened to it, how it
// progressed and how it ended.
//
//	run.json       what was asked for; replaced as a whole
//	events.jsonl   what happened, one JSON object a line
//	series.csv     measurements over time, one row a point
//	summary.json   how it ended; written once, as a whole
//	logs/          one file for each process
//	checkpoint/    the job's checkpoints
//	metrics.json   where its processes can be watched; replaced as a whole
//	lock           locked by the run's parent, or by its coordinator that has none, while the run goes on
//
// Whole files are replaced atomically. Lines and rows are appended by one write
// each, so that a run which is killed leaves whole ones; they are durable after
// Close. Those that find the disk full wait in memory for the next one, or for Close:
// a run goes on without room for them. A Dir is safe for concurrent use.
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

// The names within a run's folder.
const (
	RunFile       = "run.json"
	eventsFile    = "events.jsonl"
	seriesFile    = "series.csv"
	summaryFile   = "summary.json"
	logsDir       = "logs"
	checkpointDir = "checkpoint"
	TargetsFile   = "metrics.json" // where the processes can be watched
)

// Dir is an open run's folder.
type Dir struct {
	path string
	lock disk.Lock // that the run goes on; nil where there are no locks

	mu     sync.Mutex // guards the files: one line at a time
	events lines
	series lines
}

// lines is a file that lines are appended to.
type lines struct {
	*os.File
	waiting []byte // what the disk had no room for
}

// mostWaiting is how many bytes of lines wait for room, in each file.
const mostWaiting = 16 << 20

// Create makes the folder of a new run. It refuses a folder that holds anything
// (perdure.ErrUsage), so that no run's files are ever mixed with another's.
func Create(path string) (*Dir, error) {
	if err := makeEmpty(path); err != nil {
		return nil, err
	}
	d := &Dir{path: path}
	if err := d.hold(); err != nil {
		return nil, refused(path, err)
	}
	for _, sub := range []string{logsDir, checkpointDir} {
		if err := os.Mkdir(filepath.Join(path, sub), 0o777); err != nil {
			return nil, refused(path, err)
		}
	}
	var err error
	if d.events.File, err = create(path, eventsFile); err != nil {
		return nil, err
	}
	if d.series.File, err = create(path, seriesFile); err != nil {
		return nil, errors.Join(err, d.events.Close())
	}
	if err := d.append(&d.series, []byte(seriesHeader+"\n")); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// unbegun are what a folder may hold in which a run was to begin.
var unbegun = []string{
	lockName, logsDir, checkpointDir, eventsFile, seriesFile, "secret", "secret.servers", "control", "log", "snapshots",
}

// Clear removes what is left of the making of a run's folder that was cut short: there is no run.json, which
// comes last. It reports whether there is a run. A folder that holds anything else is left alone.
func Clear(path string) (begun bool, err error) {
	if _, err := os.Stat(filepath.Join(path, RunFile)); err == nil {
		return true, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) == 0 {
		return false, nil // whoever makes it says what is wrong
	}
	for _, e := range entries {
		if !slices.Contains(unbegun, e.Name()) {
			return false, nil
		}
	}
	d := &Dir{path: path}
	if err := d.hold(); err != nil {
		return false, refused(path, err)
	}
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(path, e.Name())))
	}
	return false, errors.Join(err, d.letGo())
}

// letGo gives the lock back.
func (d *Dir) letGo() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

// Reopen opens the folder of a run that goes on in it: what it records next comes behind what it has
// recorded. It refuses a folder in which another process has the run.
func Reopen(path string) (*Dir, error) {
	d := &Dir{path: path}
	if err := d.hold(); err != nil {
		var locked *disk.LockedError
		if errors.As(err, &locked) {
			return nil, fmt.Errorf("%w: another process has %s: %s", perdure.ErrUsage, path, holderOf(locked))
		}
		return nil, refused(path, err)
	}
	for _, l := range []struct {
		to   *lines
		name string
	}{{&d.events, eventsFile}, {&d.series, seriesFile}} {
		f, err := os.OpenFile(filepath.Join(path, l.name), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
		if err != nil {
			return nil, errors.Join(refused(path, err), d.letGo())
		}
		l.to.File = f
	}
	return d, nil
}

// makeEmpty makes the folder unless it is there and empty.
func makeEmpty(path string) error {
	if path == "" {
		return fmt.Errorf("%w: the run's folder has no name; choose one, for example runs/first", perdure.ErrUsage)
	}
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return fmt.Errorf("%w: %s is a file; choose another folder for the run", perdure.ErrUsage, path)
	}
	if err := os.MkdirAll(path, 0o777); err != nil {
		return refused(path, err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return refused(path, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("%w: %s is not empty (it holds %s); choose another folder for the run", perdure.ErrUsage,
			path, entries[0].Name())
	}
	return nil
}

// create opens a file that nobody else has made meanwhile.
func create(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, refused(dir, err)
	}
	return f, nil
}

// refused says in one line why the run's folder cannot be used.
func refused(path string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: another run has just begun in %s; choose another folder for the run", perdure.ErrUsage,
			path)
	}
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	return fmt.Errorf("%w: cannot write into %s: %w; choose another folder for the run", perdure.ErrUsage, path, err)
}

// Path returns the folder's path, as it was given to Create.
func (d *Dir) Path() string { return d.path }

// LogFile returns the path of a process's log file: logs/NAME.log.
func (d *Dir) LogFile(name string) string { return filepath.Join(d.path, logsDir, name+".log") }

// Schema is the version of how a run's folder is laid out, and what its files mean.
const Schema = 1

const schemaKey = "schema"

// WriteRun makes or replaces run.json.
func (d *Dir) WriteRun(run any) error {
	b, err := EncodeRun(run)
	if err != nil {
		return err
	}
	return d.write(RunFile, b)
}

// EncodeRun returns the text of run.json: what run has, and the schema in front of it.
func EncodeRun(run any) ([]byte, error) {
	b, err := json.MarshalIndent(run, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("rundir: encode %s: %w", RunFile, err)
	}
	b, ok := bytes.CutPrefix(b, []byte("{\n"))
	if !ok {
		return nil, fmt.Errorf("rundir: encode %s: it is no object", RunFile)
	}
	return append(fmt.Appendf(nil, "{\n  %q: %d,\n", schemaKey, Schema), b...), nil
}

// replace writes v as the whole content of a file, or leaves the file as it is.
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

// Event is something that happened to the run.
type Event struct {
	Seconds float64        `json:"seconds"` // since the first clock began
	Clock   perdure.Clock  `json:"clock"`   // the job's MinClock
	Kind    string         `json:"kind"`
	Target  string         `json:"target"` // "server:0"; "": the job
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

// append writes one line by one write, or keeps it while the disk is full.
func (d *Dir) append(l *lines, line []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.waiting = append(l.waiting, line...)
	if err := l.write(); err != nil && (!disk.Full(err) || len(l.waiting) > mostWaiting) {
		return fmt.Errorf("rundir: %w", err)
	}
	return nil
}

// write writes what waits, or as much as there is room for.
func (l *lines) write() error {
	n, err := l.Write(l.waiting)
	l.waiting = slices.Delete(l.waiting, 0, max(n, 0))
	return err
}

// Waits reports whether the disk had no room for the newest lines.
func (d *Dir) Waits() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.events.waiting)+len(d.series.waiting) > 0
}

// Close makes all that was appended durable and closes the files. Later appends
// fail.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var first error
	if d.lock != nil {
		defer func() { _ = d.lock.Close() }() // it ends with the process anyway
	}
	for _, l := range []*lines{&d.events, &d.series} {
		for _, do := range []func() error{l.write, l.Sync, l.Close} {
			if err := do(); err != nil && first == nil {
				first = fmt.Errorf("rundir: %w", err)
			}
		}
	}
	return first
}
