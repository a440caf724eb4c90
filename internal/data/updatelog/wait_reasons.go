package updatelog

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// WaitReasons stores the reports of an Options.Status. The zero WaitReasons is ready to use. It is safe for concurrent
// use.
type WaitReasons struct {
	mu  sync.Mutex
	why map[int]error // by shard
}

// Record records a report, and reports whether a shard's wait starts or ends with it.
func (w *WaitReasons) Record(shard int, why error) (news bool) {
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

// Reason returns the reason of the first shard that waits, or "" if none does.
func (w *WaitReasons) Reason() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.why) == 0 {
		return ""
	}
	first := w.why[slices.Min(slices.Collect(maps.Keys(w.why)))]
	return strings.TrimPrefix(first.Error(), "updatelog: ")
}
