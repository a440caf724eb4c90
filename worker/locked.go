package worker

import (
	"fmt"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
)

// locked is the state that a client's lock guards. Only Client.lock returns it, so that only the lock's holder has it.
// Callers of its methods, and of its fields' methods, must hold the lock. The methods never wait for the network; a
// call that waits (waits.Until) releases the lock meanwhile.
type locked struct {
	cfg     *Config
	done    *sync.WaitGroup // of the client's goroutines
	wake    chan struct{}   // of capacity 1: a status is worth sending
	waits   waiters
	session session
	saving  storedStates // states saved in the current clock
	shared  sharedMark
	servers servers

	// Set from the coordinator's first welcome.
	job    perdure.JobSpec
	traits recovery.Traits
	slot   perdure.Slot

	view       protocol.View
	viewed     bool
	generation perdure.Generation
	pauses     int           // number of pauses that have started
	leftAt     perdure.Clock // first clock without this slot, whichever process holds it since; 0: it has not left

	out     *outbox.Outbox // this slot's updates, and the current clock
	reads   *reads.Reader  // set from the first view on
	tables  []*Table       // by ID; nil for tables that the program has not opened
	shards  links          // set from the first view on
	log     updateLog
	outages outages
	samples int64 // that the program has processed
	time    timeSplit
}

// notify wakes the heartbeat.
func (l *locked) notify() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// fail ends the client with err; the first error is kept.
func (l *locked) fail(err error) {
	if l.waits.Err == nil {
		l.waits.Err = err
	}
	l.servers.end()
	l.waits.Wake()
}

// failIf ends the client if err is not nil.
func (l *locked) failIf(err error) {
	if err != nil {
		l.fail(err)
	}
}

// Reasons, in error messages, why an observer cannot do something that needs a slot.
const (
	incs   = "cannot Inc"
	clocks = "has no clocks to end and no state to save"
	ends   = "has no slot that has reached a goal; perdure stop ends a job for its operator"
)

// requireSlot returns an error if this process cannot do what only a slot can. It also succeeds after a rollback.
func (l *locked) requireSlot(what string) error {
	if l.waits.Err == nil && l.slot < 0 {
		return fmt.Errorf("%w: an observer %s", perdure.ErrUsage, what)
	}
	return l.waits.Err
}

// usable returns an error if Get, Inc and similar calls are not possible now.
func (l *locked) usable() error {
	if l.waits.Err != nil {
		return l.waits.Err
	}
	if l.out.Phase() == outbox.RolledBack {
		return perdure.ErrRolledBack
	}
	return nil
}

// report sends the program's measurements to the coordinator.
func (l *locked) report(r wire.Report) {
	r.Slot, r.Generation = l.slot, l.generation
	l.session.report(wire.Control(wire.KindReport, r))
}
