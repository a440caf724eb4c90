package rundir

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/data/disk"
)

// maxHistory limits how much of events.jsonl and series.csv is read into memory: more than a month of rows.
const maxHistory = 1 << 30

// lastEvents is how many bytes of events LastEvents reads.
const lastEvents = 16 << 10

// IsDistributed reports whether the run in a directory is a job on several hosts. Such a job continues when its
// coordinator ends.
func IsDistributed(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, RequestFile))
	return err == nil
}

// StartTime returns when the run in a directory started: the earlier of the time in its lock, which each coordinator of
// a job on several hosts replaces, and that of its settings file, which a copy may change. It returns the zero time if
// both are missing.
func StartTime(dir string) (at time.Time) {
	if info, err := os.Stat(filepath.Join(dir, RunFile)); err == nil {
		at = info.ModTime()
	}
	if b, err := disk.ReadRegular(filepath.Join(dir, lockName), 1<<10); err == nil {
		_, since, _ := strings.Cut(strings.TrimSpace(string(b)), " since ")
		if locked, err := time.Parse(time.RFC3339, since); err == nil && (at.IsZero() || locked.Before(at)) {
			return locked
		}
	}
	return at
}

// LastEvents returns the newest events of a run, about a hundred.
func LastEvents(dir string) ([]Event, error) {
	f, err := disk.OpenRegular(filepath.Join(dir, eventsFile))
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	from := max(0, end-lastEvents)
	b := make([]byte, end-from)
	n, err := f.ReadAt(b, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if b = b[:n]; from > 0 {
		_, b, _ = bytes.Cut(b, []byte("\n")) // part of a line
	}
	return events(b), nil
}

// Events returns all events of a run.
func Events(dir string) ([]Event, error) {
	b, err := disk.ReadRegular(filepath.Join(dir, eventsFile), maxHistory)
	return events(b), err
}

// events parses complete lines and skips others: a full disk may have truncated one.
func events(b []byte) (all []Event) {
	for line := range bytes.Lines(b) {
		var e Event
		if json.Unmarshal(line, &e) == nil {
			all = append(all, e)
		}
	}
	return all
}

// Series is the content of series.csv: names of columns, and rows of as many cells. A cell is a number or empty.
type Series struct {
	Columns []string
	Rows    [][]string
}

// ReadSeries reads the series.csv of a run. It skips incomplete rows.
func ReadSeries(dir string) (s Series, err error) {
	path := filepath.Join(dir, seriesFile)
	b, err := disk.ReadRegular(path, maxHistory)
	if err != nil {
		return s, err
	}
	r := csv.NewReader(bytes.NewReader(b))
	r.FieldsPerRecord, r.ReuseRecord = -1, false
	rows, err := r.ReadAll()
	switch {
	case err != nil:
		return s, &fs.PathError{Op: "read", Path: path, Err: err}
	case len(rows) == 0:
		return s, &fs.PathError{Op: "read", Path: path, Err: errors.New("it is empty")}
	}
	s.Columns = rows[0]
	for _, row := range rows[1:] {
		if len(row) == len(s.Columns) {
			s.Rows = append(s.Rows, row)
		}
	}
	return s, nil
}

// Numbers returns the numbers in a column and skips other cells. It returns nil if the column does not exist.
func (s *Series) Numbers(column string) (values []float64) {
	at := slices.Index(s.Columns, column)
	if at < 0 {
		return nil
	}
	for _, row := range s.Rows {
		if v, err := strconv.ParseFloat(row[at], 64); err == nil {
			values = append(values, v)
		}
	}
	return values
}

// FileNames are the names of files and directories of a run in its directory.
var FileNames = []string{
	RunFile, eventsFile, seriesFile, clocksFile,
	summaryFile, logsDir, checkpointDir, lockName, "registry", "control", "secret",
	"secret.servers", "secret.dashboard", "dashboard", "captions.json", ModelFile, "log", "snapshots",
	TargetsFile,
}

// ModelFile is the exported model of a run.
const ModelFile = "model.safetensors"

// DataDirs are the directories with data that a run needs to recover its processes.
var DataDirs = []string{checkpointDir, "log", "snapshots"}

// Bytes returns the total size of the files in a directory tree. Files that disappear while it counts are ignored.
func Bytes(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil
		}
		if info, err := e.Info(); err == nil {
			bytes += info.Size()
		}
		return nil
	})
	return bytes
}

// HasLock reports whether a directory has a run's lock file, which is the first file that a run creates. The run may be
// alive or not.
func HasLock(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, lockName))
	return err == nil
}

// Remove deletes a run that has ended: all its files and, if nothing else is in it, its directory. left names the other
// files. If the run is alive, Remove returns ErrRunning and a description of the process that runs it.
func Remove(dir string) (left []string, holder string, err error) {
	hold, holder, err := LockEnded(dir)
	if err != nil {
		return nil, holder, err
	}
	defer hold.Close() // its files are deleted
	for _, name := range FileNames {
		if name == RunFile {
			continue // last, so that a partially deleted run is still recognised as a run
		}
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return nil, "", fmt.Errorf("rundir: %w", err)
		}
	}
	if err := os.Remove(filepath.Join(dir, RunFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("rundir: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, "", fmt.Errorf("rundir: %w", err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if len(left) == 0 {
		err = os.Remove(dir)
	}
	return left, "", err
}
