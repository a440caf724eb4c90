package server

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// A shard that was away applies what came meanwhile little by little: what it reads in its
// stream of the update log, what workers have queued for it. Its rows are then those of
// a moment that is past, another one than other shards' rows are of. Who trains reads them all
// the same, as far as the bound allows; who judges the model asks before it reads.

// arrears are, by slot, how many clocks its process says that it has ended: when it opens the
// shard, and when the shard has come back to a worker that went on without it.
type arrears map[perdure.Slot]perdure.Clock

func (a *arrears) tell(slot perdure.Slot, ended perdure.Clock) {
	if slot < 0 {
		return
	}
	if *a == nil {
		*a = arrears{}
	}
	(*a)[slot] = max((*a)[slot], ended)
}

// isBehind reports whether the shard is known to lack updates that have been made. It
// needs sh.mu.
func (sh *shard) isBehind() bool {
	if st := sh.stream; st != nil && !st.level {
		return true
	}
	if n := sh.unread(); n != nil && *n > 0 {
		return true
	}
	for slot, ended := range sh.arrears {
		if end := sh.view.EndOf(slot); end > 0 {
			ended = min(ended, end)
		}
		if consistency.Count(sh.intake.Applied(), slot) < ended {
			return true
		}
	}
	return false
}

// echo tells whoever asks whether the shard is behind.
func (sh *shard) echo(c *conn, f *wire.Frame) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.ready || sh.retired() {
		return // who asks will open it anew
	}
	sh.applyDue()
	out := sh.frame(wire.KindEcho)
	if out.Request = f.Request; sh.isBehind() {
		out.Flags = wire.FlagBehind
	}
	c.send(out)
}
