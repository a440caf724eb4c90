package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/failuredetector"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
)

// observed is what is known of a place's process without being recorded.
type observed struct {
	connected bool
	gone      bool  // it is dead
	muted     bool  // it counts as silent, whatever it says
	assumed   bool  // that is not certain: its connection broke, and it did not come back
	back      int64 // when, having been a suspect, it was heard again; 0: it was since, too
	ear       failuredetector.Ear
	notice    drainNotice // of a server that is to end
	server    *words.ServerWord
	worker    *words.WorkerStatus
	lastClock perdure.Clock // of the slot, by whatever incarnation
	fenced    cursor        // of the slot: over the shards' fences
	highest   cursor        // likewise
	last      cursor        // likewise: over what they have applied
}

// job is what is recorded of a job and what is known of it beside. Its methods answer
// questions, and change nothing but what was heard of whom.
type job struct {
	facts    *Facts
	strategy recovery.Strategy
	traits   recovery.Traits

	servers []observed
	slots   []observed
	tick    int64
	seconds float64 // that a tick is long
	watch   failuredetector.Detector
	judged  []failuredetector.Subject // memory of subjects

	supervised bool // a supervisor is there, which can be asked about the processes that it has started

	spread     *placement.Spread        // where replicas are
	unready    numberSet                // shards that do not serve, but for those that are due
	dropped    map[perdure.ShardID]bool // dropped on purpose, not given anew yet
	clocks     clockCensus              // of all slots that have clocks to do
	healing    map[Kind]*numberSet      // places of which a "serving" event is due once they work again
	publishing perdure.Clock            // cut being published; -1: none
	publishes  []string                 // states of slots that what was published last refers to
	complete   bool
	pausedAt   uint64 // the first revision that asks for a pause
	weak       weaken.Set

	looks looks
}

// looks counts what the core has looked at; tests hold it against what was touched.
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

// guest reports whether a place's process came by itself: nobody here has started it,
// can kill it, or starts its next one.
func (j *job) guest(k Kind, index int) bool {
	p, _ := j.place(k, index)
	return p.Any || k == Worker && (p.Guest || j.facts.Job.OwnWorkers)
}

// heard notes a sign of life, and reports whether it counts.
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

// subjects returns all places, servers first, as those whose silence is judged.
func (j *job) subjects() []failuredetector.Subject {
	j.judged = j.judged[:0]
	for _, k := range []Kind{Server, Worker} {
		for i := range j.size(k) {
			p, o := j.place(k, i)
			speaks, waits := k == Worker || !p.Left || j.spread.Load(i) > 0, false
			if k == Worker { // told to wait, it has nothing to say, and may dial again
				sl := &j.facts.View.Slots[i]
				speaks, waits = !sl.Left && (sl.Settled || !o.connected), !sl.Settled
			}
			j.judged = append(j.judged, failuredetector.Subject{
				Ear: &o.ear, There: p.Process != "" && !o.gone, Speaks: speaks, Redials: waits,
				Asks: j.supervised && !j.guest(k, i),
			})
		}
	}
	return j.judged
}

// logProblem returns why one of the live processes waits for the update log, "" if none
// does.
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

// strange reports whether a server's place is a living process's that asked for any,
// and not the one's who asks for it by number.
func (j *job) strange(index int, process string) bool {
	if index >= len(j.servers) {
		return false
	}
	p, o := &j.facts.Servers[index], &j.servers[index]
	return p.Any && !o.gone && p.Process != process
}

// free finds the place that a process has already, the first that is vacant, or
// a slot whose process has been out of touch for a third of the patience: a
// worker that nobody watches, which a fresh one replaces. The old one, should it
// come back, is fenced. For a server one more is made where there is none, unless it is to
// be seen yet whether one will be vacant.
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

// isFree reports whether a place is free for who asks for any. That of a server that
// came by number is kept for its next process, which asks for it by number too; that
// of one which may have the last rows of a shard, for that one.
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

// inDoubt reports whether a server is out of touch whose place will be vacant, should
// it be dead: who asks for any place waits until that is clear.
func (j *job) inDoubt() bool {
	for i := range j.servers {
		p, o := &j.facts.Servers[i], &j.servers[i]
		if !o.gone && !p.Left && !p.Draining && (p.Any || j.facts.Job.NoReplace) && !j.eligible(i) {
			return true
		}
	}
	return false
}

// counted returns the clock that a slot is at, as far as is known; -1: it has done
// its last one, in an earlier job perhaps.
func (j *job) counted(slot int) perdure.Clock {
	sl := &j.facts.View.Slots[slot]
	clock := max(j.slots[slot].lastClock, sl.Start, sl.From)
	if sl.Until > 0 && (sl.Left || clock >= sl.Until) {
		return -1
	}
	return clock
}

// minClock returns the least clock of all slots, as far as is known.
func (j *job) minClock() perdure.Clock {
	return max(j.clocks.Least(), j.facts.View.Cut) // nobody works below it, also before all have reported
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

// stand returns the highest clock that any slot works on and the highest that any has
// come to by work of its own, as far as is known.
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

// stands returns the clock that a slot is at, as far as is known, -1 if it takes no
// part now; and whether that is where it stands until the pause that there is ends.
func (j *job) stands(slot int) (at perdure.Clock, surely bool) {
	v, sl, o := &j.facts.View, &j.facts.View.Slots[slot], &j.slots[slot]
	// Who was let in takes part, though the one may have died since who had come so far that he was.
	in := sl.Settled && j.facts.Slots[slot].Process != ""
	switch w := o.worker; {
	case sl.Left || !in && j.isEarly(slot):
		return -1, true
	case j.facts.Slots[slot].Process == "" && (sl.Settled || sl.Incarnation == 0):
		// nobody is there: whoever comes hears of it first
		return max(sl.Start, j.facts.Slots[slot].Made, v.Begin(perdure.Slot(slot))), true
	case w == nil || o.gone || !sl.Settled || w.Generation != v.Generation || w.Revision < j.pausedAt:
		return max(o.lastClock, sl.Start, v.Begin(perdure.Slot(slot))), false
	default:
		// its first words may come before it knows where it begins
		return max(w.Clock, sl.Start, j.facts.Slots[slot].Made), true
	}
}

// isEarly reports whether the job has not come to the clock from which a slot takes
// part, so that nobody is let in for it yet.
func (j *job) isEarly(slot int) bool {
	done := func(i int) perdure.Clock { return j.slots[i].lastClock }
	return comesEarly(j.facts.View.Slots, slot, j.facts.View.Cut, done)
}

// spanDone reports whether a slot that is to leave has done its last clock.
func (j *job) spanDone(slot int) bool {
	v, sl, o := &j.facts.View, &j.facts.View.Slots[slot], &j.slots[slot]
	if w := o.worker; w != nil && !o.gone && sl.Settled && w.Generation == v.Generation {
		return w.Finished && w.Clock >= sl.Until
	}
	return j.facts.Slots[slot].Process == "" && sl.Settled && sl.Start >= sl.Until
}

// unkept returns a slot of whose updates that are in no checkpoint some are kept by
// nobody, -1 if there is none. Where workers keep none the strategy does not ask.
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
