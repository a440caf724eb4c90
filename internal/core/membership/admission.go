package membership

import (
	"github.com/perdure/perdure"
)

// Admission is the answer to a process that asks for a slot or server index.
type Admission int

// The possible answers.
const (
	Granted     Admission = iota // it may speak
	Wait                         // its slot or index is not settled yet
	Taken                        // a live process holds it; the process may ask again later
	Refused                      // the slot or index does not exist
	JobOver                      // the job is done
	SlotLeft                     // the slot has left the job
	NoFreeSlot                   // no slot is free, and a new one would make all others wait for this process
	Unreachable                  // other processes cannot reach the server; it may ask again later
)

func (a Admission) String() string {
	return map[Admission]string{
		Granted: "granted", Wait: "wait", Taken: "taken", Refused: "refused", JobOver: "over",
		SlotLeft: "departed", NoFreeSlot: "fixed", Unreachable: "unreached",
	}[a]
}

// joinRequest describes a process that asks for a slot or server index, as far as the answer depends on it.
type joinRequest struct {
	Worker    bool // otherwise a server
	Index     int  // -1: it asks for any, and none is free
	None      bool // the slot or index does not exist
	Over      bool // the job is done or has failed
	Departed  bool // the slot has left the job
	Suspended bool // the slot was suspended, and participates again when a process asks for it
	Other     bool // another process held it before
	Taken     bool // and is alive, or may hold the last rows of a shard
	Grows     bool // none is free, and the job may create a slot for it
	Fixed     bool // all would have to wait for it
}

// Admit decides whether the process is admitted. If not, it may return a change after which the process can be admitted
// when it asks again.
func (a *joinRequest) Admit() (admission Admission, change *Change) {
	switch {
	case a.Departed && !a.Suspended:
		return SlotLeft, nil
	case a.Over:
		return JobOver, nil
	case a.Index < 0 && a.Worker && a.Grows && a.Fixed:
		return NoFreeSlot, nil
	case a.Index < 0 && a.Worker && a.Grows:
		return Taken, &Change{Add: 1, Unmanaged: true}
	case a.Index < 0:
		return Taken, nil
	case a.None:
		return Refused, nil
	case a.Departed:
		return Taken, &Change{Rejoin: []perdure.Slot{perdure.Slot(a.Index)}}
	case a.Taken:
		return Taken, nil
	}
	return Granted, nil
}
