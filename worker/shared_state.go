package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/slotstate"
)

// SharedState is the part of a program's state that is equal in the programs of all slots at the start of a clock, such
// as the weights if each program computes them itself. A program saves its own state with each update, and the shared
// state only in clocks that a checkpoint ends, if it is the [SharedState.Saver]: see [Client.SaveDue]. If its process
// dies, the program of another slot saves a copy for the next process. If no process has that state any more, the job
// rolls back to a checkpoint. The first process of a slot that joins the job gets a copy in the same way.
type SharedState struct{ c *Client }

// NewSharedState returns access to the shared state of a client's program.
func NewSharedState(c *Client) SharedState { return SharedState{c} }

// sharedMark is what this process knows about its shared state and about processes that need a copy. Its zero value is
// that of a process without shared state.
type sharedMark struct {
	clock  perdure.Clock   // the clock whose start the shared state belongs to; 0: the program lacks it
	own    bool            // the program saves its own state with each update
	needs  bool            // the program waits for a copy
	unable bool            // the job's store cannot be reached from here
	seen   []slotstate.Key // copies that the view has named so far
	passed []slotstate.Key // copies of earlier clocks than clock was when the view named them
	saved  []slotstate.Key
}

// copies yields the copies that a view wants from a slot, with their clocks. A copy has the name of the process that
// needs it, with number 0, so the states that this process saves itself supersede it.
func copies(v *protocol.View, from perdure.Slot, yield func(k slotstate.Key, at perdure.Clock) bool) {
	if from < 0 { // an observer
		return
	}
	for i := range v.Slots {
		sl := &v.Slots[i]
		k := slotstate.Key{Slot: perdure.Slot(i), Generation: v.Generation, Incarnation: sl.Incarnation}
		if sl.Source == int32(from)+1 && !yield(k, sl.Start) {
			return
		}
	}
}

// received records the copies that a new view wants. Those of earlier clocks cannot be saved any more.
func (m *sharedMark) received(v *protocol.View, own perdure.Slot) {
	var still []slotstate.Key
	copies(v, own, func(k slotstate.Key, at perdure.Clock) bool {
		if !slices.Contains(m.seen, k) && m.clock > at {
			m.passed = append(m.passed, k)
		}
		still = append(still, k)
		return true
	})
	m.seen = still
	m.passed = slices.DeleteFunc(m.passed, func(k slotstate.Key) bool { return !slices.Contains(still, k) })
}

// wanted returns a copy that this process must save now, and has not saved yet.
func (m *sharedMark) wanted(v *protocol.View, own perdure.Slot) (want slotstate.Key, found bool) {
	copies(v, own, func(k slotstate.Key, at perdure.Clock) bool {
		if found = m.clock > 0 && at == m.clock && !slices.Contains(m.saved, k); found {
			want = k
		}
		return !found
	})
	return want, found
}

// Mark records that the program has the shared state of the start of the current clock. The program must not change it
// before it has read the rows that the clock's updates change. own reports whether the program saves its own state with
// each update. Otherwise, all roll back when its process dies.
//
// Without a store that this machine can reach, no copy can be saved: all roll back when a process dies, and no slot can
// join.
func (s SharedState) Mark(own bool) {
	unreachable := s.c.saves.CheckReachable()
	l := s.c.lock()
	defer s.c.mu.Unlock()
	if l.out.Phase().IsOver() { // also if the job was rolled back
		return
	}
	first := l.shared.clock == 0 && !l.shared.unable
	if l.shared.needs = false; unreachable != nil {
		l.shared.unable = true
	} else if l.shared.own = own; l.shared.clock != l.out.Clock() {
		l.shared.clock, l.shared.saved = l.out.Clock(), nil
	}
	if first {
		l.notify()
	}
}

// AwaitRequest waits until a process needs a copy of the shared state: call Save.
func (s SharedState) AwaitRequest(ctx context.Context) error {
	l := s.c.lock()
	defer s.c.mu.Unlock()
	return l.waits.Until(ctx, func() (bool, error) {
		_, found := l.shared.wanted(&l.view, l.slot)
		return found, l.usable()
	})
}

// Save saves the shared state for the process that AwaitRequest has found, and returns once the job's store has it, or
// it is not needed any more. write writes its n bytes, as in [Client.SaveStateFrom].
func (s SharedState) Save(ctx context.Context, n int64, write func(ctx context.Context, w io.Writer) error) error {
	l := s.c.lock()
	want, found := l.shared.wanted(&l.view, l.slot)
	s.c.mu.Unlock()
	if !found {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		l := s.c.lock()
		defer s.c.mu.Unlock()
		err := l.waits.Until(ctx, func() (bool, error) {
			return !slices.Contains(l.shared.seen, want), l.usable()
		})
		cancel(cmp.Or(err, errUnneeded))
	}()
	err := s.c.saves.Put(ctx, want, n, write)
	needless := errors.Is(context.Cause(ctx), errUnneeded)
	cancel(nil)
	<-watching
	l = s.c.lock()
	defer s.c.mu.Unlock()
	if err == nil {
		l.shared.saved = append(l.shared.saved, want)
	}
	if err == nil || needless {
		return nil
	}
	return fmt.Errorf("worker: %w", cmp.Or(l.usable(), err))
}

var errUnneeded = errors.New("no process needs the copy any more")

// Saver returns the slot whose program saves the shared state in the current clock, if a checkpoint ends it: the first
// one that takes part in it.
func (s SharedState) Saver() perdure.Slot {
	l := s.c.lock()
	defer s.c.mu.Unlock()
	for i := range l.view.Slots {
		if l.view.Slots[i].Has(l.out.Clock()) {
			return perdure.Slot(i)
		}
	}
	return l.slot
}

// LoadFrom returns the state that another slot's program saved in the clock before the current one, as in
// [Client.LoadSaved]. It waits for a while if its shard does not have that update yet.
func (s SharedState) LoadFrom(ctx context.Context, slot perdure.Slot) (SavedState, error) {
	pause := shortestPause
	for try := 1; ; try++ {
		got, err := loadSaved(ctx, s.c, slot)
		if err != nil || got.Clock+1 >= s.c.Now() || try == maxLoadFromTries {
			return got, err
		}
		l := s.c.lock()
		err = cmp.Or(l.waits.Pause(ctx, pause), l.usable())
		s.c.mu.Unlock()
		if err != nil {
			return SavedState{}, err
		}
		pause = min(2*pause, longestPause)
	}
}

// maxLoadFromTries is how often LoadFrom looks for a state: for nearly a minute.
const maxLoadFromTries = 60

// Left reports whether this slot has done its last clock before it leaves the job.
func (s SharedState) Left() bool {
	l := s.c.lock()
	defer s.c.mu.Unlock()
	until := l.view.Slots[l.slot].Until
	return until > 0 && l.out.Clock() >= until
}

// AwaitCopy waits until another process has saved the shared state of the current clock for this one. It returns the
// size in bytes. If the job ends before this clock, it returns perdure.ErrDone.
func (s SharedState) AwaitCopy(ctx context.Context) (size int64, err error) {
	k, err := s.ownCopy()
	if err != nil {
		return 0, err
	}
	l := s.c.lock()
	l.shared.needs = true
	l.notify()
	s.c.mu.Unlock()
	pause := shortestPause
	size, err = s.c.saves.AwaitCopy(ctx, k, func() error {
		l := s.c.lock()
		defer s.c.mu.Unlock()
		if err := cmp.Or(l.waits.Pause(ctx, pause), l.usable()); err != nil {
			return err
		}
		if end := l.view.End; end > 0 && l.out.Clock() >= end {
			return perdure.ErrDone
		}
		pause = min(pause+pause/8, longestPause)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("worker: %w", err)
	}
	return size, nil
}

// TakeCopy reads the shared state that AwaitCopy has found into memory of its size, and deletes it from the store.
func (s SharedState) TakeCopy(ctx context.Context, state []byte) error {
	k, err := s.ownCopy()
	if err == nil {
		err = s.c.saves.TakeCopy(ctx, k, state)
	}
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

// ownCopy returns the name of the copy for this process.
func (s SharedState) ownCopy() (slotstate.Key, error) {
	l := s.c.lock()
	defer s.c.mu.Unlock()
	k := slotstate.Key{Slot: l.slot, Generation: l.generation, Incarnation: l.session.incarnation}
	return k, cmp.Or(l.requireSlot(clocks), l.usable())
}

// The pauses between two looks for a copy in the job's store.
const (
	shortestPause = 50 * time.Millisecond
	longestPause  = time.Second
)
