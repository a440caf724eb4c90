package updatelog

import (
	"errors"
	"fmt"
	"time"
)

// assembler makes entries of a stream's records. What it yields is a function of
// the records and the times they were stored at, so that all who read a stream
// from its beginning agree.
type assembler struct {
	job   string
	shard int
	next  Position // that the next record must have; 0: any
	open  map[uint64]*openGroup
}

// openGroup is a producer's latest group, of which records are still to come.
type openGroup struct {
	number uint64
	begin  Position
	stored time.Time // its first record
	parts  [][]byte
	count  uint32
}

func newAssembler(job string, shard int, from Position) *assembler {
	return &assembler{job: job, shard: shard, next: from, open: map[uint64]*openGroup{}}
}

func (a *assembler) damaged(at Position, reason string) error {
	return &DamageError{Stream: StreamName(a.job, a.shard), Shard: a.shard, Position: at, Reason: reason}
}

// add takes the next record, stored at the given time, and returns the entries
// that are whole by it. It keeps b.
func (a *assembler) add(at Position, stored time.Time, b []byte) ([]Entry, error) {
	if a.next != 0 && at != a.next {
		return nil, a.damaged(a.next, "it is missing")
	}
	a.next = at + 1
	h, payload, err := decode(b)
	if err == nil {
		err = h.belongs(a.job, a.shard)
	}
	if errors.Is(err, ErrRefused) {
		return nil, fmt.Errorf("stream %s, position %d: %w", StreamName(a.job, a.shard), at, err)
	}
	if err != nil {
		return nil, a.damaged(at, err.Error())
	}
	a.expire(stored)
	g := a.take(h, at, stored, payload)
	if g == nil {
		return nil, nil
	}
	delete(a.open, h.Producer)
	return a.entries(g, at)
}

// take puts a record to its group and returns that if it is whole.
func (a *assembler) take(h Header, at Position, stored time.Time, payload []byte) *openGroup {
	g := a.open[h.Producer]
	switch {
	case g != nil && h.Group < g.number:
		return nil // late, and sent again since
	case h.Index == 0: // whatever was open is given up
		g = &openGroup{number: h.Group, begin: at, stored: stored, count: h.Count}
		a.open[h.Producer] = g
	case g == nil || h.Group != g.number || h.Index != uint32(len(g.parts)) || h.Count != g.count:
		delete(a.open, h.Producer) // a record is missing
		return nil
	}
	if g.parts = append(g.parts, payload); uint32(len(g.parts)) < g.count {
		return nil
	}
	return g
}

// expire gives up the groups that were begun too long before a moment.
func (a *assembler) expire(now time.Time) {
	for producer, g := range a.open {
		if now.Sub(g.stored) >= MaxSpan {
			delete(a.open, producer)
		}
	}
}

// resume is the position before which nothing is needed any more.
func (a *assembler) resume() Position {
	least := a.next
	for _, g := range a.open {
		least = min(least, g.begin)
	}
	return least
}

// entries takes a whole group apart.
func (a *assembler) entries(g *openGroup, at Position) ([]Entry, error) {
	payloads, err := split(g.parts)
	if err != nil {
		return nil, a.damaged(at, err.Error())
	}
	after := a.resume()
	entries := make([]Entry, len(payloads))
	for i, p := range payloads {
		entries[i] = Entry{Position: at, Resume: min(g.begin, after), Payload: p}
	}
	if n := len(entries); n > 0 {
		entries[n-1].Resume = after
	}
	return entries, nil
}
