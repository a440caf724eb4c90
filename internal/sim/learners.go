package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// Learners is a second table of a bsp job, with the weights of a model that the slots train as DiLoCo does with an
// overlap. Each slot makes inner steps by itself, and then adds its change to the table. While the clock ends, it
// continues with the steps of a window, and afterwards merges the result with them. Each step depends on the weights.
// All weights are whole numbers, so the table must have exactly the values that one process computes for all slots.
//
// A slot's saved state has the weights that it sent. Its next process starts there and repeats the window.
type Learners struct {
	Spec     perdure.TableSpec
	h        *History
	fault    LearnerFault
	expected [][]float32 // by clock: the rows
}

// LearnerFault is a mistake in the programs, for negative controls.
type LearnerFault int

const (
	NoLearnerFault LearnerFault = iota
	LearnerSendsTwice
	LearnerMergesEarly
	LearnerOmitsWindow
)

const (
	innerSteps  = 5
	windowSteps = 3
)

// AddLearners adds Learners to a bsp job that loses no updates. It must be called before the job begins.
func (h *History) AddLearners(fault LearnerFault) {
	if h.job.Consistency.Kind != perdure.BSP || h.lossy {
		return
	}
	l := &Learners{h: h, fault: fault, Spec: perdure.TableSpec{
		Name: "learners", Dim: 1, Rows: int64(h.job.Shards + 1), Combine: perdure.CombineSum,
		Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: h.job.Consistency,
	}}
	shared := make([]float32, l.Spec.Rows)
	slots := make([]*learner, h.job.Slots)
	for i := range slots {
		slots[i] = l.newLearner(i)
	}
	for range h.job.Clocks + 1 {
		l.expected = append(l.expected, shared)
		sum := slices.Clone(shared)
		for _, of := range slots {
			of.merge(shared)
			of.steps(innerSteps - of.passed)
			for row, change := range of.send() {
				sum[row] += change
			}
			of.steps(windowSteps)
		}
		shared = sum
	}
	h.aux.learners = l
}

// learner is the program of one slot, or of one of its processes. A nil learner does nothing.
type learner struct {
	all    *Learners
	table  *worker.Table
	slot   int
	now    []float32 // the weights
	base   []float32 // the weights against which the next change is taken
	sent   []float32 // the weights that were sent last
	passed int       // inner steps since then
	open   bool      // whether a result is still to be merged
	fault  LearnerFault
}

func (l *Learners) newLearner(slot int) *learner {
	return &learner{
		all: l, slot: slot, now: make([]float32, l.Spec.Rows), base: make([]float32, l.Spec.Rows),
		sent: make([]float32, l.Spec.Rows),
	}
}

// join creates the table, and the learner of a worker process.
func (l *Learners) join(ctx context.Context, w *worker.Client) (of *learner, err error) {
	of = l.newLearner(int(w.Slot()))
	of.fault = l.fault
	of.table, err = w.Table(ctx, l.Spec)
	return of, err
}

// steps makes inner steps. The slot and a weight's value determine how far a step moves it.
func (l *learner) steps(n int) {
	for range n {
		for row, v := range l.now {
			l.now[row] = v + float32((int(v)+l.slot+row)%3)
		}
	}
	l.passed += n
}

// send returns the changes since the base, and begins a window.
func (l *learner) send() []float32 {
	change := make([]float32, len(l.now))
	for row, v := range l.now {
		change[row] = v - l.base[row]
	}
	copy(l.sent, l.now)
	l.passed, l.open = 0, true
	return change
}

// merge adds the progress of the window to the shared weights.
func (l *learner) merge(shared []float32) {
	for row, v := range shared {
		l.now[row] = v + (l.now[row] - l.sent[row])
	}
	if l.fault != LearnerSendsTwice {
		copy(l.base, shared)
	}
	l.open = false
}

const stateOfLearner = " weights"

// state returns the text that the next process of the slot needs.
func (l *learner) state() string {
	if l == nil {
		return ""
	}
	return stateOfLearner + strings.Trim(fmt.Sprint(l.sent), "[]")
}

// load starts from a saved state, at the beginning of the window. The first process of a slot has none.
func (l *learner) load(state string) error {
	if l == nil {
		return nil
	}
	_, text, saved := strings.Cut(state, stateOfLearner)
	clear(l.sent)
	for row, s := range strings.Fields(text) {
		if _, err := fmt.Sscan(s, &l.sent[row]); err != nil {
			return violated("saved state reads %q", state)
		}
	}
	copy(l.now, l.sent)
	clear(l.base)
	l.passed, l.open = 0, saved
	return nil
}

// step is the program's work in one clock: it makes the rest of the inner steps and adds the change. Unless the process
// has just started, endClock has merged the result of the previous clock.
func (l *learner) step(ctx context.Context, clock perdure.Clock) error {
	if l == nil {
		return nil
	}
	shared := make([]float32, len(l.now))
	if err := l.table.GetRun(ctx, 0, shared); err != nil {
		return err
	}
	for row, v := range shared {
		if want := l.all.expected[clock][row]; v != want {
			return violated("slot %d at clock %d read row %d of the learners' table: %v instead of %v", l.slot, clock,
				row, v, want)
		}
	}
	if l.open {
		if l.fault != LearnerOmitsWindow {
			l.steps(windowSteps)
		}
		l.merge(shared)
		l.passed = windowSteps
	}
	l.steps(innerSteps - l.passed)
	return l.table.IncRun(0, l.send())
}

// endClock ends a clock. Meanwhile a learner makes the steps of its window, and merges the result after the last one.
func (l *learner) endClock(ctx context.Context, w *worker.Client) (perdure.Clock, error) {
	if l == nil {
		return w.Clock(ctx)
	}
	before, shared := w.Now(), make([]float32, len(l.now))
	var now perdure.Clock
	var read error
	ended := make(chan error, 1)
	go func() {
		var err error
		if now, err = w.Clock(ctx); err == nil && now == before+1 {
			read = l.table.GetRun(ctx, 0, shared)
		}
		ended <- err
	}()
	merged := windowSteps
	if l.fault == LearnerMergesEarly {
		merged--
	}
	rng := rand.New(rand.NewPCG(l.all.h.job.Seed, uint64(l.slot)<<32|uint64(before)))
	for range merged {
		time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
		l.steps(1)
	}
	err := <-ended
	switch {
	case err != nil || now != before+1:
		return now, err
	case errors.Is(read, perdure.ErrRolledBack): // the next step finds out, too
		return now, nil
	case read != nil:
		return now, read
	}
	l.merge(shared)
	l.steps(windowSteps - merged)
	return now, nil
}
