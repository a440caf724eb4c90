package server

import (
	"time"

	"github.com/perdure/perdure/internal/data/updatelog"
)

// lookEvery is how often a server asks how long the streams are that it reads. What it
// heard says nothing any more when it is three times as old.
const lookEvery = time.Second

// unread says how far a shard is behind its stream. The shard's lock guards it.
type unread struct {
	taken updatelog.Position // no entry up to there is missing in the state
	last  updatelog.Position // of the last record there was
	asked time.Time          // when that was heard; zero: never
}

// askLength asks for the length of the shard's stream, again and again.
func (sh *shard) askLength() {
	st := sh.stream
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		_, next, err := sh.s.updates.Extent(st.ctx, int(sh.id)) // waits while the log is away
		if err != nil {
			return // the shard is not here any more; or who reads finds it out too
		}
		sh.mu.Lock()
		st.unread.last, st.unread.asked = next-1, time.Now()
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
	if sh.stream == nil || time.Since(sh.stream.unread.asked) > 3*lookEvery {
		return nil
	}
	u := &sh.stream.unread
	n := max(0, int64(u.last)-int64(u.taken))
	return &n
}
