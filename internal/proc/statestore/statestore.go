// Package statestore gives a process of a job access to the slot states in the job's store. A state that is too large
// to travel with an update goes there. A [States] saves one state at a time while the program continues, and reads
// states back. It retries failed operations, and WaitReason returns the reason for a wait. Package slotstate decides
// when a state is saved, and defines its reference. All methods may be called concurrently.
package statestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// tries is the max number of attempts to save or read a state. Attempts that fail because the store is full or
// unavailable do not count. pause is the time between two attempts.
const (
	tries = 10
	pause = time.Second
)

// States is a process's access to the job's store.
type States struct {
	Open     func(ctx context.Context, where string) (store.Store, error)
	OnChange func() // called when the result of WaitReason changes
	Log      *slog.Logger

	mu         sync.Mutex // guards the fields below; never held while waiting
	where      string
	local      bool   // where is in the run's directory
	number     uint64 // of saves started
	waitReason string
	lost       int64         // states given to the program that were older than the last one
	older      perdure.Clock // by how many clocks at most
}

// Save is the save of one state.
type Save struct {
	Ref    slotstate.Ref // once the save has succeeded
	Clock  perdure.Clock // in which the program saved it
	cancel context.CancelFunc
	ended  chan struct{} // closed when the state is stored, or the save has failed
	err    error
}

// At sets the store's location; "": the job has none. local reports whether it is in the run's directory, on the
// coordinator's machine.
func (s *States) At(where string, local bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.where, s.local = where, local
}

// CheckReachable returns an error if this machine cannot reach the store. The default store is in the run's directory,
// which is on the coordinator's machine.
func (s *States) CheckReachable() error {
	s.mu.Lock()
	where, local := s.where, s.local
	s.mu.Unlock()
	if where == "" {
		return errNoStore
	}
	l, err := store.ParseLocation(where)
	dir, is := l.Dir()
	if !local || err != nil || !is {
		return nil
	}
	run := filepath.Dir(dir)
	if _, err := os.Stat(filepath.Join(run, "run.json")); errors.Is(err, fs.ErrNotExist) {
		return perdure.Usagef("states larger than 1 MiB are kept in %s on the coordinator's machine, which this "+
			"machine cannot reach; set a store in the job's file, such as store: s3://BUCKET/PREFIX, or file:///DIR "+
			"that all machines share", run)
	}
	return nil
}

// WaitReason returns the reason for waiting for the store; "": none.
func (s *States) WaitReason() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waitReason
}

// RecordLoaded records that the program was given a state, and by how many clocks at most it is older than the last
// acknowledged one.
func (s *States) RecordLoaded(older perdure.Clock) {
	if older == 0 {
		return
	}
	s.mu.Lock()
	s.lost, s.older = s.lost+1, max(s.older, older)
	s.mu.Unlock()
	s.OnChange()
}

// Lost returns how many states given to the program were older than the last acknowledged one, and by how many clocks
// at most.
func (s *States) Lost() (n int64, older perdure.Clock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost, s.older
}

// Source writes a state. It is called again if an attempt to store the state has failed. It must return when ctx
// ends, because the state is then no longer needed.
type Source func(ctx context.Context, w io.Writer) error

// Begin starts to save a state of n bytes in a clock, and calls over when the save has succeeded or failed. key
// identifies the slot and process.
func (s *States) Begin(
	ctx context.Context, key slotstate.Key, clock perdure.Clock, n int64, write Source, over func(),
) (*Save, error) {
	if err := s.CheckReachable(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number++
	key.Number = s.number
	ctx, cancel := context.WithCancel(ctx)
	sv := &Save{Clock: clock, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer over()
		defer close(sv.ended)
		defer cancel()
		sv.Ref, sv.err = s.put(ctx, key, n, write)
	}()
	return sv, nil
}

// Put saves a state under a key and returns once the store has it.
func (s *States) Put(ctx context.Context, key slotstate.Key, n int64, write Source) error {
	_, err := s.put(ctx, key, n, write)
	return err
}

func (s *States) put(ctx context.Context, key slotstate.Key, n int64, write Source) (
	ref slotstate.Ref, err error,
) {
	err = s.retry(ctx, "save", key.Slot, func(in store.Store) (err error) {
		ref, err = store.PutState(ctx, in, key, n, func(w io.Writer) error { return write(ctx, w) })
		return err
	})
	return ref, err
}

// Ended reports whether the save has ended; err is nil if it succeeded.
func (sv *Save) Ended() (ended bool, err error) {
	select {
	case <-sv.ended:
		return true, sv.err
	default:
		return false, nil
	}
}

// Drop cancels the save: no update will refer to the state, or the save has ended.
func (sv *Save) Drop() { sv.cancel() }

// Load reads a state. Its error wraps fs.ErrNotExist if the store does not have it.
func (s *States) Load(ctx context.Context, ref slotstate.Ref) (state []byte, err error) {
	err = s.retry(ctx, "read", ref.Slot, func(in store.Store) (err error) {
		state, err = store.GetState(in, ref)
		return err
	})
	return state, err
}

// AwaitCopy waits until the store has the state with a key, and returns its size. It calls pause between two looks for
// the state. An error of pause ends the wait.
func (s *States) AwaitCopy(ctx context.Context, key slotstate.Key, pause func() error) (size int64, err error) {
	var ended error
	err = s.retry(ctx, "read", key.Slot, func(in store.Store) (err error) {
		for {
			if size, err = store.UnreferencedStateSize(in, key.Name()); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if ended = pause(); ended != nil {
				return nil
			}
		}
	})
	return size, cmp.Or(ended, err)
}

// TakeCopy reads the state with a key into memory of its size, and deletes it.
func (s *States) TakeCopy(ctx context.Context, key slotstate.Key, state []byte) error {
	return s.retry(ctx, "read", key.Slot, func(in store.Store) error {
		err := store.GetUnreferencedState(in, key.Name(), state)
		if err == nil {
			_ = in.Delete(key.Name()) // otherwise the next state that this process saves supersedes it
		}
		return err
	})
}

// LoadDraft returns a slot's draft; nil: it does not exist, or is damaged. The caller owns the slice.
func (s *States) LoadDraft(ctx context.Context, slot perdure.Slot) (state []byte, err error) {
	name := slotstate.Draft(slot).Name()
	err = s.retry(ctx, "read", slot, func(in store.Store) error {
		n, err := store.UnreferencedStateSize(in, name)
		if err != nil || n < 0 {
			return err
		}
		state = make([]byte, n)
		return store.GetUnreferencedState(in, name, state)
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, store.ErrCorrupt) {
		return nil, nil
	}
	return state, err
}

// DeleteDraft deletes a slot's draft.
func (s *States) DeleteDraft(ctx context.Context, slot perdure.Slot) error {
	return s.retry(ctx, "delete", slot, func(in store.Store) error {
		return in.Delete(slotstate.Draft(slot).Name())
	})
}

var errNoStore = perdure.Usagef("the job has no store for states that are too large to travel with an update; set a " +
	"store in the job's file")

// retry runs do on the store until it succeeds, or a retry cannot succeed.
func (s *States) retry(ctx context.Context, what string, slot perdure.Slot, do func(in store.Store) error) error {
	s.mu.Lock()
	where := s.where
	s.mu.Unlock()
	if err := s.CheckReachable(); err != nil {
		return err
	}
	var in store.Store
	useless := func(err error) bool {
		return ctx.Err() != nil || errors.Is(err, store.ErrCorrupt) || errors.Is(err, fs.ErrNotExist) ||
			errors.Is(err, perdure.ErrUsage) // the program cannot write its state
	}
	again := disk.Retry{MaxAttempts: tries, Pause: pause, Permanent: useless, Retryable: store.Retryable}
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
			s.Log.Warn("cannot "+what+" a state in the job's store; retrying", "err", err)
			s.waits(fmt.Sprintf("%scannot %s the state of slot %d: %v", protocol.StoreWaitPrefix, what, slot, err))
		}
		return err
	})
	s.waits("")
	return err
}

// waits records why the store is waited for.
func (s *States) waits(why string) {
	s.mu.Lock()
	news := s.waitReason != why
	s.waitReason = why
	s.mu.Unlock()
	if news {
		s.OnChange()
	}
}
