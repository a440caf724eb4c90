package rundir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// clocksHeader names clocks.csv's columns.
const clocksHeader = "seconds,clock,ahead"

// NoProcess marks a slot without a process in the Slots of a ClocksPoint.
const NoProcess perdure.Clock = -1

// ClocksPoint holds the clock of every slot at one time.
type ClocksPoint struct {
	Seconds float64       // since the first clock started
	Clock   perdure.Clock // the job's MinClock
	Slots   []perdure.Clock
}

// Clocks appends a row to clocks.csv.
func (d *Dir) Clocks(p ClocksPoint) error { return d.append(&d.clocks, p.row()) }

// row writes each slot's distance to MinClock: one or two characters, where the clock itself may need ten.
func (p ClocksPoint) row() []byte {
	b := strconv.AppendFloat(nil, p.Seconds, 'f', 3, 64)
	b = strconv.AppendInt(append(b, ','), int64(p.Clock), 10)
	b = append(b, ',')
	for i, c := range p.Slots {
		if i > 0 {
			b = append(b, ' ')
		}
		if c == NoProcess {
			b = append(b, '-')
			continue
		}
		b = strconv.AppendInt(b, int64(c-p.Clock), 10)
	}
	return append(b, '\n')
}

// Record is a file of a run that grows by lines.
type Record string

// The records of a run.
const (
	EventsRecord Record = eventsFile
	SeriesRecord Record = seriesFile
	ClocksRecord Record = clocksFile
)

// ReadRecord returns complete lines of a record from an offset on, at most limit bytes, and the offset after them. It
// skips a longer line: lines is then empty, and next is the offset after that line.
// It returns io.ErrUnexpectedEOF if the record ends before the offset.
func ReadRecord(dir string, of Record, from int64, limit int) (lines []byte, next int64, err error) {
	f, err := disk.OpenRegular(filepath.Join(dir, string(of)))
	if err != nil {
		return nil, from, fmt.Errorf("rundir: %w", err)
	}
	defer f.Close() // only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, from, fmt.Errorf("rundir: %w", err)
	case info.Size() < from:
		return nil, from, fmt.Errorf("rundir: %s has %d bytes, and %d were read: %w", of, info.Size(), from,
			io.ErrUnexpectedEOF)
	}
	b := make([]byte, min(info.Size()-from, int64(limit)))
	n, err := f.ReadAt(b, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, from, fmt.Errorf("rundir: %w", err)
	}
	b = b[:bytes.LastIndexByte(b[:n], '\n')+1]
	if len(b) == 0 && n == limit {
		return nil, afterLine(f, from, info.Size(), b[:limit]), nil
	}
	return b, from + int64(len(b)), nil
}

// afterLine returns the offset after the line that starts at from, or from if the line is not complete.
func afterLine(f io.ReaderAt, from, size int64, buffer []byte) int64 {
	for at := from; at < size; {
		n, _ := f.ReadAt(buffer, at) // of a file that became shorter, 0
		if i := bytes.IndexByte(buffer[:n], '\n'); i >= 0 {
			return at + int64(i) + 1
		}
		if n == 0 {
			break
		}
		at += int64(n)
	}
	return from
}
