package failuredetector

import "github.com/perdure/perdure"

// heartbeatStats learns how regularly a process sends, and derives from that how long it may be silent. The limit is
// the larger of two values: four times the mean interval plus eight times its mean deviation, and twice the longest
// recent interval. The means cover about the last eight intervals and the last four deviations. The limit is at least a
// third of the patience and at most four times the patience.
//
// For heartbeats every tick and a patience of 15 ticks (1.5 s) the limit is 5 ticks (0.5 s). On a machine where
// heartbeats are irregular and up to 0.7 s late, it reaches up to 60 ticks (6 s).
//
// All values are in fractions of a tick (see pulseUnit). The zero heartbeatStats has no history and allows the patience
// itself.
type heartbeatStats struct {
	interval, deviation int64
	// longest is the longest interval, and decays by half in about 700 signs of life. If a process was late once, for
	// example on a machine with other load, it will soon be late again, although the means have forgotten it.
	longest int64
}

// pulseUnit is the number of fractions per tick. With few of them, integer division would round small corrections of
// the means to zero, so the means would stay too high.
const pulseUnit = 1024

// record records an interval, in ticks, between two signs of life. Signs within one tick count as one.
func (p *heartbeatStats) record(ticks int64, patience int64) {
	if ticks <= 0 {
		return
	}
	if p.interval == 0 {
		p.interval, p.deviation = pulseUnit*patience/8, pulseUnit*patience/16
	} else { // the time before the first sign was not an interval between two
		p.longest = max(ticks*pulseUnit, p.longest-p.longest/pulseUnit)
	}
	off := ticks*pulseUnit - p.interval
	p.interval = max(1, p.interval+off/8)
	p.deviation += (max(off, -off) - p.deviation) / 4
}

// limit returns the ticks of silence after which the process is suspected.
func (p *heartbeatStats) limit(patience int64) int64 {
	if p.interval == 0 {
		return patience
	}
	usual := max(4*p.interval+8*p.deviation, 2*p.longest) / pulseUnit
	return min(max(usual, (patience+2)/3), 4*patience)
}

// backOff counts how often processes of one slot or server index were given up for silence while the job made no
// progress. The tolerated silence doubles each time: if the job cannot continue without the process, it was given up
// too early, and so would its replacements be.
type backOff struct {
	times int
	clock perdure.Clock // of the job when a process was last given up
}

// record records that the process was given up while the job was at clock.
func (b *backOff) record(clock perdure.Clock) {
	if clock > b.clock {
		b.times = 0
	}
	b.times, b.clock = b.times+1, clock
}

// extend doubles a silence for each time that a process was given up at this clock, up to most.
func (b *backOff) extend(silence, most int64, clock perdure.Clock) int64 {
	if b.times == 0 || clock > b.clock {
		return silence
	}
	return max(silence, min(silence<<min(b.times, 16), most))
}
