package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/failuredetector"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// observed holds the observations of one process that are not in the job record.
type observed struct {
	connected       bool
	gone            bool   // it is dead
	excluded        bool   // it counts as silent, whatever it sends
	deathAssumed    bool   // its death is only assumed: its connection broke and it did not reconnect
	lockedOut       string // why its connection broke and it cannot reconnect; "": it can
	returnedTick    int64  // tick at which a suspect sent its first status again; 0: more have followed
	liveness        failuredetector.Liveness
	drain           drainDeadline // the drain of a server that is about to end
	server          *protocol.ObservedServer
	worker          *protocol.WorkerStatus
	lastClock       perdure.Clock // the slot's latest known clock, from any incarnation
	fenced, highest cursor        // for a slot: over the shards' fences
	last            cursor        // for a slot: over the shards' applied counts
}

// jobState combines the record of a job with the observations that are not recorded. Its methods only answer
// questions; the one exception is the record of when a process was last heard from.
type jobState struct {
	record   *JobRecord
	strategy recovery.Strategy
	traits   recovery.Traits

	servers    []observed
	slots      []observed
	tick       int64
	seconds    float64 // length of a tick
	detector   failuredetector.Detector
	subjectBuf []failuredetector.Subject // reused by subjects

	supervised bool // a supervisor is connected and can be asked about the processes that it started

	replicas        *placement.ReplicaMap    // where the replicas are
	unready         numberSet                // shards that do not serve yet, except those that are due
	dropped         map[perdure.ShardID]bool // dropped on purpose and not reassigned yet
	clocks          clockCounts              // of all slots that have clocks left to do
	recovering      map[Kind]*numberSet      // slots and server indices that get a "serving" event once they work again
	publishing      perdure.Clock            // the cut being published; -1: none
	closing         bool                     // the manifest of the rows saved at the job's end was requested
	publishedStates []string                 // the slot states that the latest published checkpoint refers to
	formerStates    []string                 // those of the one before it
	complete        bool
	pausedAt        uint64 // the first revision that asks for a pause
	mutations       mutation.Set

	visits visits
}

// visits counts the items that the core has examined. Tests compare it with the number of items that changed.
type visits struct{ shards, slots, servers int }

func (j *jobState) member(k Kind, index int) (*Member, *observed) {
	if k == Server {
		return &j.record.Servers[index], &j.servers[index]
	}
	return &j.record.Slots[index], &j.slots[index]
}

func (j *jobState) size(k Kind) int {
	if k == Server {
		return len(j.servers)
	}
	return len(j.slots)
}

// unmanaged reports whether a process joined without a supervisor of this job, which therefore cannot kill or restart
// it.
func (j *jobState) unmanaged(k Kind, index int) bool {
	p, _ := j.member(k, index)
	return p.AnyIndex || k == Worker && (p.Unmanaged || j.record.Job.OwnWorkers)
}

// recordSign records a sign of life, and reports whether it counts.
func (j *jobState) recordSign(o *observed) (counts bool) {
	if o.excluded {
		return false
	}
	if j.detector.MayBeCutOff() {
		j.detector.RestartAllSilence(j.subjects())
	}
	j.detector.RecordSignOfLife(&o.liveness, o.server != nil || o.worker != nil)
	return true
}

// subjects returns all server indices and then all slots, as subjects for the failure detector.
func (j *jobState) subjects() []failuredetector.Subject {
	j.subjectBuf = j.subjectBuf[:0]
	for _, k := range []Kind{Server, Worker} {
		for i := range j.size(k) {
			p, o := j.member(k, i)
			speaks, waits := k == Worker || !p.Left || j.replicas.NumShards(i) > 0, false
			if k == Worker { // while it must wait, it sends nothing and may reconnect
				sl := &j.record.View.Slots[i]
				speaks, waits = !sl.Left && (sl.Settled || !o.connected), !sl.Settled
			}
			j.subjectBuf = append(j.subjectBuf, failuredetector.Subject{
				Liveness: &o.liveness, Present: p.Process != "" && !o.gone, Sends: speaks, MayReconnect: waits,
				CanAsk: j.supervised && !j.unmanaged(k, i),
			})
		}
	}
	return j.subjectBuf
}

// logProblem returns why a live process is waiting for the update log, or "" if none is.
func (j *jobState) logProblem() string {
	for _, k := range []Kind{Server, Worker} {
		for i := range j.size(k) {
			_, o := j.member(k, i)
			switch {
			case o.gone || o.liveness.IsSuspect() || !o.connected:
			case o.server != nil && o.server.WaitReason != "":
				return o.server.WaitReason
			case o.worker != nil && o.worker.WaitReason != "":
				return o.worker.WaitReason
			}
		}
	}
	return ""
}

// heldByOther reports whether a server index is held by a live process that had asked for any index, and not by the
// given process, which asks for it by number.
func (j *jobState) heldByOther(index int, process string) bool {
	if index >= len(j.servers) {
		return false
	}
	p, o := &j.record.Servers[index], &j.servers[index]
	return p.AnyIndex && !o.gone && p.Process != process
}

// free finds a slot or server index for a process: the one that it already holds, else the first vacant one, else a
// slot whose process has been unreachable for a third of the patience. In the last case an unsupervised worker is
// replaced by a new one, and the old one is fenced if it returns. more reports that a server needs a new index, which
// is not created while an existing index may still become vacant.
func (j *jobState) free(k Kind, process string) (index int, more bool) {
	vacant, unheard := -1, -1
	for i := range j.size(k) {
		p, o := j.member(k, i)
		if p.Process == process {
			return i, false
		}
		if k == Worker && (j.record.View.Slots[i].Left || j.isEarly(i)) {
			continue
		}
		if vacant < 0 && j.isFree(k, i) {
			vacant = i
		}
		if unheard < 0 && k == Worker && !o.connected && j.detector.Silence(&o.liveness) > j.detector.Patience()/3 {
			unheard = i
		}
	}
	if vacant >= 0 {
		return vacant, false
	}
	if k == Server && j.record.Placed() && !j.mayBecomeVacant() && len(j.servers) < perdure.MaxServers {
		return len(j.servers), true
	}
	return unheard, false
}

// isFree reports whether a process that asks for any slot or server index may get this one. The index of a dead server
// is free only if the job no longer waits for its replacement, which asks for it by number. If the death is only
// assumed and the server may hold the last rows of a shard, the index stays reserved for that process.
func (j *jobState) isFree(k Kind, index int) bool {
	p, o := j.member(k, index)
	switch {
	case p.Process == "":
		return true
	case k == Worker || !o.gone:
		return o.gone
	}
	return p.Left && !(o.deathAssumed && j.irreplaceable() && j.isLastHolder(index))
}

// mayBecomeVacant reports whether a server is unreachable whose index will be vacant if it is dead. A process that asks
// for any index waits until this is clear.
func (j *jobState) mayBecomeVacant() bool {
	for i := range j.servers {
		p, o := &j.record.Servers[i], &j.servers[i]
		if !o.gone && !p.Left && !p.Draining && (p.AnyIndex || j.record.Job.NoReplace) && !j.eligible(i) {
			return true
		}
	}
	return false
}

// slotClock returns the latest known clock of a slot; -1: the slot has finished its last clock, possibly in an earlier
// run.
func (j *jobState) slotClock(slot int) perdure.Clock {
	sl := &j.record.View.Slots[slot]
	clock := max(j.slots[slot].lastClock, sl.Start, sl.From)
	if sl.Until > 0 && (sl.Left || clock >= sl.Until) {
		return -1
	}
	return clock
}

// minClock returns the smallest known clock of all slots.
func (j *jobState) minClock() perdure.Clock {
	v := &j.record.View
	return max(j.clocks.Min(), v.CutClocks.Least(v.Cut)) // no slot works below it, even before all have reported
}

// isServing reports whether every shard serves and every slot works.
func (j *jobState) isServing() bool {
	if j.unready.Len() > 0 {
		return false
	}
	for i := range j.slots {
		if sl := &j.record.View.Slots[i]; (!sl.Settled || j.slots[i].gone) && !sl.Left && !j.isEarly(i) {
			return false
		}
	}
	return true
}

// highestClocks returns the highest clock that any slot works on, and the highest that any slot has reached by its own
// work, as far as known.
func (j *jobState) highestClocks() (working, come perdure.Clock) {
	for i := range j.slots {
		if clock, _ := j.pauseClock(i); clock >= 0 {
			working = max(working, clock)
			if clock > j.record.View.Slots[i].From {
				come = max(come, clock)
			}
		}
	}
	return working, come
}

// pauseClock returns a slot's clock as far as known, or -1 if the slot does not participate now. surely reports whether
// the slot stays at that clock until the current pause ends.
func (j *jobState) pauseClock(slot int) (at perdure.Clock, surely bool) {
	v, sl, o := &j.record.View, &j.record.View.Slots[slot], &j.slots[slot]
	// A slot that was admitted participates, even if the slot that had advanced far enough for it to start has died
	// since.
	in := sl.Settled && j.record.Slots[slot].Process != ""
	switch w := o.worker; {
	case sl.Left || !in && j.isEarly(slot):
		return -1, true
	case j.record.Slots[slot].Process == "" && (sl.Settled || sl.Incarnation == 0):
		// there is no process; a new one gets the view before it starts to work
		return max(sl.Start, j.record.Slots[slot].FormerBelow, v.StartClock(perdure.Slot(slot))), true
	case w == nil || o.gone || !sl.Settled || w.Generation != v.Generation || w.Revision < j.pausedAt:
		return max(o.lastClock, sl.Start, v.StartClock(perdure.Slot(slot))), false
	default:
		// its first status may precede its start clock
		return max(w.Clock, sl.Start, j.record.Slots[slot].FormerBelow), true
	}
}

// isEarly reports whether the job has not reached the clock from which a slot participates, so that no process is
// admitted for it yet.
func (j *jobState) isEarly(slot int) bool {
	done := func(i int) perdure.Clock { return j.slots[i].lastClock }
	return startsEarly(j.record.View.Slots, slot, j.record.View.Cut, done)
}

// intervalDone reports whether a slot that will leave has finished its last clock.
func (j *jobState) intervalDone(slot int) bool {
	v, sl, o := &j.record.View, &j.record.View.Slots[slot], &j.slots[slot]
	if w := o.worker; w != nil && !o.gone && sl.Settled && w.Generation == v.Generation {
		return w.Finished && w.Clock >= sl.Until
	}
	return j.record.Slots[slot].Process == "" && sl.Settled && sl.Start >= sl.Until
}

// unretainedSlot returns a slot that has updates which are neither in a checkpoint nor kept by any process; -1: none.
// It is only relevant for strategies under which workers keep updates.
func (j *jobState) unretainedSlot() int {
	if !j.traits.RetainsUpdates() || j.mutations.RollBack {
		return -1
	}
	for i := range j.record.Slots {
		if j.visits.slots++; j.record.Slots[i].UnretainedBelow > j.record.Saved(i) {
			return i
		}
	}
	return -1
}
