package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// A state that is too large to travel with an update goes to the job's store. A stateStore saves one state at a time
// while the program continues, and reads states back. It retries what fails, and Why reports the reason for waiting.
// Package states decides when a state is saved, and what its reference means. All methods may be called concurrently.

// What cannot be saved in the store, or read from it, is tried again that number of times before it is given up;
// where the store is full or away until that has passed.
const (
	tries = 10
	pause = time.Second
)

// stateStore is a process's way to the job's store.
type stateStore struct {
	Open func(ctx context.Context, where string) (store.Store, error)
	Tell func() // why the store is waited for is another
	Log  *slog.Logger

	mu     sync.Mutex // guards what follows; no wait is under it
	where  string
	local  bool   // that is in the folder of the run
	number uint64 // of states that were begun to be saved
	why    string
	lost   int64         // states that the program was given, older than the last one
	older  perdure.Clock // by how many clocks at most
}

// stateSave is one state on its way.
type stateSave struct {
	Ref    states.Ref
	cancel context.CancelFunc
	ended  chan struct{} // closed when it is there, or given up
	err    error
}

// At sets the store's location; "": the job has none. local: it is in the run's folder, with the coordinator.
func (s *stateStore) At(where string, local bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.where, s.local = where, local
}

// Reach returns why this machine does not reach the store; nil: it may. The default store is a directory of the run's
// folder, which is on the coordinator's machine.
func (s *stateStore) Reach() error {
	s.mu.Lock()
	where, local := s.where, s.local
	s.mu.Unlock()
	if where == "" {
		return errNowhere
	}
	l, err := store.ParseLocation(where)
	dir, is := l.Folder()
	if !local || err != nil || !is {
		return nil
	}
	run := filepath.Dir(dir)
	if _, err := os.Stat(filepath.Join(run, "run.json")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: states above 1 MiB are kept in %s on the coordinator's machine, which this one does "+
			"not reach: name a store in the job's file, such as store: s3://BUCKET/PREFIX, or file:///DIR that all "+
			"machines share", perdure.ErrUsage, run)
	}
	return nil
}

// Why says why the store is waited for; "": it is not.
func (s *stateStore) Why() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// Gave notes that the program was given a state, by how many clocks at most it is older than the last one that was
// acknowledged.
func (s *stateStore) Gave(older perdure.Clock) {
	if older == 0 {
		return
	}
	s.mu.Lock()
	s.lost, s.older = s.lost+1, max(s.older, older)
	s.mu.Unlock()
	s.Tell()
}

// Lost says how many of what the program was given were older, and by how many clocks at most.
func (s *stateStore) Lost() (n int64, older perdure.Clock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost, s.older
}

// Begin begins to save a state, which belongs to it from then on, and calls over when it is there, or given up. of
// says whose it is, by which process; ref is what store.StateRef has said of it, without that.
func (s *stateStore) Begin(ctx context.Context, of states.Key, ref states.Ref, state []byte, over func()) (
	*stateSave, error,
) {
	if err := s.Reach(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number++
	ref.Key, ref.Number = of, s.number
	ctx, cancel := context.WithCancel(ctx)
	sv := &stateSave{Ref: ref, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer over()
		defer close(sv.ended)
		defer cancel()
		sv.err = s.insist(ctx, "save", of.Slot, func(in store.Store) error {
			return store.PutState(in, ref, state, ctx.Err)
		})
	}()
	return sv, nil
}

// Ended reports whether the state is there, or was given up: then err says why.
func (sv *stateSave) Ended() (ended bool, err error) {
	select {
	case <-sv.ended:
		return true, sv.err
	default:
		return false, nil
	}
}

// Drop gives it up: nobody will refer to it, or it has ended.
func (sv *stateSave) Drop() { sv.cancel() }

// Load reads a state. Its error wraps fs.ErrNotExist where there is none.
func (s *stateStore) Load(ctx context.Context, ref states.Ref) (state []byte, err error) {
	err = s.insist(ctx, "read", ref.Slot, func(in store.Store) (err error) {
		state, err = store.GetState(in, ref)
		return err
	})
	return state, err
}

var errNowhere = fmt.Errorf("%w: the coordinator has named no store, where a state that is too large to travel "+
	"with an update is to lie", perdure.ErrUsage)

// insist does something with the store until it succeeds, or it is of no use to try again.
func (s *stateStore) insist(ctx context.Context, what string, slot perdure.Slot, do func(in store.Store) error) error {
	s.mu.Lock()
	where := s.where
	s.mu.Unlock()
	if err := s.Reach(); err != nil {
		return err
	}
	var in store.Store
	useless := func(err error) bool {
		return ctx.Err() != nil || errors.Is(err, store.ErrCorrupt) || errors.Is(err, fs.ErrNotExist)
	}
	again := disk.Retry{Tries: tries, Pause: pause, Over: useless, Passes: store.Passes}
	err := again.Do(ctx, func() (err error) {
		if in == nil {
			if in, err = s.Open(ctx, where); err != nil {
				in = nil
			}
		}
		if err == nil {
			err = do(in)
		}
		if err != nil && !useless(err) {
			s.Log.Warn("cannot "+what+" a state in the job's store; it is tried again", "err", err)
			s.waits(fmt.Sprintf("%scannot %s the state of slot %d: %v", words.StoreWaits, what, slot, err))
		}
		return err
	})
	s.waits("")
	return err
}

// waits notes why the store is waited for.
func (s *stateStore) waits(why string) {
	s.mu.Lock()
	news := s.why != why
	s.why = why
	s.mu.Unlock()
	if news {
		s.Tell()
	}
}
