package failuredetector

import "github.com/perdure/perdure"

// A pulse learns how regularly a process is heard, and from that how long a
// silence may be before it tells something: four times the usual interval and
// eight times its usual deviation, as means of about the last eight and four, and
// twice the longest interval of late, but never less than a third of the patience or
// more than four times it. So of heartbeats every tick and a patience of 15 ticks
// (1.5 s) come 5 ticks (0.5 s), on a machine where they come anyhow, as late as 0.7 s,
// up to 60 ticks (6 s). All are kept in parts of a tick. The zero pulse has heard nothing
// yet, and allows the patience itself.
type pulse struct {
	interval, deviation int64
	// longest is the longest interval. It is forgotten slowly, by half in 700 signs: where a
	// process was once late, as on a machine that others use too, it is so again soon, though
	// the means have forgotten it.
	longest int64
}

// pulseUnit is how many parts a tick has. With few of them the means would stay where a quarter and an eighth of what
// they are off are nothing: above what they should be.
const pulseUnit = 1024

// heard notes an interval, in ticks, between two signs of life. What comes within one tick
// is one sign.
func (p *pulse) heard(ticks int64, patience int64) {
	if ticks <= 0 {
		return
	}
	if p.interval == 0 {
		p.interval, p.deviation = pulseUnit*patience/8, pulseUnit*patience/16
	} else { // what passed before the first sign was no interval between two
		p.longest = max(ticks*pulseUnit, p.longest-p.longest/pulseUnit)
	}
	off := ticks*pulseUnit - p.interval
	p.interval = max(1, p.interval+off/8)
	p.deviation += (max(off, -off) - p.deviation) / 4
}

// allows returns the silence, in ticks, after which a process is suspected.
func (p *pulse) allows(patience int64) int64 {
	if p.interval == 0 {
		return patience
	}
	usual := max(4*p.interval+8*p.deviation, 2*p.longest) / pulseUnit
	return min(max(usual, (patience+2)/3), 4*patience)
}

// backOff is how often a place's process was given up as silent while the job came no
// further: each time it is waited for twice as long. If the job cannot go on without it,
// it was given up too soon, and its successors would be too.
type backOff struct {
	times int
	clock perdure.Clock // of the job, at the last time
}

// struck notes that the place's process was given up when the job was at a clock.
func (b *backOff) struck(clock perdure.Clock) {
	if clock > b.clock {
		b.times = 0
	}
	b.times, b.clock = b.times+1, clock
}

// stretch makes a silence longer, by how often its like was too long.
func (b *backOff) stretch(silence, most int64, clock perdure.Clock) int64 {
	if b.times == 0 || clock > b.clock {
		return silence
	}
	return max(silence, min(silence<<min(b.times, 16), most))
}
