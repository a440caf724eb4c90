// Package words defines the view of a job, the changes of the view that the coordinator sends to servers and workers,
// and the statuses that they report to it.
//
// Each word holds whole values, never steps. On each connection the first tells all, the next
// what has changed since. So a word costs what has changed, not what there is. Who speaks has
// a [ServerSpeaker] or a [WorkerSpeaker], which knows what was told; who hears puts the words
// together again, in a [ServerWord], a [WorkerStatus] or a view. Both sides know the same as
// long as no word of a connection is missed: statuses are numbered for that ([Follows]), and a
// [ViewDelta] names the revision that it follows. A receiver that a word does not fit breaks the
// connection, and the next one starts with whole values.
//
// A word keeps what it was made of, which must stay as it is. A speaker belongs to one
// connection and one goroutine; so does a receiver. Public packages name none of these
// types.
package words

import (
	"errors"
	"fmt"
)

var (
	// ErrViewGap is returned for a change of the view that does not fit the one at
	// hand: the whole view is needed.
	ErrViewGap = errors.New("perdure: a change of the view does not fit")

	// ErrStatusGap is returned for a status that tells what has changed since one that
	// was not heard: the connection is broken, and all is told on the next.
	ErrStatusGap = errors.New("perdure: a status does not fit")
)

// What a coordinator is told by processes that have nothing new to say is bounded: from
// 80 processes on they speak less often, but at least every fourth time. So one that is
// frozen is noticed after 1.6 s, in place of 1 s, in jobs of 160 and more.
const (
	processesPerBeat = 40
	mostBeats        = 4
)

// Beats is of how many heartbeats a process of the job says one that it is there: at
// least 1. What is new it says at once. The job has the given number of servers.
func Beats(v *View, servers int) int {
	return min(max((len(v.Slots)+servers)/processesPerBeat, 1), mostBeats)
}

// Follows reports, with ErrStatusGap, whether the word of a connection that has that number
// is the one after the word that has the number last.
func Follows(last, number uint64) error {
	if number != last+1 {
		return fmt.Errorf("%w: word %d comes after word %d", ErrStatusGap, number, last)
	}
	return nil
}
