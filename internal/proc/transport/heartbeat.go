package transport

import "time"

// countsEvery is the interval at which counts are sent.
const countsEvery = time.Second

// Heartbeat decides at which heartbeats a server or a worker sends its status to the coordinator. In a large job, most
// heartbeats send nothing. Counts, which change with every clock, are sent at most once per second. A new connection
// receives the complete status. The zero Heartbeat has sent nothing. A Heartbeat must not be used concurrently.
type Heartbeat struct {
	skipped      int       // heartbeats since the last status
	on           any       // the connection of the last status
	countsSentAt time.Time // when counts were last sent
}

// Skip counts a heartbeat and reports whether it may be skipped, if one of per heartbeats sends a status.
func (b *Heartbeat) Skip(per int) bool {
	b.skipped++
	return b.skipped < per
}

// SendingOn records that a status is sent on a connection. It reports whether the connection is new and needs the
// complete status.
func (b *Heartbeat) SendingOn(on any) (anew bool) {
	anew = b.on != on
	b.skipped, b.on = 0, on
	return anew
}

// ForceCounts makes the next status include the counts.
func (b *Heartbeat) ForceCounts() { b.countsSentAt = time.Time{} }

// CountsDue reports whether the counts must be sent now, because they are due or must is set.
func (b *Heartbeat) CountsDue(now time.Time, must bool) bool {
	if !must && now.Sub(b.countsSentAt) < countsEvery {
		return false
	}
	b.countsSentAt = now
	return true
}
