package transport

import "time"

// countsEvery is the interval at which counts are sent.
const countsEvery = time.Second

// Heartbeat decides at which heartbeats a server or a worker sends its status to the coordinator. In a large job, most
// heartbeats send nothing. Counts, which change with every clock, are sent at most once per second. A new connection
// receives the complete status. The zero Heartbeat has sent nothing. A Heartbeat must not be used concurrently.
type Heartbeat struct {
	rested  int       // heartbeats since the last status
	on      any       // the connection of the last status
	counted time.Time // when counts were last sent
}

// Rests counts a heartbeat and reports whether it may be skipped, if one of per heartbeats sends a status.
func (b *Heartbeat) Rests(per int) bool {
	b.rested++
	return b.rested < per
}

// Speaks records that a status is sent on a connection. It reports whether the connection is new and needs the complete
// status.
func (b *Heartbeat) Speaks(on any) (anew bool) {
	anew = b.on != on
	b.rested, b.on = 0, on
	return anew
}

// Recount makes the next status include the counts.
func (b *Heartbeat) Recount() { b.counted = time.Time{} }

// Counts reports whether the counts must be sent now, because they are due or must is set.
func (b *Heartbeat) Counts(now time.Time, must bool) bool {
	if !must && now.Sub(b.counted) < countsEvery {
		return false
	}
	b.counted = now
	return true
}
