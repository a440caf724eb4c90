package server

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/protocol"
)

// TestHolds checks that a hold is measured from the holder's last progress. A late sample counts nearly like a punctual
// one, since the process was not running meanwhile.
func TestHolds(t *testing.T) {
	const every = 100 * time.Millisecond
	now := time.Unix(1000, 0)
	h := holdMonitor{every: every, sampled: now}
	own, sh := &lock{}, &shard{id: 3}
	sample := func(after time.Duration) protocol.LockHold {
		now = now.Add(after)
		return h.sample(now, own, []*shard{sh})
	}
	check := func(what string, got protocol.LockHold, shard int, ms, longest int64) {
		t.Helper()
		if int(got.Shard) != shard || got.Ms != ms || got.LongestMs != longest {
			t.Errorf("%s: %+v, want shard %d, %d ms and %d ms", what, got, shard, ms, longest)
		}
	}
	check("no lock is held", sample(every), 0, 0, 0)
	sh.mu.Lock()
	check("first seen", sample(every), 0, 0, 0)
	check("and again", sample(every), 3, 100, 0)
	sh.mu.Progress()
	check("after progress of the holder", sample(every), 0, 0, 100)
	check("after the process was frozen for a minute", sample(time.Minute), 3, 200, 100)
	sh.mu.Unlock()
	check("unlocked", sample(every), 0, 0, 200)
	own.Lock()
	sh.mu.Lock()
	sample(every)
	sh.mu.Progress()
	sample(every)
	check("the server's own lock was held longest", sample(every), -1, 200, 200)
}
