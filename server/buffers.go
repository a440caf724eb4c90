package server

import (
	"math/bits"
	"sync"
)

// mostSpare bounds the bytes that a server keeps to receive and answer into.
const mostSpare = 64 << 20

// buffers are memory for payloads and answers, used again and again: making and
// collecting it costs more than what it is for.
type buffers struct {
	mu       sync.Mutex // guards what follows
	bytes    int        // kept
	payloads [maxClass][][]byte
	answers  [maxClass][]*answer
}

// Memory is kept by size: class k has 2^k bytes.
const (
	leastClass = 8
	maxClass   = 24
)

func class(n int) int { return max(leastClass, bits.Len(uint(max(n, 1)-1))) }

// payload returns n bytes.
func (b *buffers) payload(n int) []byte {
	k := class(n)
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := len(b.payloads[k]); l > 0 {
		p := b.payloads[k][l-1]
		b.payloads[k] = b.payloads[k][:l-1]
		b.bytes -= cap(p)
		return p[:n]
	}
	return make([]byte, n, 1<<k)
}

// keep takes back what payload returned.
func (b *buffers) keep(p []byte) {
	k := class(cap(p))
	b.mu.Lock()
	defer b.mu.Unlock()
	if cap(p) == 1<<k && b.bytes+cap(p) <= mostSpare {
		b.payloads[k] = append(b.payloads[k], p)
		b.bytes += cap(p)
	}
}

// answer is the memory of one frame to a worker.
type answer struct {
	head   []byte
	values []float32
	kept   []byte // a copy of what was lent, or of its end
	from   *buffers
}

// answer returns room for n values.
func (b *buffers) answer(n int) *answer {
	k := class(4 * n)
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := len(b.answers[k]); l > 0 {
		a := b.answers[k][l-1]
		b.answers[k] = b.answers[k][:l-1]
		b.bytes -= 4 * cap(a.values)
		a.values = a.values[:n]
		return a
	}
	return &answer{values: make([]float32, n, 1<<k/4), from: b}
}

// Keep implements wire.Keeper.
func (a *answer) Keep(body []byte) []byte {
	a.kept = a.from.payload(len(body))
	copy(a.kept, body)
	return a.kept
}

// Release implements wire.Releaser.
func (a *answer) Release() {
	b, k := a.from, class(4*cap(a.values))
	if a.kept != nil {
		b.keep(a.kept)
		a.kept = nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes+4*cap(a.values) <= mostSpare {
		a.head = a.head[:0]
		b.answers[k] = append(b.answers[k], a)
		b.bytes += 4 * cap(a.values)
	}
}
