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

// mostHistory bounds what is read into memory of events.jsonl and series.csv: more than a month of rows.
const mostHistory = 1 << 30

// lastEvents is how many bytes of events are read where only the last ones matter.
const lastEvents = 16 << 10

// Began returns when the run in a folder was begun, as its lock says, or else its settings' file;
// zero: neither is there.
func Began(folder string) time.Time {
	if b, err := disk.ReadRegular(filepath.Join(folder, lockName), 1<<10); err == nil {
		_, since, _ := strings.Cut(strings.TrimSpace(string(b)), " since ")
		if at, err := time.Parse(time.RFC3339, since); err == nil {
			return at
		}
	}
	if info, err := os.Stat(filepath.Join(folder, RunFile)); err == nil {
		return info.ModTime()
	}
	return time.Time{}
}

// LastEvents returns the newest events of a run, about a hundred.
func LastEvents(folder string) ([]Event, error) {
	f, err := disk.OpenRegular(filepath.Join(folder, eventsFile))
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
		_, b, _ = bytes.Cut(b, []byte("\n")) // a part of a line
	}
	return events(b), nil
}

// Events returns all events of a run.
func Events(folder string) ([]Event, error) {
	b, err := disk.ReadRegular(filepath.Join(folder, eventsFile), mostHistory)
	return events(b), err
}

// events are those of whole lines: a full disk may have cut one off.
func events(b []byte) (all []Event) {
	for line := range bytes.Lines(b) {
		var e Event
		if json.Unmarshal(line, &e) == nil {
			all = append(all, e)
		}
	}
	return all
}

// Series is what series.csv has: names of columns, and rows of as many cells. A cell is a number, or empty.
type Series struct {
	Columns []string
	Rows    [][]string
}

// ReadSeries reads the series.csv of a run. Rows that are not whole are left out.
func ReadSeries(folder string) (s Series, err error) {
	path := filepath.Join(folder, seriesFile)
	b, err := disk.ReadRegular(path, mostHistory)
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

// Numbers returns the cells of a column that have a number; none, if there is no such column.
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

// Entries are the names that a run has in its folder.
var Entries = []string{
	RunFile, eventsFile, seriesFile, summaryFile, logsDir, checkpointDir, lockName, "registry", "control", "secret",
	"secret.servers", ModelFile, "log", "snapshots",
	TargetsFile,
}

// ModelFile is the exported model of a run.
const ModelFile = "model.safetensors"

// Stored are the folders of what a run keeps for the case that its processes die.
var Stored = []string{checkpointDir, "log", "snapshots"}

// Bytes returns the bytes of the files in a folder and below it. What is not there, or just being deleted, does not
// count.
func Bytes(folder string) (bytes int64) {
	_ = filepath.WalkDir(folder, func(_ string, e fs.DirEntry, err error) error {
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

// Locked reports whether a folder has the lock of a run, which is the first file that one writes, whether it goes on or
// not.
func Locked(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, lockName))
	return err == nil
}

// Remove deletes a run that has ended: all that it has written into its folder, and the folder if
// nothing else is in it. left are the names of what else is. ErrAlive is returned while it goes on,
// and holder says for people who it is then.
func Remove(folder string) (left []string, holder string, err error) {
	hold, holder, err := HoldEnded(folder)
	if err != nil {
		return nil, holder, err
	}
	defer hold.Close() // of files that are gone
	for _, name := range Entries {
		if name == RunFile {
			continue // last, so that what is left of a run that could not be deleted is one
		}
		if err := os.RemoveAll(filepath.Join(folder, name)); err != nil {
			return nil, "", fmt.Errorf("rundir: %w", err)
		}
	}
	if err := os.Remove(filepath.Join(folder, RunFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("rundir: %w", err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, "", fmt.Errorf("rundir: %w", err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if len(left) == 0 {
		err = os.Remove(folder)
	}
	return left, "", err
}
