package server

import (
	"math/bits"
	"slices"
	"sync"
	"time"
)

// maxSpare is the maximum number of bytes kept for reuse by received and sent frames.
const maxSpare = 64 << 20

// trimEvery is how long unused memory is kept, so that memory needed by a burst is released.
const trimEvery = 10 * time.Second

// frameBuffers pools memory for payloads and answers. Allocating and collecting that memory costs more than the work
// done with it.
type frameBuffers struct {
	mu       sync.Mutex // guards the fields below
	bytes    int        // in the pool
	payloads [maxClass]bufferStack[[]byte]
	answers  [maxClass]bufferStack[*answerFrame]
}

// bufferStack is a stack of buffers of one size; the most recently used is on top.
type bufferStack[T any] struct {
	kept []T
	idle int // how many, from the bottom, were not taken since the last trim
}

func (s *bufferStack[T]) put(v T) { s.kept = append(s.kept, v) }

func (s *bufferStack[T]) take() (v T, ok bool) {
	n := len(s.kept) - 1
	if n < 0 {
		return v, false
	}
	v = s.kept[n]
	s.kept = slices.Delete(s.kept, n, n+1) // also clears the slot
	s.idle = min(s.idle, n)
	return v, true
}

// trim releases the buffers that were not taken since the last call.
func (s *bufferStack[T]) trim(gone func(T)) {
	for _, v := range s.kept[:s.idle] {
		gone(v)
	}
	s.kept = slices.Delete(s.kept, 0, s.idle)
	s.idle = len(s.kept)
}

// Trim releases the memory that was not needed since the last call.
func (b *frameBuffers) Trim() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k := range maxClass {
		b.payloads[k].trim(func(p []byte) { b.bytes -= cap(p) })
		b.answers[k].trim(func(a *answerFrame) { b.bytes -= 4 * cap(a.values) })
	}
}

// Memory is pooled by size: class k has 2^k bytes.
const (
	minClass = 8
	maxClass = 24
)

func class(n int) int { return max(minClass, bits.Len(uint(max(n, 1)-1))) }

// Payload returns a buffer of n bytes.
func (b *frameBuffers) Payload(n int) []byte {
	k := class(n)
	b.mu.Lock()
	defer b.mu.Unlock()
	if p, ok := b.payloads[k].take(); ok {
		b.bytes -= cap(p)
		return p[:n]
	}
	return make([]byte, n, 1<<k)
}

// Wants reports whether Keep would accept p. Buffers from Payload always have an acceptable size.
func (b *frameBuffers) Wants(p []byte) bool { return cap(p) == 1<<class(cap(p)) }

// Keep takes back a buffer from Payload.
func (b *frameBuffers) Keep(p []byte) {
	k := class(cap(p))
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Wants(p) && b.bytes+cap(p) <= maxSpare {
		b.payloads[k].put(p)
		b.bytes += cap(p)
	}
}

// CopyIfShared returns body as memory that only the caller uses. It copies body if it is shared.
func (b *frameBuffers) CopyIfShared(body []byte, shared bool) []byte {
	if !shared || body == nil {
		return body
	}
	alone := b.Payload(len(body))
	copy(alone, body)
	return alone
}

// KeepAll takes back several buffers and returns their slice, emptied.
func (b *frameBuffers) KeepAll(all [][]byte) [][]byte {
	for i, p := range all {
		b.Keep(p)
		all[i] = nil
	}
	return all[:0]
}

// answerFrame is the memory of one frame sent to a worker.
type answerFrame struct {
	head   []byte
	values []float32
	kept   []byte // a copy of lent memory, or of its end
	from   *frameBuffers
}

// Answer returns a frame with capacity for n values.
func (b *frameBuffers) Answer(n int) *answerFrame {
	k := class(4 * n)
	b.mu.Lock()
	defer b.mu.Unlock()
	if a, ok := b.answers[k].take(); ok {
		b.bytes -= 4 * cap(a.values)
		a.values = a.values[:n]
		return a
	}
	return &answerFrame{values: make([]float32, n, 1<<k/4), from: b}
}

// CopyBuffer returns a buffer of n bytes that the answer holds until Release.
func (a *answerFrame) CopyBuffer(n int) []byte {
	a.kept = a.from.Payload(n)
	return a.kept
}

// Keep implements wire.Keeper.
func (a *answerFrame) Keep(body []byte) []byte {
	kept := a.CopyBuffer(len(body))
	copy(kept, body)
	return kept
}

// Release implements wire.Releaser.
func (a *answerFrame) Release() {
	b, k := a.from, class(4*cap(a.values))
	if a.kept != nil {
		b.Keep(a.kept)
		a.kept = nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes+4*cap(a.values) <= maxSpare {
		a.head = a.head[:0]
		b.answers[k].put(a)
		b.bytes += 4 * cap(a.values)
	}
}
