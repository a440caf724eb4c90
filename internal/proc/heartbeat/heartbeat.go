// Package heartbeat counts the heartbeats at which a server or a worker may tell the
// coordinator how it is. In a large job most say nothing; what changes with every clock is
// told once a second at most; and on a new connection all is told anew.
//
// A Beat belongs to one goroutine.
package heartbeat

import "time"

// countsEvery is how often what is only counted is told.
const countsEvery = time.Second

// Beat is where a process stands between two words. The zero Beat has said nothing.
type Beat struct {
	rested  int       // heartbeats since something was said
	on      any       // the connection of the last word
	counted time.Time // when what is only counted was told
}

// Rests counts a heartbeat, and reports whether nothing need be said at it, where one of
// this many says something.
func (b *Beat) Rests(per int) bool {
	b.rested++
	return b.rested < per
}

// Speaks notes that something is said on a connection, and reports whether it is another one
// than before: then all is to be told.
func (b *Beat) Speaks(on any) (anew bool) {
	anew = b.on != on
	b.rested, b.on = 0, on
	return anew
}

// Recount has what is only counted told with the next word.
func (b *Beat) Recount() { b.counted = time.Time{} }

// Counts reports whether what is only counted is to be told now: it is time, or it must be.
func (b *Beat) Counts(now time.Time, must bool) bool {
	if !must && now.Sub(b.counted) < countsEvery {
		return false
	}
	b.counted = now
	return true
}
