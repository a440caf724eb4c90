package chain

// phase is how far the exchange with a successor or joiner has come. It decides which entries the log keeps for it and
// whether entries are sent to it.
type phase uint8

const (
	// phaseProbing: a Follow was sent and not answered, so the log keeps everything that it has.
	phaseProbing phase = iota
	// phaseReplicating: the peer has all entries up to has; the following ones are kept and sent.
	phaseReplicating
	// phaseCaughtUp is phaseReplicating after CaughtUp was sent to a joiner.
	phaseCaughtUp
	// phaseReprobing: a Follow was sent again, because messages may have been lost. Entries past `has` are kept.
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
	eventFollow       event = iota // a Follow is sent
	eventReconnect                 // the connection was replaced; a Follow is sent next
	eventHave                      // the peer reports a position after which the log has all entries
	eventBehind                    // the peer lacks entries that the log no longer has
	eventCaughtUp                  // CaughtUp is sent
	eventCaughtUpLost              // CaughtUp may be lost and must be sent again
	eventOverflow                  // the backlog kept for the joiner is too large

	numEvents
)

// changes lists the transitions that change the phase. All other events leave it as it is.
var changes = []struct {
	from phase
	on   event
	to   phase
}{
	{phaseProbing, eventHave, phaseReplicating},
	{phaseProbing, eventBehind, phaseCopying},
	{phaseProbing, eventOverflow, phaseOverflowed},

	{phaseReplicating, eventFollow, phaseReprobing},
	{phaseReplicating, eventBehind, phaseCopying},
	{phaseReplicating, eventCaughtUp, phaseCaughtUp},
	{phaseReplicating, eventOverflow, phaseOverflowed},

	{phaseCaughtUp, eventFollow, phaseReprobing},
	{phaseCaughtUp, eventBehind, phaseCopying},
	{phaseCaughtUp, eventCaughtUpLost, phaseReplicating},
	{phaseCaughtUp, eventOverflow, phaseOverflowed},

	{phaseReprobing, eventHave, phaseReplicating},
	{phaseReprobing, eventBehind, phaseCopying},
	{phaseReprobing, eventOverflow, phaseOverflowed},

	{phaseCopying, eventReconnect, phaseProbing},
	{phaseCopying, eventHave, phaseReplicating},
	{phaseCopying, eventBehind, phaseProbing}, // the log no longer has the entries after the snapshot
	{phaseCopying, eventOverflow, phaseOverflowedCopying},

	{phaseOverflowed, eventHave, phaseReplicating},
	{phaseOverflowed, eventBehind, phaseCopying},

	{phaseOverflowedCopying, eventReconnect, phaseOverflowed},
	{phaseOverflowedCopying, eventHave, phaseReplicating},
	{phaseOverflowedCopying, eventBehind, phaseOverflowed},
}

// transitions is the table of changes, indexed by phase and event.
var transitions = func() (t [numPhases][numEvents]phase) {
	for from := range t {
		for on := range t[from] {
			t[from][on] = phase(from)
		}
	}
	for _, c := range changes {
		t[c.from][c.on] = c.to
	}
	return t
}()

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
func (p *progress) replicating() bool { return p.phase == phaseReplicating || p.phase == phaseCaughtUp }

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
