package statestore

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// writeA writes a state of one byte.
func writeA(_ context.Context, w io.Writer) error {
	_, err := w.Write([]byte("a"))
	return err
}

// TestSaves checks that opening a store is retried without limit after a transient error and ten times otherwise, and
// that the reason is reported. States that are dropped meanwhile are not saved.
func TestSaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := store.NewDir(disk.NewMemory(), "c")
		var fails atomic.Pointer[error]
		var sent atomic.Int64
		failing := func(err error) { fails.Store(&err) }
		failing(nil)
		s := &States{
			Log: slog.New(slog.DiscardHandler), OnChange: func() { sent.Add(1) },
			Open: func(context.Context, string) (store.Store, error) {
				return in, errors.Join(*fails.Load(), in.Prepare())
			},
		}
		key := slotstate.Key{Slot: 3, Generation: 1, Incarnation: 2}
		start := func() *Save {
			sv, err := s.Begin(t.Context(), key, 0, 1, writeA, func() {})
			if err != nil {
				t.Fatal(err)
			}
			return sv
		}
		if _, err := s.Begin(t.Context(), key, 0, 0, nil, nil); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("without a store: %v", err)
		}
		if _, err := s.Load(t.Context(), slotstate.Ref{}); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("without a store: %v", err)
		}
		s.At("c", false)
		failing(store.WithKind(store.ErrUnavailable, errors.New("away")))
		dropped, sv := start(), start()
		dropped.Drop()
		time.Sleep(time.Minute)
		synctest.Wait()
		ended, _ := sv.Ended()
		if ended || sent.Load() == 0 || !strings.Contains(s.WaitReason(), "cannot save the state of slot 3: away") {
			t.Errorf("ended %t, told %d times why: %q", ended, sent.Load(), s.WaitReason())
		}
		failing(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		if ended, err := sv.Ended(); !ended || err != nil || s.WaitReason() != "" {
			t.Errorf("ended %t, %v; waits: %q", ended, err, s.WaitReason())
		}
		if ended, err := dropped.Ended(); !ended || err == nil {
			t.Errorf("the dropped state: %t, %v", ended, err)
		}
		if got, err := s.Load(t.Context(), sv.Ref); err != nil || string(got) != "a" {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := s.Load(
			t.Context(),
			slotstate.Ref{Key: slotstate.Key{Slot: 3, Generation: 1, Incarnation: 2, Number: 1}},
		); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the dropped state: %v", err)
		}
		failing(store.WithKind(store.ErrDenied, errors.New("denied")))
		began := time.Now()
		_, err := s.Load(t.Context(), sv.Ref)
		if took := time.Since(began); !errors.Is(err, store.ErrDenied) || took != 9*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// TestReach checks that a store in the run's directory is used where that directory exists. Elsewhere a state is
// rejected immediately and not written to a directory that only has the same name.
func TestReach(t *testing.T) {
	run := t.TempDir()
	opened := 0
	s := &States{
		Open: func(context.Context, string) (store.Store, error) {
			opened++
			return store.NewDir(disk.NewMemory(), "c"), nil
		},
		OnChange: func() {}, Log: slog.New(slog.DiscardHandler),
	}
	if err := s.CheckReachable(); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("without a store: %v", err)
	}
	for _, c := range []struct {
		where string
		local bool
		here  bool
	}{
		{"file://" + run + "/checkpoint", true, false},
		{"file://" + run + "/checkpoint", false, true},
		{"s3://bucket/a", false, true},
	} {
		s.At(c.where, c.local)
		if err := s.CheckReachable(); errors.Is(err, perdure.ErrUsage) == c.here {
			t.Errorf("%s, local %v: %v", c.where, c.local, err)
		}
	}
	s.At("file://"+run+"/checkpoint", true)
	_, err := s.Begin(t.Context(), slotstate.Key{}, 0, 0, nil, func() {})
	if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), run) || opened > 0 {
		t.Errorf("a state was taken that cannot be kept: %v, and the store was opened %d times", err, opened)
	}
	if _, err := s.Load(t.Context(), slotstate.Ref{}); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("a state that is elsewhere: %v", err)
	}
	if err := os.WriteFile(filepath.Join(run, "run.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckReachable(); err != nil {
		t.Errorf("where the run's folder is: %v", err)
	}
}

// TestDraft checks that a slot has one draft, which a later one replaces, and that a damaged one does not count.
func TestDraft(t *testing.T) {
	in := store.NewDir(disk.NewMemory(), "c")
	s := &States{
		Log: slog.New(slog.DiscardHandler), OnChange: func() {},
		Open: func(context.Context, string) (store.Store, error) { return in, in.Prepare() },
	}
	s.At("c", false)
	loads := func(slot perdure.Slot, want string) {
		t.Helper()
		if got, err := s.LoadDraft(t.Context(), slot); string(got) != want || err != nil {
			t.Errorf("the draft of slot %d is %q, %v; want %q", slot, got, err, want)
		}
	}
	loads(3, "")
	for _, text := range []string{"first", "second"} {
		write := func(_ context.Context, w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		}
		if err := s.Put(t.Context(), slotstate.Draft(3), int64(len(text)), write); err != nil {
			t.Fatal(err)
		}
		loads(3, text)
	}
	loads(2, "")
	damaged := func(w io.Writer) error {
		_, err := io.WriteString(w, strings.Repeat("x", 100))
		return err
	}
	if err := in.Put(slotstate.Draft(2).Name(), damaged); err != nil {
		t.Fatal(err)
	}
	loads(2, "")
	for range 2 {
		if err := s.DeleteDraft(t.Context(), 3); err != nil {
			t.Error(err)
		}
		loads(3, "")
	}
}
