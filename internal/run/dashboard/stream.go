package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/run/rundir"
)

const (
	// maxMessage limits the content of one message about a record, in bytes. It is also the memory that a client takes.
	maxMessage = 256 << 10
	// maxHistory is how much history of series.csv and clocks.csv a client receives. It gets every n-th row of a
	// longer one, which is more than a page can show.
	maxHistory = 4 << 20
)

// streamed lists the records that are streamed, in the order of a position, with the types of their messages.
var streamed = []struct {
	record  rundir.Record
	message string
	keep    func(row []byte) bool // other rows of a long history may be left out; nil: all are sent
}{
	{rundir.EventsRecord, "events", nil},
	{rundir.SeriesRecord, "series", isEvaluation},
	{rundir.ClocksRecord, "clocks", func([]byte) bool { return false }},
}

// stream is the stream to one client.
type stream struct {
	d        *Dashboard
	w        io.Writer
	control  *http.ResponseController
	role     keys.Role
	client   *client
	admitted func() bool

	at      [3]int64 // the client has this many bytes of each record
	version int      // of the last state sent
}

// errDone ends a stream after its last message.
var errDone = errors.New("dashboard: the run has ended")

// run sends messages until it fails, ctx is done or the dashboard is closed. last is the client's position, or "".
func (s *stream) run(ctx context.Context, last string) error {
	description, err := json.Marshal(s.d.job.forRole(s.role))
	if err != nil {
		return err
	}
	if !s.resume(last) { // the client discards the history that it has
		if err := s.send("reset", description); err != nil {
			return err
		}
	} else if err := s.send("job", description); err != nil {
		return err
	}
	s.d.hub.wake()
	alive := time.NewTicker(ping)
	defer alive.Stop()
	for closed := false; ; {
		if err := s.news(closed || s.d.job.Ended); err != nil {
			return err
		}
		if closed {
			return nil
		}
		select {
		case <-s.client.woken:
		case <-s.d.hub.closed:
			closed = true
		case <-alive.C:
			if !s.admitted() {
				return errNoSession
			}
			if err := s.write([]byte(": still here\n\n")); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// resume restores a client's position. It returns false if the position is not of this run.
func (s *stream) resume(last string) bool {
	parts := strings.Split(last, "/")
	if len(parts) != 1+len(s.at) || parts[0] != s.d.identity {
		return false
	}
	var at [3]int64
	for i := range at {
		n, err := strconv.ParseInt(parts[1+i], 10, 64)
		info, statErr := os.Stat(filepath.Join(s.d.cfg.Dir, string(streamed[i].record)))
		if err != nil || n < 0 || n > 0 && (statErr != nil || info.Size() < n) {
			return false
		}
		at[i] = n
	}
	s.at = at
	return true
}

// position returns the client's position.
func (s *stream) position() string {
	return fmt.Sprintf("%s/%d/%d/%d", s.d.identity, s.at[0], s.at[1], s.at[2])
}

// news sends everything that the client lacks. final says that nothing will be added to the records.
func (s *stream) news(final bool) error {
	state, version := s.d.hub.latest()
	for i := range streamed {
		if err := s.record(i); err != nil {
			return err
		}
	}
	if version > s.version {
		s.version = version
		if err := s.send("now", state); err != nil {
			return err
		}
	}
	if !final {
		return nil
	}
	end, err := s.d.end()
	if err != nil || end == nil {
		return err
	}
	if err := s.send("end", end); err != nil {
		return err
	}
	return errDone
}

// record sends the lines of one record that the client lacks.
func (s *stream) record(i int) error {
	r := streamed[i]
	every := 0
	for row := 0; ; {
		lines, next, err := rundir.ReadRecord(s.d.cfg.Dir, r.record, s.at[i], maxMessage)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // of an older program
		}
		if err != nil {
			return errors.Join(err, s.problem(err))
		}
		if next == s.at[i] {
			return nil
		}
		if every == 0 {
			every = 1
			if info, err := os.Stat(filepath.Join(s.d.cfg.Dir, string(r.record))); err == nil && r.keep != nil {
				every = int((info.Size()-s.at[i])/maxHistory) + 1
			}
		}
		if every > 1 {
			lines, row = thin(lines, row, every, r.keep)
		}
		s.at[i] = next
		if err := s.send(r.message, lines); err != nil {
			return err
		}
	}
}

// problem sends the reason why the stream ends. After a record became shorter, the client starts again without one.
func (s *stream) problem(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return s.send("problem", []byte(err.Error()))
}

// isEvaluation reports whether a row of series.csv belongs to an evaluation: its last column, backlog, is set.
func isEvaluation(row []byte) bool { return !bytes.HasSuffix(row, []byte(",\n")) }

// thin keeps the header, every n-th row, and all rows for which keep is true. row is the number of the first one.
func thin(lines []byte, row, n int, keep func(row []byte) bool) (kept []byte, next int) {
	for line := range bytes.Lines(lines) {
		if row%n == 0 || keep(line) {
			kept = append(kept, line...)
		}
		row++
	}
	return kept, row
}

// send sends one message with the client's position. A carriage return would end a line of the stream, so it becomes a
// space: a line of an edited file cannot add messages.
func (s *stream) send(kind string, content []byte) error {
	b := fmt.Appendf(make([]byte, 0, len(content)+len(content)/16+256), "event: %s\nid: %s\n", kind, s.position())
	for line := range bytes.Lines(content) {
		b = append(append(append(b, "data: "...), bytes.TrimRight(line, "\r\n")...), '\n')
	}
	for i, c := range b {
		if c == '\r' {
			b[i] = ' '
		}
	}
	return s.write(append(b, '\n'))
}

// write sends bytes within the patience for one message. A client that does not read is disconnected; it continues
// where it was when it reconnects.
func (s *stream) write(b []byte) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(s.d.patience)); err != nil {
		return err
	}
	if _, err := s.w.Write(b); err != nil {
		return err
	}
	return s.control.Flush()
}

// Ending is the last message about a run.
type Ending struct {
	State   string          `json:"state"`             // done, or ended: without a result
	Text    string          `json:"text"`              // the last event
	Summary json.RawMessage `json:"summary,omitempty"` // the content of summary.json
}

// end returns the last message, or nil if another process continues the job.
func (d *Dashboard) end() ([]byte, error) {
	e := Ending{State: "ended"}
	var kind string
	if last, err := rundir.LastEvents(d.cfg.Dir); err == nil && len(last) > 0 {
		kind, e.Text = last[len(last)-1].Kind, last[len(last)-1].Text
	}
	summary, err := rundir.ReadSummaryText(d.cfg.Dir)
	switch {
	case err == nil:
		e.State, e.Summary = "done", summary
	case !errors.Is(err, fs.ErrNotExist):
		e.Text = err.Error()
	case kind == "detached" && !d.job.Ended:
		return nil, nil
	}
	return json.Marshal(e)
}
