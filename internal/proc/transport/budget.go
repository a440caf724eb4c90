package transport

import "sync/atomic"

// Budget limits the bytes that several holders hold together, for example all connections of one peer. It never blocks:
// TryAdd fails if the limit is reached. A nil Budget has no limit. It is safe for concurrent use.
type Budget struct {
	limit func() int64
	held  atomic.Int64
}

// NewBudget returns a budget whose current limit is returned by most.
func NewBudget(most func() int64) *Budget { return &Budget{limit: most} }

// TryAdd adds n bytes if the limit permits, and reports whether it did.
func (b *Budget) TryAdd(n int64) bool {
	if b == nil {
		return true
	}
	if b.held.Add(n) <= b.limit() {
		return true
	}
	b.held.Add(-n)
	return false
}

// Add adds n bytes even beyond the limit.
func (b *Budget) Add(n int64) {
	if b != nil {
		b.held.Add(n)
	}
}

// Remove removes n bytes.
func (b *Budget) Remove(n int64) { b.Add(-n) }

// Held returns the number of bytes held.
func (b *Budget) Held() int64 {
	if b == nil {
		return 0
	}
	return b.held.Load()
}
