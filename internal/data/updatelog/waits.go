package updatelog

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// Waits keeps what an Options.Status is told. The zero Waits is ready; safe for
// concurrent use.
type Waits struct {
	mu  sync.Mutex
	why map[int]error // by shard
}

// Note takes what Status was told, and reports whether that is the beginning or the end of
// a shard's waiting.
func (w *Waits) Note(shard int, why error) (news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, waited := w.why[shard]
	switch {
	case why == nil:
		delete(w.why, shard)
	case w.why == nil:
		w.why = map[int]error{shard: why}
	default:
		w.why[shard] = why
	}
	return waited == (why == nil)
}

// Why says what the first of those shards that wait waits for, "" if none does.
func (w *Waits) Why() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.why) == 0 {
		return ""
	}
	first := w.why[slices.Min(slices.Collect(maps.Keys(w.why)))]
	return strings.TrimPrefix(first.Error(), "updatelog: ")
}
