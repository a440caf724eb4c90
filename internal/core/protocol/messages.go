// Package protocol defines the protocol messages for the state of a job: the view, the changes of the view that the
// coordinator sends to servers and workers, and the statuses that they report to it.
//
// Each message holds new values, never increments. The first message on a connection holds the whole state, and later
// ones what has changed since. A message's size therefore depends on the change. A sender uses a [ServerDeltaEncoder]
// or a [WorkerDeltaEncoder], which tracks what it has sent. A receiver reassembles the state in a [ObservedServer], a
// [WorkerStatus] or a view.
//
// Sender and receiver agree as long as no message of a connection is missed. To detect that, statuses are numbered
// ([CheckSequence]), and a [ViewDelta] names the revision that it follows. A receiver closes the connection on a
// message that does not fit, and the next connection starts with the whole state.
//
// A message shares memory with the values it was made from, which must not change afterwards. An encoder belongs to one
// connection and one goroutine, and so does a receiver. No public API names these types.
package protocol

import (
	"errors"
	"fmt"
)

var (
	// ErrViewGap is returned for a change that does not fit the present view. The receiver then needs the whole view.
	ErrViewGap = errors.New("perdure: the view delta does not match the current view")

	// ErrStatusGap is returned for a status delta whose predecessor was not received. The receiver closes the
	// connection, and the next one starts with the whole status.
	ErrStatusGap = errors.New("perdure: a status delta is missing")
)

// The load on a coordinator from processes without news is bounded: from 80 processes on they send heartbeats less
// often, but at least every maxHeartbeatDivisor-th time. In jobs of 160 processes and more, a frozen process is
// therefore detected after 1.6 s instead of 1 s.
const (
	processesPerHeartbeat = 40
	maxHeartbeatDivisor   = 4
)

// HeartbeatDivisor returns the number of heartbeat intervals per heartbeat that a process sends, at least 1. Processes
// send news immediately, regardless of it. servers is the number of servers in the job.
func HeartbeatDivisor(v *View, servers int) int {
	return min(max((len(v.Slots)+servers)/processesPerHeartbeat, 1), maxHeartbeatDivisor)
}

// CheckSequence returns ErrStatusGap unless the status with the given number directly follows the one numbered last on
// its connection.
func CheckSequence(last, number uint64) error {
	if number != last+1 {
		return fmt.Errorf("%w: status %d follows status %d", ErrStatusGap, number, last)
	}
	return nil
}
