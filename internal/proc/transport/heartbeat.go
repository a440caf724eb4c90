package transport

import "time"

// countsEvery is how often what is only counted is told.
const countsEvery = time.Second

// Heartbeat decides at which heartbeats a server or a worker tells the coordinator its status. In a large job most
// heartbeats say nothing; what changes with every clock is told once a second at most; and on a new connection
// everything is told again. The zero Heartbeat has said nothing. It belongs to one goroutine.
type Heartbeat struct {
	rested  int       // heartbeats since something was said
	on      any       // the connection of the last word
	counted time.Time // when what is only counted was told
}

// Rests counts a heartbeat, and reports whether nothing need be said at it, where one of
// this many says something.
func (b *Heartbeat) Rests(per int) bool {
	b.rested++
	return b.rested < per
}

// Speaks notes that something is said on a connection, and reports whether it is another one
// than before: then all is to be told.
func (b *Heartbeat) Speaks(on any) (anew bool) {
	anew = b.on != on
	b.rested, b.on = 0, on
	return anew
}

// Recount has what is only counted told with the next word.
func (b *Heartbeat) Recount() { b.counted = time.Time{} }

// Counts reports whether what is only counted is to be told now: it is time, or it must be.
func (b *Heartbeat) Counts(now time.Time, must bool) bool {
	if !must && now.Sub(b.counted) < countsEvery {
		return false
	}
	b.counted = now
	return true
}
