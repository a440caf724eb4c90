package coordinator

import (
	"strings"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
)

// EventCounts counts events since this coordinator started. The loop owns it.
type EventCounts struct {
	Events     map[string]int64 // by kind
	Deaths     map[string]int64 // detected deaths by target: server, worker, or dropped shards
	Recoveries map[string]int64 // recoveries by target: as in Deaths, plus log and store
	Outage     time.Duration    // total time in which a shard or slot was not working, after all had been working once

	served bool      // all shards and slots have been working
	ticked time.Time // time of the last tick
}

func newEventCounts() *EventCounts {
	return &EventCounts{Events: map[string]int64{}, Deaths: map[string]int64{}, Recoveries: map[string]int64{}}
}

// note counts an event.
func (t *EventCounts) note(e membership.Event) {
	t.Events[e.Kind]++
	of, _, _ := strings.Cut(e.Target, ":")
	switch e.Kind {
	case "detected":
		t.Deaths[of]++
	case "serving":
		t.Recoveries[of]++
	}
}

// tick adds the time since the last tick to Outage if a shard or slot is not working.
func (t *EventCounts) tick(now time.Time, core *membership.Core) {
	serves := core.Serving()
	if t.served = t.served || serves; t.served && !serves && !core.Complete() && !t.ticked.IsZero() {
		t.Outage += now.Sub(t.ticked)
	}
	t.ticked = now
}
