package membership

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// sharing is the model of programs with shared state, which is equal in all of them. Each saves its own state with each
// update, and all of its state in the clocks that a cut ends. A process that starts elsewhere needs the shared state of
// its first clock, which another process saves for it.
//
// A nil sharing is that of programs without shared state.
type sharing struct {
	whole  map[slotClock]bool         // updates with all of the state
	copies map[newcomer]perdure.Clock // the saved copies: the clock of each
	own    bool                       // programs save their own states with each update
	any    bool                       // negative control: sources save the state of any clock
}

// slotClock identifies an update.
type slotClock struct {
	slot       perdure.Slot
	generation perdure.Generation
	clock      perdure.Clock
}

// newcomer identifies a process that may need a copy.
type newcomer struct {
	slot        perdure.Slot
	generation  perdure.Generation
	incarnation perdure.Incarnation
}

// sharedState is the shared state of one process.
type sharedState struct {
	mark   perdure.Clock // the clock at whose start it was as it is now; 0: the process lacks it, or works on clock 0
	waits  bool          // the process lacks it, and waits for a copy
	seen   []newcomer    // which the view has named so far
	passed []newcomer    // for which it no longer had the state when the view named them
}

func newSharing() *sharing {
	return &sharing{whole: map[slotClock]bool{}, copies: map[newcomer]perdure.Clock{}, own: true}
}

// named returns the processes for which the view wants a worker to save its shared state, with their first clocks.
func (sh *sharing) named(w *fakeWorker, slot perdure.Slot) (list []newcomer, at []perdure.Clock) {
	for i, sl := range w.view.Slots {
		if sl.Source == int32(slot)+1 {
			list = append(list, newcomer{perdure.Slot(i), w.view.Generation, sl.Incarnation})
			at = append(at, sl.Start)
		}
	}
	return list, at
}

// received is called when a worker has received a view.
func (sh *sharing) received(w *fakeWorker, slot perdure.Slot) {
	if sh == nil {
		return
	}
	list, at := sh.named(w, slot)
	for i, n := range list {
		if !slices.Contains(w.seen, n) {
			w.seen = append(w.seen, n)
			if w.mark > at[i] && !sh.any {
				w.passed = append(w.passed, n)
			}
		}
	}
}

// report adds the worker's shared state to a status.
func (sh *sharing) report(w *fakeWorker, slot perdure.Slot, st *protocol.WorkerStatus) {
	if sh == nil {
		return
	}
	list, _ := sh.named(w, slot)
	st.Mark, st.NeedsCopy, st.SavesOwn = w.mark, w.waits, w.mark > 0 && sh.own
	st.Passed = slices.ContainsFunc(list, func(n newcomer) bool { return slices.Contains(w.passed, n) })
}

// save saves a worker's shared state for the processes that need it.
func (sh *sharing) save(w *fakeWorker, slot perdure.Slot) {
	if sh == nil {
		return
	}
	list, at := sh.named(w, slot)
	for i, n := range list {
		if w.mark > 0 && (w.mark == at[i] || sh.any) {
			sh.copies[n] = w.mark
		}
	}
}

// mark lets a worker start a clock, once it has read the rows of the clock before. A new process first needs the shared
// state of its first clock. It returns false if it has to wait.
func (sh *sharing) mark(c *cluster, w *fakeWorker, slot perdure.Slot) bool {
	if sh == nil {
		return true
	}
	v := &w.view
	saved := w.clock <= 1 || // at clock 1, the rows have the initial state
		w.clock == v.Cut && v.Slots[slot].From < v.Cut || sh.whole[slotClock{slot, v.Generation, w.clock - 1}]
	for i := range c.job.Shards {
		if on := c.shard(w, i); on == nil || on.in == nil || on.in.MinClock() < w.clock {
			return false
		}
	}
	if w.waits = w.mark == 0 && !saved; w.waits {
		at, saved := sh.copies[newcomer{slot, v.Generation, w.incarnation}]
		if !saved {
			return false
		}
		if at != w.clock {
			c.fail("worker:%d starts at clock %d with the shared state of clock %d", slot, w.clock, at)
		}
	}
	w.mark, w.waits = w.clock, false
	cuts := recovery.ScheduleOf(&c.job)
	cuts.Named = v.Named
	if cuts.Has(w.clock + 1) {
		sh.whole[slotClock{slot, v.Generation, w.clock}] = true
	}
	return true
}

// sharingStrategies are the recovery strategies of programs with shared state.
var sharingStrategies = []perdure.Recovery{
	{Kind: perdure.RecoverCheckpoint, Every: 2},
	{Kind: perdure.RecoverCheckpoint, Every: 5},
	{Kind: perdure.RecoverCheckpoint, Auto: true},
	{Kind: perdure.RecoverResend, Every: 3},
	{Kind: perdure.RecoverResend, Every: 100},
	{Kind: perdure.RecoverResend, Auto: true},
	{Kind: perdure.RecoverChain, Replicas: 2, Every: 3, Checkpoints: true},
}

// sharingWeights are the relative frequencies of the events. In a round all running processes progress.
var sharingWeights = map[string]int{
	"round": 80, "work": 10, "send": 10, "follow": 10, "report": 10, "start": 20, "rejoin": 8, "answer": 3, "refuse": 1,
	"die": 6, "kill": 1, "tick": 3, "restart": 1, "lose": 1, "end": 1, "ghost": 2, "flow": 5, "scale": 4,
}

// TestSharingStorms checks that each process of a job with shared state starts with that of its first clock, and that
// none waits for it forever.
func TestSharingStorms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := sharingStorms().Draw(t, "storm")
		if err := s.run(); err != nil {
			t.Fatal(err)
		}
	})
}

func sharingStorms() *rapid.Generator[storm] {
	return rapid.Map(stormsOf(sharingStrategies, sharingWeights), func(s storm) storm {
		s.Job.Consistency, s.Job.SuspendMs, s.Earlier = perdure.Consistency{Kind: perdure.BSP}, 0, earlier{}
		s.Job.Slots++
		s.Sharing = newSharing()
		s.Sharing.own = s.Job.Slots%4 != 0
		return s
	})
}

// TestSharingControl checks that the storms find sources that save the shared state of another clock.
func TestSharingControl(t *testing.T) {
	for seed := 100; seed < 1100; seed++ { // the first one finds it
		s := sharingStorms().Example(seed)
		s.Sharing.any = true
		if s.run() != nil {
			return
		}
	}
	t.Error("no storm finds it")
}
