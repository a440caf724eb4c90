package server

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/words"
)

// TestHolds: a lock that is held counts from the last progress of its holder. A sample that comes late counts as one
// that comes in time, or nearly: the process did not run meanwhile.
func TestHolds(t *testing.T) {
	const every = 100 * time.Millisecond
	now := time.Unix(1000, 0)
	h := holds{every: every, sampled: now}
	own, sh := &lock{}, &shard{id: 3}
	sample := func(after time.Duration) words.Hold {
		now = now.Add(after)
		return h.sample(now, own, []*shard{sh})
	}
	check := func(what string, got words.Hold, shard int, ms, longest int64) {
		t.Helper()
		if int(got.Shard) != shard || got.Ms != ms || got.LongestMs != longest {
			t.Errorf("%s: %+v, want shard %d, %d ms and %d ms", what, got, shard, ms, longest)
		}
	}
	check("nothing is held", sample(every), 0, 0, 0)
	sh.mu.Lock()
	check("it is seen first", sample(every), 0, 0, 0)
	check("and again", sample(every), 3, 100, 0)
	sh.mu.Progress()
	check("its holder has got on", sample(every), 0, 0, 100)
	check("the process was frozen for a minute", sample(time.Minute), 3, 200, 100)
	sh.mu.Unlock()
	check("it is free", sample(every), 0, 0, 200)
	own.Lock()
	sh.mu.Lock()
	sample(every)
	sh.mu.Progress()
	sample(every)
	check("the server's own has been held longest", sample(every), -1, 200, 200)
}
