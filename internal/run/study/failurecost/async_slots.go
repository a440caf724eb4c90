package failurecost

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload"
)

// asyncSlots is the state of the slots of a job under ssp and asp, where they do not wait for each other in every
// clock. The seed determines how long each slot takes for each clock. A slot reads the rows as they are when it starts
// a clock, and its update is applied when it finishes. So a read misses the updates in progress. Caches, which may hold
// older rows, are not modelled.
type asyncSlots struct {
	ahead  perdure.Clock   // how far a slot may be ahead of the slowest; -1: no limit
	clocks []perdure.Clock // finished by each slot
	ends   []float64       // when each slot finishes its current clock; NaN if it is idle
	now    float64
}

// Limits on the duration of a clock of a slot, in arbitrary units of time.
const (
	fastest = 0.5
	slowest = 1.5
)

// newAsyncSlots returns the initial state under a consistency model, or nil if all slots run each clock together.
func newAsyncSlots(job *perdure.JobSpec) *asyncSlots {
	l := &asyncSlots{clocks: make([]perdure.Clock, job.Slots), ends: make([]float64, job.Slots)}
	for i := range l.ends {
		l.ends[i] = math.NaN()
	}
	switch c := job.Consistency; c.Kind {
	case perdure.SSP:
		l.ahead = c.Staleness
	case perdure.ASP:
		l.ahead = -1
	default:
		return nil
	}
	return l
}

func (l *asyncSlots) copy() *asyncSlots {
	if l == nil {
		return nil
	}
	return &asyncSlots{l.ahead, slices.Clone(l.clocks), slices.Clone(l.ends), l.now}
}

// clockDuration returns how long a slot computes a clock.
func clockDuration(seed uint64, slot int, clock perdure.Clock) float64 {
	rng := rand.New(rand.NewPCG(seed, uint64(slot)<<40|uint64(clock)))
	return fastest + (slowest-fastest)*rng.Float64()
}

// Advance runs one clock: all slots compute it, and their updates are applied. Under ssp and asp it runs until every
// slot has finished the clock; some may be ahead of it. It returns the mean training loss, like Compute.
func (t *Training) Advance(ctx context.Context) (loss float64, err error) {
	if t.async == nil {
		if loss, err = t.Compute(ctx); err != nil {
			return 0, err
		}
		return loss, t.Apply()
	}
	sum, samples := 0.0, 0
	for before := t.Clock; t.Clock == before; {
		for i := range t.slots {
			if !math.IsNaN(t.async.ends[i]) || t.async.ahead >= 0 && t.async.clocks[i]-t.Clock > t.async.ahead {
				continue
			}
			m, err := t.startClock(ctx, i)
			if err != nil {
				return 0, err
			}
			if m.Samples > 0 && !math.IsNaN(m.TrainLoss) {
				sum, samples = sum+m.TrainLoss*float64(m.Samples), samples+m.Samples
			}
		}
		if err := t.finishClock(); err != nil {
			return 0, err
		}
	}
	return sum / float64(samples), nil // 0/0 is NaN
}

// startClock makes a slot compute its next clock.
func (t *Training) startClock(ctx context.Context, slot int) (workload.Metrics, error) {
	l, u := t.async, t.slots[slot]
	u.clear()
	l.ends[slot] = l.now + clockDuration(t.Job.Seed, slot, l.clocks[slot])
	return t.crew[slot].Step(ctx, u, workload.Share{Rank: slot, Of: len(t.slots)}, l.clocks[slot])
}

// finishClock applies the update of the slot that finishes first, and saves rows if a round is due.
func (t *Training) finishClock() error {
	l, first := t.async, -1
	for i, at := range l.ends {
		if !math.IsNaN(at) && (first < 0 || at < l.ends[first]) {
			first = i
		}
	}
	if first < 0 {
		return fmt.Errorf("no slot is computing at clock %d", t.Clock)
	}
	for id, parts := range t.parts {
		for n, p := range parts {
			if err := t.slots[first].tables[n].applyTo(t, id, p, l.clocks[first]); err != nil {
				return err
			}
		}
	}
	l.now, l.ends[first] = l.ends[first], math.NaN()
	l.clocks[first]++
	t.seq++
	if least := slices.Min(l.clocks); least > t.Clock {
		t.Clock = least
		return t.save()
	}
	return nil
}
