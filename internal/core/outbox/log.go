package outbox

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// If the job has an update log, updates and ticks are appended there, and servers read them from there. So a worker can
// continue while a shard has no server. An update is safe, and under two-step clocks staged, once the log has
// acknowledged all of it. It is kept longer only to be shown on top of rows that do not contain it yet.

// logFrames is the memory for the result of LogRecords.
type logFrames struct {
	entries []LogRecord
	frames  []wire.Frame
}

// stream describes what this process has appended to a shard's stream of the log.
type stream struct {
	tables int           // number of tables appended for the stream's readers
	clocks perdure.Clock // updates of clocks below this are completely in the log
}

// LogRecord is a frame for a shard's stream.
type LogRecord struct {
	wire.Frame
	Completes *Update // to pass to RecordLogged once the log has the entry; nil: completes no update
}

// LogRecords returns the entries to append to the shard's stream, in order. If mayHold is set, the newest update may be
// held back so that the next ones can be merged into it: see IsHolding. The result is valid until the next call for any
// shard.
func (s *Shard) LogRecords(as wire.Header, mayHold bool) []LogRecord {
	b, n := s.outbox, len(s.kept)
	if s.holding = mayHold && s.holds(s.kept[n-1]); s.holding {
		n--
	}
	first := n
	for first > 0 && (s.kept[first-1].phase == Open || s.kept[first-1].sent < len(s.kept[first-1].parts)) {
		first--
	}
	clear(b.log.entries)
	if b.log.entries = b.log.entries[:0]; first < n {
		s.tellTables(as)
	}
	for _, u := range s.kept[first:n] {
		b.log.frames = s.frames(u, as, b.log.frames[:0])
		for _, f := range b.log.frames {
			e := LogRecord{Frame: f}
			if f.Parts > 0 && f.Part == f.Parts-1 {
				e.Completes = u
			}
			b.log.entries = append(b.log.entries, e)
		}
	}
	return b.log.entries
}

// tellTables appends the tables that the stream's readers must know.
func (s *Shard) tellTables(as wire.Header) {
	b := s.outbox
	for ; s.stream.tables < len(b.jobView.view.Tables); s.stream.tables++ {
		as.Kind, as.Clock = wire.KindAddTable, perdure.Clock(s.stream.tables)
		f := wire.Frame{Header: as, Payload: wire.JSON(b.jobView.view.Tables[s.stream.tables])}
		b.log.entries = append(b.log.entries, LogRecord{Frame: f})
	}
}

// IsHolding reports whether an update is held back from the log.
func (s *Shard) IsHolding() bool { return s.holding }

// RecordLogged records that an update is in the log.
func (s *Shard) RecordLogged(u *Update) {
	before := s.outbox.ticks.staged(s)
	s.stream.clocks = u.until()
	s.outbox.ticks.stagedMore(s, before)
	if slices.Contains(s.kept, u) {
		u.logged = true
		s.keep(-u.bytes)
		s.loggedBytes += u.bytes
	}
	s.dropSafe()
}
