package server

import (
	"time"

	"github.com/perdure/perdure/internal/proc/stream"
)

// askLength asks for the length of the shard's stream, again and again.
func (sh *shard) askLength() {
	st := sh.stream
	tick := time.NewTicker(stream.LookEvery)
	defer tick.Stop()
	for {
		_, next, err := sh.s.updates.Extent(st.ctx, int(sh.id)) // waits while the log is away
		if err != nil {
			return // the shard is not here any more; or who reads finds it out too
		}
		sh.mu.Lock()
		st.length.Heard(next-1, time.Now())
		sh.mu.Unlock()
		select {
		case <-tick.C:
		case <-st.ctx.Done():
			return
		}
	}
}

// unread returns how many records the shard's rows lack; nil: that is not known. It needs
// sh.mu.
func (sh *shard) unread() *int64 {
	if sh.stream == nil {
		return nil
	}
	return sh.stream.length.Unread(time.Now())
}
