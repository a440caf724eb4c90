package outbox

import (
	"fmt"

	"github.com/perdure/perdure"
)

// Phase is how far a clock has come.
//
//	Open ─▶ Built ─▶ Sent ─────────────────▶ the next clock, Open
//	                   └─▶ Staged ─▶ Ticked ─▶
//
// Staged and Ticked are of two-step clocks. Rolled and Over end a clock from any of them.
type Phase uint8

// The phases.
const (
	Open   Phase = iota // the program still Incs
	Built               // its updates are whole; vap may hold them back
	Sent                // they may leave, or have left
	Staged              // every shard has them
	Ticked              // every shard is to apply them, whatever happens to this process
	Rolled              // the job was rolled back: the clock is void, and Turn begins another one
	Over                // the job ends here, or the slot's part in it
)

var phaseNames = [...]string{"open", "built", "sent", "staged", "ticked", "rolled", "over"}

func (p Phase) String() string { return phaseNames[p] }

// Ended reports whether nothing more becomes of the clock.
func (p Phase) Ended() bool { return p == Rolled || p == Over }

// UnderWay reports whether the clock's updates are under way: made, and not void.
func (p Phase) UnderWay() bool { return p > Open && p < Rolled }

// step is what happens to a clock.
type step uint8

const (
	build   step = iota // its updates are made
	send                // they may leave
	stage               // all shards have staged them
	unstage             // a shard was restored that has not
	tick                // all shards are told to apply them
	next                // it is over, and the next one begins
	roll                // the job is rolled back
	turn                // Clock has been called after that, or at the job's end
	steps
)

var stepNames = [...]string{"build", "send", "stage", "unstage", "tick", "next", "roll", "turn"}

func (s step) String() string { return stepNames[s] }

// never marks a step that a clock cannot take in a phase.
const never Phase = 255

// course is the one table of transitions: by step, then by phase. Whether a clock is Over
// depends on where the job ends, which is known later or earlier: see progress. A clock that
// is over keeps the phase that it had, until Turn.
var course = [steps][Rolled + 1]Phase{
	//        Open    Built   Sent    Staged  Ticked  Rolled
	build:   {Built, never, never, never, never, never},
	send:    {never, Sent, never, never, never, never},
	stage:   {never, never, Staged, Staged, never, never},
	unstage: {never, never, Sent, Sent, never, never},
	tick:    {never, never, never, Ticked, never, never},
	next:    {never, never, Open, never, Open, never},
	roll:    {Rolled, Rolled, Rolled, Rolled, Rolled, Rolled},
	turn:    {Open, Open, Open, Open, Open, Open},
}

// after returns the phase after a step; false: there is none.
func (p Phase) after(s step) (Phase, bool) {
	to := course[s][p]
	return to, to != never
}

// progress is the present clock, and how far it has come.
type progress struct {
	clock perdure.Clock
	phase Phase         // but Over
	end   perdure.Clock // of this slot's work; 0: not known
}

// Clock returns the clock to work on.
func (p *progress) Clock() perdure.Clock { return p.clock }

// Begin sets the clock to work on.
func (p *progress) Begin(at perdure.Clock) { p.clock = at }

// Phase returns how far the present clock has come. What was rolled back is rolled back, also
// where the job would have ended.
func (p *progress) Phase() Phase {
	if p.phase != Rolled && p.end > 0 && p.clock >= p.end {
		return Over
	}
	return p.phase
}

// step takes a step that the clock must be able to take.
func (p *progress) step(s step) {
	to, ok := p.phase.after(s)
	if !ok {
		panic(fmt.Sprintf("outbox: %v of clock %d, which is %v", s, p.clock, p.phase))
	}
	p.phase = to
}
