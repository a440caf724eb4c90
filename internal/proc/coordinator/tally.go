package coordinator

import (
	"strings"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
)

// Tally is what this coordinator has counted since it began. The loop owns it.
type Tally struct {
	Events     map[string]int64 // by kind
	Deaths     map[string]int64 // that were noticed, by what has died: server, worker, or shards that were dropped
	Recoveries map[string]int64 // by what works again: likewise, and what was waited for: log, store
	Outage     time.Duration    // in which not every shard served and every slot worked, since all did first

	served bool      // all have
	ticked time.Time // the last tick
}

func newTally() *Tally {
	return &Tally{Events: map[string]int64{}, Deaths: map[string]int64{}, Recoveries: map[string]int64{}}
}

// note counts an event.
func (t *Tally) note(e membership.Event) {
	t.Events[e.Kind]++
	of, _, _ := strings.Cut(e.Target, ":")
	switch e.Kind {
	case "detected":
		t.Deaths[of]++
	case "serving":
		t.Recoveries[of]++
	}
}

// tick counts the time since the last tick, if it was one of an outage.
func (t *Tally) tick(now time.Time, core *membership.Core) {
	serves := core.Serving()
	if t.served = t.served || serves; t.served && !serves && !core.Complete() && !t.ticked.IsZero() {
		t.Outage += now.Sub(t.ticked)
	}
	t.ticked = now
}
