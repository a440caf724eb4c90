package updatelog

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Memory is an in-memory log for simulations. It starts no goroutines of its own and uses only the time package, so it
// runs in virtual time. It outlives the clients that [Memory.Open] returns. Its methods inject faults.
type Memory struct {
	mu          sync.Mutex // guards everything below
	streams     map[string]*memoryStream
	producers   uint64
	changed     chan struct{} // closed when anything changes
	unavailable bool
	broken      bool
	delay       func(shard int) time.Duration
	loseAcks    int
	limit       int      // bytes of one stream; 0: unlimited
	onLoss      []func() // called when a stream has lost its last records
}

type memoryStream struct {
	first    Position
	records  []memoryRecord
	bytes    int
	losses   int      // how often it lost its last records
	lostFrom Position // the position from which records were lost the last time
}

type memoryRecord struct {
	stored time.Time
	bytes  []byte
}

// NewMemory returns an empty in-memory log without delays.
func NewMemory() *Memory {
	return &Memory{streams: map[string]*memoryStream{}, changed: make(chan struct{})}
}

// Open opens a job's log, like a separate process.
func (m *Memory) Open(o Options) (Log, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.producers++
	return newLog(o, &memoryClient{m: m, job: o.Job}, m.producers), nil
}

// SetUnavailable makes the log unavailable (it stores, acknowledges and answers nothing) or available again.
func (m *Memory) SetUnavailable(away bool) { m.set(func() { m.unavailable = away }) }

// SetBroken makes the log reject writes as if its disk were full or failing, or accept them again. Reads still work.
func (m *Memory) SetBroken(broken bool) { m.set(func() { m.broken = broken }) }

// SetDelay makes storing each record take the duration that delay returns; nil: no time. Several goroutines may call
// delay concurrently.
func (m *Memory) SetDelay(delay func(shard int) time.Duration) { m.set(func() { m.delay = delay }) }

// LoseAcks makes the log store the next n groups without acknowledging them.
func (m *Memory) LoseAcks(n int) { m.set(func() { m.loseAcks = n }) }

// SetLimit limits the size of each stream; 0: unlimited.
func (m *Memory) SetLimit(bytes int) { m.set(func() { m.limit = bytes }) }

// Alter passes the bytes of a stored record to change. It panics if the record does not exist.
func (m *Memory) Alter(job string, shard int, at Position, change func(record []byte)) {
	m.set(func() {
		s := m.stream(job, shard)
		r := &s.records[at-s.first]
		r.bytes = slices.Clone(r.bytes) // readers keep the old bytes
		change(r.bytes)
	})
}

// TruncateFrom removes the records of a shard from a position on, as if the machine failed before they were on disk.
func (m *Memory) TruncateFrom(job string, shard int, from Position) {
	var back []func()
	m.set(func() {
		back = slices.Clone(m.onLoss)
		s := m.stream(job, shard)
		for _, r := range s.records[from-s.first:] {
			s.bytes -= len(r.bytes)
		}
		s.records, s.losses, s.lostFrom = s.records[:from-s.first], s.losses+1, from
	})
	for _, f := range back {
		f()
	}
}

func (m *Memory) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	m.wake()
}

func (m *Memory) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Memory) stream(job string, shard int) *memoryStream {
	name := StreamName(job, shard)
	s := m.streams[name]
	if s == nil {
		s = &memoryStream{first: 1}
		m.streams[name] = s
	}
	return s
}

func (s *memoryStream) next() Position { return s.first + Position(len(s.records)) }

// memoryClient implements store for one client of a Memory.
type memoryClient struct {
	m   *Memory
	job string
}

func (c *memoryClient) publish(ctx context.Context, shard int, records [][]byte) (at Position, err error) {
	size := 0
	for _, r := range records {
		size += len(r)
	}
	for i, r := range records {
		if err := c.m.waitDelay(ctx, shard); err != nil {
			return 0, err
		}
		if at, err = c.put(shard, r, size, i == 0); err != nil {
			return 0, err
		}
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.loseAcks > 0 {
		c.m.loseAcks--
		return 0, fmt.Errorf("%w: an acknowledgement was lost", ErrAway)
	}
	return at, nil
}

// waitDelay waits for the time that storing a record takes.
func (m *Memory) waitDelay(ctx context.Context, shard int) error {
	m.mu.Lock()
	delay := m.delay
	m.mu.Unlock()
	if delay == nil {
		return ctx.Err()
	}
	return sleep(ctx, delay(shard))
}

// put stores one record. The first record of a group needs room for the whole group.
func (c *memoryClient) put(shard int, record []byte, group int, first bool) (Position, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	s := c.m.stream(c.job, shard)
	need := len(record)
	if first {
		need = group
	}
	switch {
	case c.m.unavailable:
		return 0, ErrAway
	case c.m.broken:
		return 0, ErrDisk
	case c.m.limit > 0 && group > c.m.limit:
		return 0, tooLargeError(group, c.m.limit)
	case c.m.limit > 0 && s.bytes+need > c.m.limit:
		return 0, ErrFull
	}
	s.records = append(s.records, memoryRecord{stored: time.Now(), bytes: record})
	s.bytes += len(record)
	c.m.wake()
	return s.next() - 1, nil
}

// tooLargeError returns the error for a group that can never fit.
func tooLargeError(group, limit int) error {
	return fmt.Errorf("%w: an update of %d bytes does not fit in a log of at most %d bytes per shard; raise the log's "+
		"limit", ErrRefused, group, limit)
}

// lockAvailable waits until the log is available, and returns with m.mu held.
func (m *Memory) lockAvailable(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		m.mu.Lock()
		if !m.unavailable {
			return nil
		}
		changed := m.changed
		m.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (c *memoryClient) extent(ctx context.Context, shard int) (first, next Position, err error) {
	if err := c.m.lockAvailable(ctx); err != nil {
		return 0, 0, err
	}
	defer c.m.mu.Unlock()
	s := c.m.stream(c.job, shard)
	return s.first, s.next(), nil
}

func (c *memoryClient) record(ctx context.Context, shard int, at Position) ([]byte, error) {
	if err := c.m.lockAvailable(ctx); err != nil {
		return nil, err
	}
	defer c.m.mu.Unlock()
	if s := c.m.stream(c.job, shard); at >= s.first && at < s.next() {
		return s.records[at-s.first].bytes, nil
	}
	return nil, nil
}

// onAvailable implements store. The caller must hold m.mu, as Open does.
func (c *memoryClient) onAvailable(f func()) { c.m.onLoss = append(c.m.onLoss, f) }

func (c *memoryClient) trim(ctx context.Context, shard int, before Position) error {
	if err := c.m.lockAvailable(ctx); err != nil {
		return err
	}
	defer c.m.mu.Unlock()
	s := c.m.stream(c.job, shard)
	for s.first < before && len(s.records) > 0 {
		s.bytes -= len(s.records[0].bytes)
		s.first, s.records = s.first+1, s.records[1:]
	}
	c.m.wake()
	return nil
}

func (c *memoryClient) read(ctx context.Context, shard int, from Position,
	deliver func(Position, time.Time, []byte) error, atEnd func(),
) error {
	_, end, err := c.extent(ctx, shard)
	if err != nil {
		return err
	}
	losses := c.losses(shard)
	for {
		if from >= end && atEnd != nil {
			atEnd()
			atEnd = nil
		}
		r, err := c.wait(ctx, shard, from, losses)
		if err != nil {
			return err
		}
		if err := deliver(from, r.stored, r.bytes); err != nil {
			return err
		}
		from++
	}
}

func (c *memoryClient) losses(shard int) int {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.m.stream(c.job, shard).losses
}

// wait returns the record at a position once it exists. losses is the stream's loss count when the read started.
func (c *memoryClient) wait(ctx context.Context, shard int, at Position, losses int) (memoryRecord, error) {
	for {
		if err := c.m.lockAvailable(ctx); err != nil {
			return memoryRecord{}, err
		}
		s, changed := c.m.stream(c.job, shard), c.m.changed
		switch {
		case at < s.first:
			defer c.m.mu.Unlock()
			return memoryRecord{}, trimmedError(c.job, shard, at, s.first)
		case s.losses != losses && at > s.lostFrom:
			defer c.m.mu.Unlock()
			return memoryRecord{}, lostRecordsError(c.job, shard, s.lostFrom)
		case at < s.next():
			defer c.m.mu.Unlock()
			return s.records[at-s.first], nil
		}
		c.m.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return memoryRecord{}, ctx.Err()
		}
	}
}

func (c *memoryClient) bound() int {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.m.limit
}

func (c *memoryClient) close() error { return nil }
