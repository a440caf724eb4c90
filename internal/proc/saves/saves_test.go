package saves_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/store/savedstate"
	"github.com/perdure/perdure/internal/proc/saves"
)

// A store that cannot be opened is tried again: for ever where that passes, else ten times; and why is told. What is
// dropped meanwhile is not saved.
func TestSaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := store.Folder(disk.NewMemory(), "c")
		var fails atomic.Pointer[error]
		var told atomic.Int64
		failing := func(err error) { fails.Store(&err) }
		failing(nil)
		s := &saves.Saves{
			Log: slog.New(slog.DiscardHandler), Tell: func() { told.Add(1) },
			Open: func(context.Context, string) (store.Store, error) {
				return in, errors.Join(*fails.Load(), in.Prepare())
			},
		}
		key := states.Key{Slot: 3, Generation: 1, Incarnation: 2}
		begin := func() *saves.Save {
			sv, err := s.Begin(t.Context(), key, savedstate.Ref(key, []byte("a")), []byte("a"), func() {})
			if err != nil {
				t.Fatal(err)
			}
			return sv
		}
		if _, err := s.Begin(t.Context(), key, states.Ref{}, nil, nil); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("there is no store: %v", err)
		}
		if _, err := s.Load(t.Context(), states.Ref{}); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("there is no store: %v", err)
		}
		s.At("c")
		failing(store.Kind(store.ErrAway, errors.New("away")))
		dropped, sv := begin(), begin()
		dropped.Drop()
		time.Sleep(time.Minute)
		synctest.Wait()
		ended, _ := sv.Ended()
		if ended || told.Load() == 0 || !strings.Contains(s.Why(), "cannot save the state of slot 3: away") {
			t.Errorf("ended %t, told %d times why: %q", ended, told.Load(), s.Why())
		}
		failing(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		if ended, err := sv.Ended(); !ended || err != nil || s.Why() != "" {
			t.Errorf("ended %t, %v; waits: %q", ended, err, s.Why())
		}
		if ended, err := dropped.Ended(); !ended || err == nil {
			t.Errorf("what was dropped: %t, %v", ended, err)
		}
		if got, err := s.Load(t.Context(), sv.Ref); err != nil || string(got) != "a" {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := s.Load(t.Context(), dropped.Ref); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what was dropped: %v", err)
		}
		failing(store.Kind(store.ErrDenied, errors.New("denied")))
		began := time.Now()
		_, err := s.Load(t.Context(), sv.Ref)
		if took := time.Since(began); !errors.Is(err, store.ErrDenied) || took != 9*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
