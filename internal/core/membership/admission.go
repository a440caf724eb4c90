package membership

import (
	"github.com/perdure/perdure"
)

// Admission says what becomes of a process that asks for a place.
type Admission int

// What becomes of it.
const (
	Granted   Admission = iota // it may speak
	Wait                       // its place is not settled yet
	Taken                      // a live process has the place; it may ask again later
	Refused                    // there is no such place
	Over                       // the job is done
	Departed                   // the slot has left the job
	Fixed                      // there is no free slot, and a newcomer's word makes none: all would wait for it
	Unreached                  // others cannot reach the server; it may ask again later
)

func (a Admission) String() string {
	return map[Admission]string{
		Granted: "granted", Wait: "wait", Taken: "taken", Refused: "refused", Over: "over",
		Departed: "departed", Fixed: "fixed", Unreached: "unreached",
	}[a]
}

// joinRequest is what decides about a process that asks for a place.
type joinRequest struct {
	Worker   bool // else a server
	Index    int  // of the place; -1: it asks for any, and none is free
	None     bool // there is no such place
	Over     bool // the job is done, or has failed
	Departed bool // the slot has left the job
	Again    bool // it was suspended: it takes part again when a process comes for it
	Other    bool // another process had the place
	Taken    bool // and lives, or may have the last rows of a shard
	Grows    bool // the job is to have one slot more for it, where none is free
	Fixed    bool // all would have to wait for it
}

// Admit decides whether the process is let in. Else there may be a change that makes room
// for it, for when it asks again.
func (a *joinRequest) Admit() (admission Admission, change *Change) {
	switch {
	case a.Departed && !a.Again:
		return Departed, nil
	case a.Over:
		return Over, nil
	case a.Index < 0 && a.Worker && a.Grows && a.Fixed:
		return Fixed, nil
	case a.Index < 0 && a.Worker && a.Grows:
		return Taken, &Change{Add: 1, Guest: true}
	case a.Index < 0:
		return Taken, nil
	case a.None:
		return Refused, nil
	case a.Departed:
		return Taken, &Change{Again: []perdure.Slot{perdure.Slot(a.Index)}}
	case a.Taken:
		return Taken, nil
	}
	return Granted, nil
}
