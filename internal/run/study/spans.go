package study

import (
	"cmp"
	"slices"
	"time"
)

// span is from when to when a run went on.
type span struct{ from, to time.Time }

func (d *done) span() span {
	return span{d.Ended.Add(-time.Duration(d.Seconds * float64(time.Second))), d.Ended}
}

// atOnce is the most runs that went on at the same time. It is counted, and not what was asked for, since a study may
// go on with other settings than it began with.
func atOnce(spans []span) (most int) {
	type event struct {
		at   time.Time
		more int
	}
	var events []event
	for _, s := range spans {
		events = append(events, event{s.from, 1}, event{s.to, -1})
	}
	// An end stands before a beginning of the same moment: the two runs followed each other.
	slices.SortFunc(events, func(a, b event) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.more, b.more)) })
	now := 0
	for _, e := range events {
		now += e.more
		most = max(most, now)
	}
	return most
}
