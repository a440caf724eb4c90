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
	"github.com/perdure/perdure/internal/data/packed"
	"github.com/perdure/perdure/worker"
)

// Learners is a second table of a bsp job, with the weights of a model that the slots train as DiLoCo does with an
// overlap. Each slot makes inner steps by itself, and then adds its change to the table. While the clock ends, it
// continues with the steps of a window, and afterwards merges the result with them. Each step depends on the weights.
// The table must have exactly the values that one process computes for all slots. Without rounding all weights are
// whole numbers.
//
// A slot's saved state has the weights that it sent, and the rounding error of its change if the next change corrects
// it. Its next process starts there and repeats the window.
type Learners struct {
	Spec     perdure.TableSpec
	Rounding Rounding
	h        *History
	fault    LearnerFault
	expected [][]float32 // by clock: the rows
}

// Rounding is how changes and weights are rounded on their way to and from the servers. The rounding error of a change
// of 2 bits is added to the next change.
type Rounding struct{ Up, Down perdure.Encoding }

// LearnerFault is a mistake in the programs, for negative controls.
type LearnerFault int

const (
	NoLearnerFault LearnerFault = iota
	LearnerSendsTwice
	LearnerMergesEarly
	LearnerOmitsWindow
	LearnerCorrectsTwice
)

const (
	innerSteps  = 5
	windowSteps = 3
	learnerDim  = 72 // rows of up to 64 values are not rounded to 2 bits
)

// AddLearners adds Learners to a bsp job that loses no updates. It must be called before the job begins.
func (h *History) AddLearners(fault LearnerFault, rounding Rounding) {
	if h.job.Consistency.Kind != perdure.BSP || h.lossy {
		return
	}
	l := &Learners{h: h, fault: fault, Rounding: rounding, Spec: perdure.TableSpec{
		Name: "learners", Dim: learnerDim, Rows: int64(h.job.Shards + 1), Combine: perdure.CombineSum,
		Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: h.job.Consistency, Encoding: rounding.Up,
	}}
	shared := l.weights()
	slots := make([]*learner, h.job.Slots)
	for i := range slots {
		slots[i] = l.newLearner(i)
	}
	for range h.job.Clocks + 1 {
		l.expected = append(l.expected, shared)
		read, sum := l.received(shared), l.weights()
		for _, of := range slots {
			of.merge(read)
			of.steps(innerSteps - of.passed)
			change, err := of.send(func(values []float32) error {
				packed.Round(values, rounding.Up, learnerDim)
				return nil
			})
			if err != nil {
				panic(err) // it never fails
			}
			for i, v := range change {
				sum[i] += v
			}
			of.steps(windowSteps)
		}
		for i, v := range shared {
			sum[i] += v
		}
		shared = sum
	}
	h.aux.learners = l
}

func (l *Learners) weights() []float32 { return make([]float32, l.Spec.Rows*learnerDim) }

// received returns the weights that a slot reads if the servers have the given ones.
func (l *Learners) received(shared []float32) []float32 {
	if l.Rounding.Down == perdure.EncodingFloat32 {
		return shared
	}
	read := slices.Clone(shared)
	packed.Round(read, l.Rounding.Down, learnerDim)
	return read
}

// learner is the program of one slot, or of one of its processes. A nil learner does nothing.
type learner struct {
	all    *Learners
	table  *worker.Table
	slot   int
	now    []float32 // the weights
	base   []float32 // the weights against which the next change is taken
	sent   []float32 // the weights that were sent last
	was    []float32 // the rounding error of the change before the last one
	error  []float32 // the rounding error of the last change
	passed int       // inner steps since then
	open   bool      // whether a result is still to be merged
	fault  LearnerFault
}

func (l *Learners) newLearner(slot int) *learner {
	return &learner{
		all: l, slot: slot, now: l.weights(), base: l.weights(), sent: l.weights(), was: l.weights(),
		error: l.weights(),
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
		for i, v := range l.now {
			l.now[i] = v + float32((int(v)+l.slot+i*i)%11)
		}
	}
	l.passed += n
}

// send returns the changes since the base as the servers receive them, and begins a window.
func (l *learner) send(round func([]float32) error) ([]float32, error) {
	change := l.all.weights()
	for i, v := range l.now {
		change[i] = v - l.base[i]
	}
	copy(l.sent, l.now)
	l.passed, l.open = 0, true
	switch l.all.Rounding.Up {
	case perdure.EncodingFloat32:
		return change, nil
	case perdure.Encoding2Bit:
		for i, e := range l.error {
			change[i] += e
		}
	}
	rounded := slices.Clone(change)
	if err := round(rounded); err != nil {
		return nil, err
	}
	l.was, l.error = l.error, l.was
	for i, v := range change {
		l.error[i] = v - rounded[i]
	}
	return rounded, nil
}

// merge adds the progress of the window to the shared weights.
func (l *learner) merge(shared []float32) {
	for i, v := range shared {
		l.now[i] = v + (l.now[i] - l.sent[i])
	}
	if l.fault != LearnerSendsTwice {
		copy(l.base, shared)
	}
	l.open = false
}

// The words before the weights, and before the rounding error, in a saved state.
const (
	stateOfLearner = " weights"
	errorOfLearner = " error"
)

// state returns the text that the next process of the slot needs.
func (l *learner) state() string {
	if l == nil {
		return ""
	}
	e := l.error
	if l.fault == LearnerCorrectsTwice { // the change that is sent with this state already contains it
		e = l.was
	}
	text := stateOfLearner + strings.Trim(fmt.Sprint(l.sent), "[]")
	if l.all.Rounding.Up == perdure.Encoding2Bit {
		text += errorOfLearner + strings.Trim(fmt.Sprint(e), "[]")
	}
	return text
}

// load starts from a saved state, at the beginning of the window. The first process of a slot has none.
func (l *learner) load(state string) error {
	if l == nil {
		return nil
	}
	_, text, saved := strings.Cut(state, stateOfLearner)
	weights, errs, _ := strings.Cut(text, errorOfLearner)
	for to, text := range map[*[]float32]string{&l.sent: weights, &l.error: errs} {
		clear(*to)
		for i, s := range strings.Fields(text) {
			if _, err := fmt.Sscan(s, &(*to)[i]); err != nil {
				return violated("saved state reads %q", state)
			}
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
	shared := l.all.weights()
	if err := l.read(ctx, shared); err != nil {
		return err
	}
	for i, want := range l.all.received(l.all.expected[clock]) {
		if v := shared[i]; v != want {
			return violated("slot %d at clock %d read row %d of the learners' table: %v instead of %v", l.slot, clock,
				i/learnerDim, v, want)
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
	change, err := l.send(l.table.Round)
	if err != nil {
		return err
	}
	return l.table.IncRun(0, change)
}

func (l *learner) read(ctx context.Context, to []float32) error {
	if l.all.Rounding.Down == perdure.EncodingFloat32 {
		return l.table.GetRun(ctx, 0, to)
	}
	_, _, err := l.table.GetRunRounded(ctx, 0, to, l.all.Rounding.Down)
	return err
}

// endClock ends all clocks below to, and no others if the job ends early. Meanwhile a learner makes the steps of its
// window, and merges the result after the last one.
func (l *learner) endClock(ctx context.Context, w *worker.Client, to perdure.Clock) (perdure.Clock, error) {
	if l == nil {
		return worker.SkipTo(ctx, w, to)
	}
	before, shared := w.Now(), l.all.weights()
	var now perdure.Clock
	var read error
	ended := make(chan error, 1)
	go func() {
		var err error
		if now, err = worker.SkipTo(ctx, w, to); err == nil && now == before+1 {
			read = l.read(ctx, shared)
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
