package chain

// phase is how far the exchange with a successor or joiner has come. It decides which entries the log keeps for it and
// whether entries are sent to it.
type phase uint8

const (
	// phaseProbing: a Follow was sent and not answered, so the log keeps everything that it has.
	phaseProbing phase = iota
	// phaseReplicating: the peer has all entries up to has; the following ones are kept and sent.
	phaseReplicating
	// phaseLevel is phaseReplicating after Level was sent to a joiner.
	phaseLevel
	// phaseReprobing: a Follow was sent again, because messages may be lost. Entries after has are kept.
	phaseReprobing
	// phaseCopying: a snapshot is being sent. Entries after it are kept.
	phaseCopying
	// phaseOverflowed: the backlog of this joiner was too large. Nothing is kept for it until its next Have.
	phaseOverflowed
	// phaseOverflowedCopying is phaseOverflowed while a snapshot is being sent, which is useless by now.
	phaseOverflowedCopying

	numPhases
)

// event changes the phase of a peer.
type event uint8

const (
	eventFollow    event = iota // a Follow is sent
	eventReconnect              // the connection was replaced; a Follow is sent next
	eventHave                   // the peer reports a position after which the log has all entries
	eventBehind                 // the peer lacks entries that the log no longer has
	eventLevel                  // Level is sent
	eventUnlevel                // Level may be lost and must be sent again
	eventOverflow               // the backlog kept for the joiner is too large

	numEvents
)

// transitions lists the next phase for each phase and event. Events that cannot occur in a phase leave it unchanged.
var transitions = [numPhases][numEvents]phase{
	phaseProbing: {
		phaseProbing, phaseProbing, phaseReplicating, phaseCopying, phaseProbing, phaseProbing, phaseOverflowed,
	},
	phaseReplicating: {
		phaseReprobing, phaseReplicating, phaseReplicating, phaseCopying, phaseLevel, phaseReplicating, phaseOverflowed,
	},
	phaseLevel: {
		phaseReprobing, phaseLevel, phaseLevel, phaseCopying, phaseLevel, phaseReplicating, phaseOverflowed,
	},
	phaseReprobing: {
		phaseReprobing, phaseReprobing, phaseReplicating, phaseCopying, phaseReprobing, phaseReprobing, phaseOverflowed,
	},
	phaseCopying: {
		eventFollow: phaseCopying, eventReconnect: phaseProbing, eventHave: phaseReplicating,
		// The snapshot arrived, but the log no longer has the entries after it.
		eventBehind: phaseProbing,
		eventLevel:  phaseCopying, eventUnlevel: phaseCopying, eventOverflow: phaseOverflowedCopying,
	},
	phaseOverflowed: {
		phaseOverflowed, phaseOverflowed, phaseReplicating, phaseCopying, phaseOverflowed, phaseOverflowed,
		phaseOverflowed,
	},
	phaseOverflowedCopying: {
		phaseOverflowedCopying, phaseOverflowed, phaseReplicating, phaseOverflowed, phaseOverflowedCopying,
		phaseOverflowedCopying, phaseOverflowedCopying,
	},
}

// progress tracks the exchange with a successor or joiner.
type progress struct {
	to       Neighbor
	exists   bool
	phase    phase
	required bool   // CaughtUp was sent at some time: nothing is committed without this joiner
	sent     uint64 // the last entry sent
	has      uint64 // the last entry that it reports, or that its snapshot will contain
	inFlight int    // bytes of entries sent and not acknowledged
	idle     int    // ticks without progress
}

func (p *progress) on(e event) { p.phase = transitions[p.phase][e] }

// copying reports whether a snapshot is being sent.
func (p *progress) copying() bool {
	return p.phase == phaseCopying || p.phase == phaseOverflowedCopying
}

// replicating reports whether entries are sent, because the last Follow was answered.
func (p *progress) replicating() bool { return p.phase == phaseReplicating || p.phase == phaseLevel }

// known reports whether has is valid, so that the log keeps only the entries after it.
func (p *progress) known() bool {
	return p.replicating() || p.phase == phaseReprobing || p.phase == phaseCopying
}

// overflowed reports whether nothing is kept for this joiner.
func (p *progress) overflowed() bool {
	return p.phase == phaseOverflowed || p.phase == phaseOverflowedCopying
}

// idles reports whether a peer has not answered for long enough to be sent another Follow.
func (p *progress) idles(settled bool) bool {
	if !p.exists || p.replicating() && settled {
		p.idle = 0
		return false
	}
	p.idle++
	return p.idle%FollowTicks == 0
}
