package worker_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/testcluster"
)

// moody is a store that fails on demand.
type moody struct {
	store.Store
	why *atomic.Pointer[error]
}

func (m moody) Put(name string, write func(io.Writer) error) error {
	if why := m.why.Load(); why != nil {
		return *why
	}
	return m.Store.Put(name, write)
}

func (m moody) Open(name string) (store.Object, error) {
	if why := m.why.Load(); why != nil {
		return nil, *why
	}
	return m.Store.Open(name)
}

// saving makes a worker keep states larger than n bytes in a store that fails with the error in why.
func saving(n int, why *atomic.Pointer[error]) func(*testcluster.DialConfig) {
	return func(cfg *testcluster.DialConfig) {
		open := cfg.OpenStore
		cfg.StateBytes = n
		cfg.OpenStore = func(ctx context.Context, where string) (store.Store, error) {
			in, err := open(ctx, where)
			return moody{in, why}, err
		}
	}
}

// TestLargeState checks that the slot's next process gets a state that is too large for a message, or that looks like a
// reference. A later state replaces it, and it is deleted.
func TestLargeState(t *testing.T) {
	for _, strategy := range []string{"none", "chain:2", "checkpoint:3", "resend:3", "stateless"} {
		t.Run(strategy, func(t *testing.T) {
			inCluster(t, "bsp", strategy, 1, 0, func(c *cluster) {
				large := bytes.Repeat([]byte("large"), 3<<18)
				mark := slotstate.EmptyRef() // in a message, it would be a reference
				w := c.dial("worker:0", 0)
				c.table(w)
				for clock, state := range [][]byte{[]byte("a"), large, mark, append(large, 'b'), append(large, 'c')} {
					if err := w.SaveState(state); err != nil {
						t.Fatal(err)
					}
					state = bytes.Clone(state)
					c.clock(w, perdure.Clock(clock+1))
					if err := w.Settle(c.ctx); err != nil {
						t.Fatal(err)
					}
					for _, again := range []bool{false, true} { // its own process, then the next one
						if again {
							c.Net.Kill("worker:0")
							w.Close()
							w = c.dial("worker:0", 0)
							c.table(w)
						}
						if got, err := w.LoadState(c.ctx); err != nil || !bytes.Equal(got, state) {
							t.Fatalf("clock %d: %d bytes came back, %v; want %d", clock, len(got), err, len(state))
						}
					}
				}
				c.pass(3 * time.Second)
				there, err := store.NewDir(c.Disk, "checkpoint").List(slotstate.Prefix)
				if err != nil || len(there) > 3 {
					t.Errorf("%d states are in the store, %v: %v", len(there), err, there)
				}
			})
		})
	}
}

// TestStateStoreFails checks that a worker waits for an unavailable store and reports it. A store that rejects a state
// ends the clock with a one-line error after some attempts, and the program may save again.
func TestStateStoreFails(t *testing.T) {
	inCluster(t, "asp", "none", 1, 0, func(c *cluster) {
		var why atomic.Pointer[error]
		away, denied := store.WithKind(store.ErrUnavailable, errors.New("it is away")), store.WithKind(store.ErrDenied,
			errors.New("it is not permitted"))
		w := c.dial("worker:0", 0, saving(4, &why))
		c.table(w)
		why.Store(&away)
		if err := w.SaveState([]byte("state")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		go func() {
			c.pass(30 * time.Second)
			why.Store(nil)
		}()
		c.clock(w, 1)
		if took := time.Since(began); took < 30*time.Second {
			t.Errorf("the clock took %v", took)
		}
		why.Store(&denied)
		if err := w.SaveState([]byte("other")); err != nil {
			t.Fatal(err)
		}
		_, err := w.Clock(c.ctx)
		if !errors.Is(err, store.ErrDenied) || strings.Contains(err.Error(), "\n") ||
			!strings.Contains(err.Error(), "state-s00000-g000001-i000001-n000000000002") {
			t.Errorf("Clock gave %v", err)
		}
		if _, err := w.LoadState(c.ctx); !errors.Is(err, store.ErrDenied) {
			t.Errorf("LoadState gave %v", err)
		}
		why.Store(nil)
		if err := w.SaveState([]byte("third")); err != nil {
			t.Fatal(err)
		}
		c.clock(w, 2)
		if got, err := w.LoadState(c.ctx); err != nil || string(got) != "third" {
			t.Errorf("%q, %v", got, err)
		}
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		if err := store.NewDir(c.Disk, "checkpoint").Delete("state-s00000-g000001-i000001-n000000000003"); err != nil {
			t.Fatal(err)
		}
		_, err = w.LoadState(c.ctx)
		if err == nil || !strings.Contains(err.Error(), "n000000000003 of slot 0 is missing in checkpoint") {
			t.Errorf("LoadState of what is gone gave %v", err)
		}
	})
}
