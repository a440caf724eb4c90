package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/failuredetector"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
)

// observed holds the observations of one process that are not recorded in the facts.
type observed struct {
	connected bool
	gone      bool  // it is dead
	muted     bool  // it counts as silent, whatever it sends
	assumed   bool  // its death is only assumed: its connection broke and it did not reconnect
	back      int64 // tick at which a suspect sent its first status again; 0: more have followed
	ear       failuredetector.Ear
	notice    drainNotice // the drain of a server that is about to end
	server    *words.ServerWord
	worker    *words.WorkerStatus
	lastClock perdure.Clock // the slot's latest known clock, from any incarnation
	fenced    cursor        // for a slot: over the shards' fences
	highest   cursor        // for a slot: over the shards' fences
	last      cursor        // for a slot: over the shards' applied counts
}

// job combines the recorded facts of a job with the observations that are not recorded. Its methods only answer
// questions; the one exception is the record of when a process was last heard from.
type job struct {
	facts    *Facts
	strategy recovery.Strategy
	traits   recovery.Traits

	servers []observed
	slots   []observed
	tick    int64
	seconds float64 // length of a tick
	watch   failuredetector.Detector
	judged  []failuredetector.Subject // reused by subjects

	supervised bool // a supervisor is connected and can be asked about the processes that it started

	spread     *placement.Spread        // where the replicas are
	unready    numberSet                // shards that do not serve yet, except those that are due
	dropped    map[perdure.ShardID]bool // dropped on purpose and not reassigned yet
	clocks     clockCensus              // of all slots that have clocks left to do
	recovering map[Kind]*numberSet      // slots and server indices that get a "serving" event once they work again
	publishing perdure.Clock            // the cut being published; -1: none
	publishes  []string                 // the slot states that the latest published checkpoint refers to
	complete   bool
	pausedAt   uint64 // the first revision that asks for a pause
	weak       weaken.Set

	looks looks
}

// looks counts the items that the core has examined. Tests compare it with the number of items that changed.
type looks struct{ shards, slots, servers int }

func (j *job) place(k Kind, index int) (*Place, *observed) {
	if k == Server {
		return &j.facts.Servers[index], &j.servers[index]
	}
	return &j.facts.Slots[index], &j.slots[index]
}

func (j *job) size(k Kind) int {
	if k == Server {
		return len(j.servers)
	}
	return len(j.slots)
}

// unmanaged reports whether a process joined without a supervisor of this job, which therefore cannot kill or restart
// it.
func (j *job) unmanaged(k Kind, index int) bool {
	p, _ := j.place(k, index)
	return p.Any || k == Worker && (p.Guest || j.facts.Job.OwnWorkers)
}

// heard records a sign of life, and reports whether it counts.
func (j *job) heard(o *observed) (counts bool) {
	if o.muted {
		return false
	}
	if j.watch.Hushed() {
		j.watch.Excuse(j.subjects())
	}
	j.watch.Sign(&o.ear, o.server != nil || o.worker != nil)
	return true
}

// subjects returns all server indices and then all slots, as subjects for the failure detector.
func (j *job) subjects() []failuredetector.Subject {
	j.judged = j.judged[:0]
	for _, k := range []Kind{Server, Worker} {
		for i := range j.size(k) {
			p, o := j.place(k, i)
			speaks, waits := k == Worker || !p.Left || j.spread.Load(i) > 0, false
			if k == Worker { // while it must wait, it sends nothing and may reconnect
				sl := &j.facts.View.Slots[i]
				speaks, waits = !sl.Left && (sl.Settled || !o.connected), !sl.Settled
			}
			j.judged = append(j.judged, failuredetector.Subject{
				Ear: &o.ear, There: p.Process != "" && !o.gone, Speaks: speaks, Redials: waits,
				Asks: j.supervised && !j.unmanaged(k, i),
			})
		}
	}
	return j.judged
}

// logProblem returns why a live process is waiting for the update log, or "" if none is.
func (j *job) logProblem() string {
	for _, k := range []Kind{Server, Worker} {
		for i := range j.size(k) {
			_, o := j.place(k, i)
			switch {
			case o.gone || o.ear.Suspect() || !o.connected:
			case o.server != nil && o.server.Log != "":
				return o.server.Log
			case o.worker != nil && o.worker.Log != "":
				return o.worker.Log
			}
		}
	}
	return ""
}

// strange reports whether a server index is held by a live process that had asked for any index, and not by the given
// process, which asks for it by number.
func (j *job) strange(index int, process string) bool {
	if index >= len(j.servers) {
		return false
	}
	p, o := &j.facts.Servers[index], &j.servers[index]
	return p.Any && !o.gone && p.Process != process
}

// free finds a slot or server index for a process: the one that it already holds, else the first vacant one, else a
// slot whose process has been unreachable for a third of the patience. In the last case an unsupervised worker is
// replaced by a new one, and the old one is fenced if it returns. more reports that a server needs a new index, which
// is not created while an existing index may still become vacant.
func (j *job) free(k Kind, process string) (index int, more bool) {
	vacant, unheard := -1, -1
	for i := range j.size(k) {
		p, o := j.place(k, i)
		if p.Process == process {
			return i, false
		}
		if k == Worker && (j.facts.View.Slots[i].Left || j.isEarly(i)) {
			continue
		}
		if vacant < 0 && j.isFree(k, i) {
			vacant = i
		}
		if unheard < 0 && k == Worker && !o.connected && j.watch.Silence(&o.ear) > j.watch.Patience()/3 {
			unheard = i
		}
	}
	if vacant >= 0 {
		return vacant, false
	}
	if k == Server && j.facts.Placed() && !j.inDoubt() && len(j.servers) < perdure.MaxServers {
		return len(j.servers), true
	}
	return unheard, false
}

// isFree reports whether a process that asks for any slot or server index may get this one. The index of a dead server
// is free only if the job no longer waits for its replacement, which asks for it by number. If the death is only
// assumed and the server may hold the last rows of a shard, the index stays reserved for that process.
func (j *job) isFree(k Kind, index int) bool {
	p, o := j.place(k, index)
	switch {
	case p.Process == "":
		return true
	case k == Worker || !o.gone:
		return o.gone
	}
	return p.Left && !(o.assumed && j.irreplaceable() && j.last(index))
}

// inDoubt reports whether a server is unreachable whose index will be vacant if it is dead. A process that asks for any
// index waits until this is clear.
func (j *job) inDoubt() bool {
	for i := range j.servers {
		p, o := &j.facts.Servers[i], &j.servers[i]
		if !o.gone && !p.Left && !p.Draining && (p.Any || j.facts.Job.NoReplace) && !j.eligible(i) {
			return true
		}
	}
	return false
}

// counted returns the latest known clock of a slot; -1: the slot has finished its last clock, possibly in an earlier
// run.
func (j *job) counted(slot int) perdure.Clock {
	sl := &j.facts.View.Slots[slot]
	clock := max(j.slots[slot].lastClock, sl.Start, sl.From)
	if sl.Until > 0 && (sl.Left || clock >= sl.Until) {
		return -1
	}
	return clock
}

// minClock returns the smallest known clock of all slots.
func (j *job) minClock() perdure.Clock {
	return max(j.clocks.Least(), j.facts.View.Cut) // no slot works below the cut, even before all have reported
}

// serves reports whether every shard serves and every slot works.
func (j *job) serves() bool {
	if j.unready.Len() > 0 {
		return false
	}
	for i := range j.slots {
		if sl := &j.facts.View.Slots[i]; (!sl.Settled || j.slots[i].gone) && !sl.Left && !j.isEarly(i) {
			return false
		}
	}
	return true
}

// stand returns the highest clock that any slot works on, and the highest that any slot has reached by its own work, as
// far as known.
func (j *job) stand() (working, come perdure.Clock) {
	for i := range j.slots {
		if clock, _ := j.stands(i); clock >= 0 {
			working = max(working, clock)
			if clock > j.facts.View.Slots[i].From {
				come = max(come, clock)
			}
		}
	}
	return working, come
}

// stands returns a slot's clock as far as known, or -1 if the slot does not participate now. surely reports whether the
// slot stays at that clock until the current pause ends.
func (j *job) stands(slot int) (at perdure.Clock, surely bool) {
	v, sl, o := &j.facts.View, &j.facts.View.Slots[slot], &j.slots[slot]
	// A slot that was admitted participates, even if the slot that had advanced far enough for it to start has died
	// since.
	in := sl.Settled && j.facts.Slots[slot].Process != ""
	switch w := o.worker; {
	case sl.Left || !in && j.isEarly(slot):
		return -1, true
	case j.facts.Slots[slot].Process == "" && (sl.Settled || sl.Incarnation == 0):
		// there is no process; a new one gets the view before it starts to work
		return max(sl.Start, j.facts.Slots[slot].Made, v.Begin(perdure.Slot(slot))), true
	case w == nil || o.gone || !sl.Settled || w.Generation != v.Generation || w.Revision < j.pausedAt:
		return max(o.lastClock, sl.Start, v.Begin(perdure.Slot(slot))), false
	default:
		// its first status may precede its start clock
		return max(w.Clock, sl.Start, j.facts.Slots[slot].Made), true
	}
}

// isEarly reports whether the job has not reached the clock from which a slot participates, so that no process is
// admitted for it yet.
func (j *job) isEarly(slot int) bool {
	done := func(i int) perdure.Clock { return j.slots[i].lastClock }
	return comesEarly(j.facts.View.Slots, slot, j.facts.View.Cut, done)
}

// spanDone reports whether a slot that will leave has finished its last clock.
func (j *job) spanDone(slot int) bool {
	v, sl, o := &j.facts.View, &j.facts.View.Slots[slot], &j.slots[slot]
	if w := o.worker; w != nil && !o.gone && sl.Settled && w.Generation == v.Generation {
		return w.Finished && w.Clock >= sl.Until
	}
	return j.facts.Slots[slot].Process == "" && sl.Settled && sl.Start >= sl.Until
}

// unkept returns a slot that has updates which are neither in a checkpoint nor kept by any process; -1: none.
// It is only relevant for strategies under which workers keep updates.
func (j *job) unkept() int {
	if !j.traits.Retains() || j.weak.RollBack {
		return -1
	}
	for i := range j.facts.Slots {
		if j.looks.slots++; j.facts.Slots[i].Unkept > j.facts.Saved(i) {
			return i
		}
	}
	return -1
}
