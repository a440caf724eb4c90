package server

import (
	"math/bits"
	"slices"
	"sync"
	"time"
)

// mostSpare bounds the bytes that a server keeps to receive and answer into.
const mostSpare = 64 << 20

// trimEvery is how long memory may lie unused: what a burst needed is let go then.
const trimEvery = 10 * time.Second

// frameBuffers are memory for payloads and answers, used again and again: making and
// collecting it costs more than what it is for.
type frameBuffers struct {
	mu       sync.Mutex // guards what follows
	bytes    int        // kept
	payloads [maxClass]shelf[[]byte]
	answers  [maxClass]shelf[*answerFrame]
}

// shelf keeps pieces of memory of one size, the last used on top.
type shelf[T any] struct {
	kept []T
	idle int // how many, from the bottom, have not been taken since trim
}

func (s *shelf[T]) put(v T) { s.kept = append(s.kept, v) }

func (s *shelf[T]) take() (v T, ok bool) {
	n := len(s.kept) - 1
	if n < 0 {
		return v, false
	}
	v = s.kept[n]
	s.kept = slices.Delete(s.kept, n, n+1) // which forgets v
	s.idle = min(s.idle, n)
	return v, true
}

// trim lets go of what has not been taken since it was last called.
func (s *shelf[T]) trim(gone func(T)) {
	for _, v := range s.kept[:s.idle] {
		gone(v)
	}
	s.kept = slices.Delete(s.kept, 0, s.idle)
	s.idle = len(s.kept)
}

// Trim lets go of what nothing needed since it was last called.
func (b *frameBuffers) Trim() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k := range maxClass {
		b.payloads[k].trim(func(p []byte) { b.bytes -= cap(p) })
		b.answers[k].trim(func(a *answerFrame) { b.bytes -= 4 * cap(a.values) })
	}
}

// Memory is kept by size: class k has 2^k bytes.
const (
	leastClass = 8
	maxClass   = 24
)

func class(n int) int { return max(leastClass, bits.Len(uint(max(n, 1)-1))) }

// Payload returns n bytes.
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

// Wants reports whether Keep may take memory back: what Payload returned has the sizes that it keeps.
func (b *frameBuffers) Wants(p []byte) bool { return cap(p) == 1<<class(cap(p)) }

// Keep takes back what Payload returned.
func (b *frameBuffers) Keep(p []byte) {
	k := class(cap(p))
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Wants(p) && b.bytes+cap(p) <= mostSpare {
		b.payloads[k].put(p)
		b.bytes += cap(p)
	}
}

// Own returns bytes as memory of the caller's alone: a copy, where somebody else still has them.
func (b *frameBuffers) Own(body []byte, shared bool) []byte {
	if !shared || body == nil {
		return body
	}
	alone := b.Payload(len(body))
	copy(alone, body)
	return alone
}

// KeepAll keeps each of several, and returns their slice, empty.
func (b *frameBuffers) KeepAll(all [][]byte) [][]byte {
	for i, p := range all {
		b.Keep(p)
		all[i] = nil
	}
	return all[:0]
}

// answerFrame is the memory of one frame to a worker.
type answerFrame struct {
	head   []byte
	values []float32
	kept   []byte // a copy of what was lent, or of its end
	from   *frameBuffers
}

// answerFrame returns room for n values.
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

// Copied returns room for n bytes that the answer keeps until Release.
func (a *answerFrame) Copied(n int) []byte {
	a.kept = a.from.Payload(n)
	return a.kept
}

// Keep implements wire.Keeper.
func (a *answerFrame) Keep(body []byte) []byte {
	kept := a.Copied(len(body))
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
	if b.bytes+4*cap(a.values) <= mostSpare {
		a.head = a.head[:0]
		b.answers[k].put(a)
		b.bytes += 4 * cap(a.values)
	}
}
