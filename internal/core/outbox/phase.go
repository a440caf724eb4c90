package outbox

import (
	"fmt"

	"github.com/perdure/perdure"
)

// Phase is the state of a clock.
//
//	Open ─▶ Built ─▶ Sent ─────────────────▶ the next clock, Open
//	                   └─▶ Staged ─▶ Ticked ─▶
//
// Only two-step clocks become Staged and Ticked. Under atomic clocks, updates become Ticked in later clocks. RolledBack
// and Over end a clock from any phase.
type Phase uint8

// The phases.
const (
	Open       Phase = iota // the program still Incs
	Built                   // its updates are complete; vap may hold them back
	Sent                    // they may be sent, or have been
	Staged                  // every shard has staged them
	Ticked                  // every shard must apply them, whatever happens to this process
	RolledBack              // the job was rolled back: the clock is void, and ResetClock starts another one
	Over                    // the job ends here, or the slot's part in it
)

var phaseNames = [...]string{"open", "built", "sent", "staged", "ticked", "rolled", "over"}

func (p Phase) String() string { return phaseNames[p] }

// IsOver reports whether the clock is finished or void.
func (p Phase) IsOver() bool { return p == RolledBack || p == Over }

// InFlight reports whether the clock's updates are under way: made and not void.
func (p Phase) InFlight() bool { return p > Open && p < RolledBack }

// step is a transition of a clock.
type step uint8

const (
	build   step = iota // its updates are made
	send                // they may be sent
	stage               // all shards have staged them
	unstage             // a restored shard has not staged them
	tick                // all shards must apply them
	next                // the clock is over, and the next one starts
	roll                // the job is rolled back
	turn                // Clock was called after a rollback, or at the job's end
	steps
)

var stepNames = [...]string{"build", "send", "stage", "unstage", "tick", "next", "roll", "turn"}

func (s step) String() string { return stepNames[s] }

// never marks a step that is invalid in a phase.
const never Phase = 255

// transitions is the table of all transitions: by step, then by phase. Whether a clock is Over depends on where the job
// ends, which may become known earlier or later: see progress. A clock that is over keeps its phase until ResetClock.
var transitions = [steps][RolledBack + 1]Phase{
	//        Open    Built   Sent    Staged  Ticked  RolledBack
	build:   {Built, never, never, never, never, never},
	send:    {never, Sent, never, never, never, never},
	stage:   {never, never, Staged, Staged, never, never},
	unstage: {never, never, Sent, Sent, never, never},
	tick:    {never, never, never, Ticked, never, never},
	next:    {never, never, Open, never, Open, never},
	roll:    {RolledBack, RolledBack, RolledBack, RolledBack, RolledBack, RolledBack},
	turn:    {Open, Open, Open, Open, Open, Open},
}

// after returns the phase after a step, or false if the step is invalid.
func (p Phase) after(s step) (Phase, bool) {
	to := transitions[s][p]
	return to, to != never
}

// progress is the current clock and its phase.
type progress struct {
	clock  perdure.Clock
	phase  Phase         // never Over
	end    perdure.Clock // the end of this slot's work; 0: unknown
	skipTo perdure.Clock // the update of the clock covers all clocks below it; otherwise only its own
}

// span returns the number of clocks that the update of the current clock covers.
func (p *progress) span() perdure.Clock { return max(1, p.skipTo-p.clock) }

// Clock returns the clock to work on.
func (p *progress) Clock() perdure.Clock { return p.clock }

// SetClock sets the clock to work on.
func (p *progress) SetClock(at perdure.Clock) { p.clock = at }

// Phase returns the phase of the current clock. A rollback takes precedence over the end of the job.
func (p *progress) Phase() Phase {
	if p.phase != RolledBack && p.end > 0 && p.clock >= p.end {
		return Over
	}
	return p.phase
}

// step takes a step. It must be valid.
func (p *progress) step(s step) {
	to, ok := p.phase.after(s)
	if !ok {
		panic(fmt.Sprintf("outbox: step %v is invalid for clock %d in phase %v", s, p.clock, p.phase))
	}
	p.phase = to
}
