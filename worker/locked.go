package worker

import (
	"fmt"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
)

// locked is what a client's lock guards. Client.lock returns it, so that only the lock's
// holder has it: its methods, and those of what it consists of, need the lock to be held.
// They never wait for the network. Where a call waits (waits.until), the lock is given up.
type locked struct {
	cfg     *Config
	done    *sync.WaitGroup // of the client's goroutines
	wake    chan struct{}   // of capacity 1: a status is worth sending
	waits   waits
	session session
	saving  storedStates // in the present clock
	servers servers

	// What the coordinator's first welcome has said.
	job    perdure.JobSpec
	traits recovery.Traits
	slot   perdure.Slot

	view       words.View
	viewed     bool
	generation perdure.Generation
	pauses     int           // that have begun
	leftAt     perdure.Clock // from which on this slot takes no part, whoever has it since; 0: it has not left

	out     *outbox.Box   // what this slot has made, and the present clock
	reads   *reads.Reader // what it has read; from the first view on
	tables  []*Table      // by id; nil for those that nobody asked for
	shards  links         // from the first view on
	log     updateLog
	outages outages
	samples int64 // that the program has worked through
	time    timeSplit
}

// notify wakes the heartbeat.
func (l *locked) notify() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// fail ends the client; the first error stays.
func (l *locked) fail(err error) {
	if l.waits.Err == nil {
		l.waits.Err = err
	}
	l.servers.end()
	l.waits.Wake()
}

// failIf ends the client if there is an error.
func (l *locked) failIf(err error) {
	if err != nil {
		l.fail(err)
	}
}

// What only a slot can do.
const (
	incs   = "cannot Inc"
	clocks = "has no clocks to end and no state to save"
	ends   = "has no slot that has reached a goal; perdure stop ends a job for its operator"
)

// asSlot returns why this process cannot do what only a slot can, rolled back or not.
func (l *locked) asSlot(what string) error {
	if l.waits.Err == nil && l.slot < 0 {
		return fmt.Errorf("%w: an observer %s", perdure.ErrUsage, what)
	}
	return l.waits.Err
}

// usable returns why Get, Inc and the like cannot be done now.
func (l *locked) usable() error {
	if l.waits.Err != nil {
		return l.waits.Err
	}
	if l.out.Phase() == outbox.Rolled {
		return perdure.ErrRolledBack
	}
	return nil
}

// report tells the coordinator what the program measured.
func (l *locked) report(r wire.Report) {
	r.Slot, r.Generation = l.slot, l.generation
	l.session.report(wire.Control(wire.KindReport, r))
}
