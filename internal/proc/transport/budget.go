package transport

import "sync/atomic"

// Budget bounds the bytes that several holders have together, such as all connections of one peer. Nobody waits
// for room: whoever finds none is told so. A nil Budget counts nothing and has room for everything. It is safe
// for concurrent use.
type Budget struct {
	most func() int64
	held atomic.Int64
}

// NewBudget makes a budget. most says how much may be held, whenever somebody asks for more.
func NewBudget(most func() int64) *Budget { return &Budget{most: most} }

// Take counts n bytes more, unless these are more than there is room for.
func (b *Budget) Take(n int64) bool {
	if b == nil {
		return true
	}
	if b.held.Add(n) <= b.most() {
		return true
	}
	b.held.Add(-n)
	return false
}

// Add counts n bytes more that are held whether there is room or not.
func (b *Budget) Add(n int64) {
	if b != nil {
		b.held.Add(n)
	}
}

// Give counts n bytes less.
func (b *Budget) Give(n int64) { b.Add(-n) }

// Held is how many bytes are counted.
func (b *Budget) Held() int64 {
	if b == nil {
		return 0
	}
	return b.held.Load()
}
