package membership

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
)

// fates decides what becomes of slots whose processes have died.
type fates struct {
	facts  *Facts
	job    *job
	rec    *record
	agenda *dirtySet
	told   []words.Fence // memory of fences, by shard
}

// decide takes the next step of the slots that are awake: settling their fates, then
// noting that every shard has carried that out. It returns why all are to roll back, "" if
// they are not.
func (fa *fates) decide() (rollBack string) {
	for _, slot := range fa.agenda.NextSlots() {
		fa.job.looks.slots++
		sl := fa.facts.View.Slots[slot]
		switch {
		case sl.Settled || sl.Incarnation == 0 && !sl.Decided:
		case sl.Decided:
			fa.settle(slot)
		default:
			if why, goesOn := fa.decideSlot(slot); !goesOn {
				return why
			}
		}
	}
	return ""
}

// decideSlot settles the fate of a dead slot's last clock: see Start. Was staging
// lost where it is needed, all roll back, or, under a strategy that loses rows, that shard
// counts the update as lost. It reports whether the job goes on as it was, and if not why
// all are to roll back, if they are.
func (fa *fates) decideSlot(slot int) (rollBack string, goesOn bool) {
	fences := fa.fences(slot, func(*words.Fence) bool { return true })
	if fences == nil {
		return "", true
	}
	p := &fa.facts.Slots[slot]
	start, torn := Start(fences, fa.facts.TwoStep(), p.Begun, p.Short)
	if torn {
		why := "slot %d died half way through clock %d and a shard lost its part"
		switch fate := fa.job.strategy.Halved(); fate.Kind {
		case recovery.RollBack:
			return fmt.Sprintf(why, slot, start-1), false
		case recovery.Fail:
			fa.rec.fail(why+": %s", slot, start-1, fate.Why)
			return "", false
		}
	}
	next := fa.facts.View.Slots[slot]
	next.Decided, next.Start = true, start
	fa.rec.changeSlot(slot, next)
	most := start
	for i := range fences {
		most = max(most, fences[i].Counts.Applied)
	}
	fa.made(slot, most)
	fa.countLost(slot, start, fences)
	if last := fa.job.slots[slot].lastClock; next.Incarnation > 1 {
		fa.facts.ClocksRedone += int64(max(0, last+1-start))
	}
	fa.rec.setClock(slot, start)
	return "", true
}

// countLost counts what shards lack of a slot below its start.
func (fa *fates) countLost(slot int, start perdure.Clock, fences []words.Fence) {
	ledger := &fa.facts.lostUpdates
	if fa.job.traits.Partial {
		fa.facts.Slots[slot].Decided(start)
		if !fa.job.weak.Counting {
			fa.rec.lost(slot, ledger.Decide(slot, start, fences))
		}
	} else if fa.facts.TwoStep() {
		ledger.Halve(start, fences)
	}
}

// settle notes that every shard has carried a decision out. A slot that joins is not
// settled before the others have come to the clock before its first.
func (fa *fates) settle(slot int) {
	if fa.job.isEarly(slot) {
		fa.agenda.Early.Add(slot)
		return
	}
	fa.agenda.Early.Remove(slot)
	if fa.fences(slot, func(f *words.Fence) bool { return f.Carried }) == nil {
		return
	}
	next := fa.facts.View.Slots[slot]
	next.Settled = true
	fa.rec.changeSlot(slot, next)
	fa.job.watch.Await(&fa.job.slots[slot].ear) // its process speaks from now on
}

// fences returns every shard's fence of a slot, in memory that is used again; nil unless all have
// theirs, and good ones: then the slot waits for the word of a shard that has not.
func (fa *fates) fences(slot int, good func(f *words.Fence) bool) []words.Fence {
	n, at := len(fa.facts.View.Shards), &fa.job.slots[slot].fenced
	if fa.told == nil {
		fa.told = make([]words.Fence, n)
	}
	fa.agenda.Fencing[*at%cursor(n)].Remove(slot)
	if !at.All(n, func(i int) bool {
		f, told := fa.job.fence(i, slot)
		fa.told[i] = f
		return told && good(&f)
	}) {
		fa.agenda.Fencing[*at].Add(slot)
		return nil
	}
	return fa.told // of all, for it has just gone round
}

// made notes, when it is known, up to which clock there are updates of a slot's former
// processes.
func (fa *fates) made(slot int, upTo perdure.Clock) {
	p, first := &fa.facts.Slots[slot], fa.facts.View.Slots[slot].From // below it there are none of this term's
	if first < upTo && p.Made < upTo {
		set(fa.rec, &p.Made, upTo)
	}
	if !fa.job.traits.Retains() {
		return
	}
	if p.Unkept == unknown || first < upTo && p.Unkept < upTo {
		set(fa.rec, &p.Unkept, upTo)
	}
	fa.agenda.Calling.Add(slot)
}
