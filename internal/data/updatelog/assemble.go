package updatelog

import (
	"errors"
	"fmt"
	"time"
)

// assembler assembles entries from a stream's records. The result depends only on the records and the times at which
// they were stored, so all readers of a stream agree on it.
type assembler struct {
	job   string
	shard int
	next  Position // of the next record; 0: any
	open  map[uint64]*openGroup
}

// openGroup is a producer's latest group while records of it are missing.
type openGroup struct {
	number uint64
	first  Position
	stored time.Time // when its first record was stored
	parts  [][]byte
	count  uint32
}

func newAssembler(job string, shard int, from Position) *assembler {
	return &assembler{job: job, shard: shard, next: from, open: map[uint64]*openGroup{}}
}

func (a *assembler) damageError(at Position, reason string) error {
	return &DamageError{Stream: StreamName(a.job, a.shard), Shard: a.shard, Position: at, Reason: reason}
}

// add takes the next record, stored at the given time, and returns the entries that it completes. It keeps a reference
// to b.
func (a *assembler) add(at Position, stored time.Time, b []byte) ([]Entry, error) {
	if a.next != 0 && at != a.next {
		return nil, a.damageError(a.next, "the record is missing")
	}
	a.next = at + 1
	h, payload, err := decode(b)
	if err == nil {
		err = h.checkJob(a.job, a.shard)
	}
	if errors.Is(err, ErrRefused) {
		return nil, fmt.Errorf("stream %s, position %d: %w", StreamName(a.job, a.shard), at, err)
	}
	if err != nil {
		return nil, a.damageError(at, err.Error())
	}
	a.expire(stored)
	g := a.take(h, at, stored, payload)
	if g == nil {
		return nil, nil
	}
	delete(a.open, h.Producer)
	return a.entries(g, at)
}

// take adds a record to its group, and returns the group if it is complete.
func (a *assembler) take(h Header, at Position, stored time.Time, payload []byte) *openGroup {
	g := a.open[h.Producer]
	switch {
	case g != nil && h.Group < g.number:
		return nil // late; the group was sent again
	case h.Index == 0: // a new group discards an incomplete one
		g = &openGroup{number: h.Group, first: at, stored: stored, count: h.Count}
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

// expire discards groups whose first record was stored MaxSpan or longer before now.
func (a *assembler) expire(now time.Time) {
	for producer, g := range a.open {
		if now.Sub(g.stored) >= MaxSpan {
			delete(a.open, producer)
		}
	}
}

// resume returns the position before which no record is needed any more.
func (a *assembler) resume() Position {
	least := a.next
	for _, g := range a.open {
		least = min(least, g.first)
	}
	return least
}

// entries splits a complete group into its entries.
func (a *assembler) entries(g *openGroup, at Position) ([]Entry, error) {
	payloads, err := split(g.parts)
	if err != nil {
		return nil, a.damageError(at, err.Error())
	}
	after := a.resume()
	entries := make([]Entry, len(payloads))
	for i, p := range payloads {
		entries[i] = Entry{Position: at, Resume: min(g.first, after), Payload: p}
	}
	if n := len(entries); n > 0 {
		entries[n-1].Resume = after
	}
	return entries, nil
}
