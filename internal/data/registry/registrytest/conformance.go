// Package registrytest provides the tests that every registry must pass ([Run], [Linearizable]) and an in-memory etcd
// server ([NewEtcd]). It is for tests only.
package registrytest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/data/registry"
)

// Clients opens clients of one registry, each like a separate process. They are closed when the test ends.
type Clients func(t testing.TB) registry.Registry

// Implementation is an implementation under test.
type Implementation struct {
	Name        string
	VirtualTime bool // run in virtual time
	// New returns a func that opens clients of a new registry, and one that takes the lease away from a live holder.
	New func(t testing.TB) (open Clients, expire func())
}

// Run runs the conformance suite.
func Run(t *testing.T, s Implementation) {
	cases := []struct {
		name string
		run  func(t *testing.T, open Clients, expire func())
	}{
		{"compare and swap", testCompareAndSwap},
		{"documents are copied", testCopies},
		{"one of many writers wins", testManyWriters},
		{"what was saved outlives its client", testReopen},
		{"closed and cancelled", testClosed},
		{"one has the lease", testOneHolder},
		{"a lease that ended saves nothing", testEndedLease},
		{"a lease that was taken away", testExpiredLease},
	}
	for _, c := range cases {
		run := func(t *testing.T) {
			open, expire := s.New(t)
			c.run(t, open, expire)
		}
		t.Run(s.Name+"/"+c.name, func(t *testing.T) {
			if s.VirtualTime {
				synctest.Test(t, run)
				return
			}
			run(t)
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// someone is a holder with an arbitrary wall-clock time.
var someone = registry.Holder{PID: 7, Host: "box", Since: time.Date(1970, 1, 1, 1, 2, 3, 0, time.UTC)}

func acquire(t testing.TB, r registry.Registry) registry.Lease {
	t.Helper()
	l, err := r.Acquire(t.Context(), someone)
	must(t, err)
	return l
}

func save(t testing.TB, l registry.Lease, doc string, previous uint64) uint64 {
	t.Helper()
	revision, err := l.Save(t.Context(), []byte(doc), previous)
	must(t, err)
	return revision
}

func wantDoc(t testing.TB, r registry.Registry, doc string, revision uint64) {
	t.Helper()
	got, at, err := r.Load(t.Context())
	if err != nil || string(got) != doc || at != revision {
		t.Errorf("got %q at revision %d, error %v; want %q at %d", got, at, err, doc, revision)
	}
}

func wantError(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) || strings.Contains(got.Error(), "\n") {
		t.Errorf("%s: got error %v, want one line that wraps %q", what, got, want)
	}
}

func testCompareAndSwap(t *testing.T, open Clients, _ func()) {
	r, other := open(t), open(t)
	l := acquire(t, r)
	wantDoc(t, r, "", 0)
	_, err := l.Save(t.Context(), []byte("x"), 1)
	wantError(t, "saving over a revision that never was", err, registry.ErrConflict)
	first := save(t, l, "one\n", 0)
	wantDoc(t, r, "one\n", first)
	wantDoc(t, other, "one\n", first)
	_, err = l.Save(t.Context(), []byte("x"), 0)
	wantError(t, "saving over an old revision", err, registry.ErrConflict)
	_, err = l.Save(t.Context(), []byte("one\n"), 0)
	wantError(t, "saving the same over an old revision", err, registry.ErrConflict)
	wantDoc(t, r, "one\n", first)
	second := save(t, l, "", first)
	if second <= first || first == 0 {
		t.Errorf("revisions do not grow: %d, then %d", first, second)
	}
	wantDoc(t, r, "", second)
	wantDoc(t, other, "", second)
}

func testCopies(t *testing.T, open Clients, _ func()) {
	r := open(t)
	doc := []byte("one")
	revision, err := acquire(t, r).Save(t.Context(), doc, 0)
	must(t, err)
	doc[0] = 'x'
	got, _, err := r.Load(t.Context())
	must(t, err)
	got[1] = 'x'
	wantDoc(t, r, "one", revision)
}

func testManyWriters(t *testing.T, open Clients, _ func()) {
	r := open(t)
	l := acquire(t, r)
	const writers = 8
	var errs [writers]error
	var revisions [writers]uint64
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() { revisions[i], errs[i] = l.Save(t.Context(), []byte{byte(i)}, 0) })
	}
	wg.Wait()
	won := 0
	for i, err := range errs {
		if err == nil {
			won++
			wantDoc(t, r, string([]byte{byte(i)}), revisions[i])
		} else {
			wantError(t, "losing", err, registry.ErrConflict)
		}
	}
	if won != 1 {
		t.Errorf("%d writers succeeded, want 1", won)
	}
}

func testReopen(t *testing.T, open Clients, _ func()) {
	var revision uint64
	for _, doc := range []string{"one", "two", "three"} {
		r := open(t)
		revision = save(t, acquire(t, r), doc, revision)
		must(t, r.Close())
		wantDoc(t, open(t), doc, revision)
	}
}

func testClosed(t *testing.T, open Clients, _ func()) {
	r := open(t)
	l := acquire(t, r)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	try := func(ctx context.Context, want error) {
		t.Helper()
		_, _, err := r.Load(ctx)
		wantError(t, "Load", err, want)
		_, err = l.Save(ctx, nil, 0)
		wantError(t, "Save", err, want)
		_, err = r.Acquire(ctx, someone)
		wantError(t, "Acquire", err, want)
	}
	try(cancelled, context.Canceled)
	wantDoc(t, r, "", 0)
	must(t, r.Close())
	must(t, r.Close())
	try(t.Context(), registry.ErrClosed)
	wantDoc(t, open(t), "", 0)
}

func testOneHolder(t *testing.T, open Clients, _ func()) {
	a, b := open(t), open(t)
	l := acquire(t, a)
	refused := func(by registry.Registry) {
		t.Helper()
		_, err := by.Acquire(t.Context(), registry.Holder{PID: 8})
		wantError(t, "a second holder", err, registry.ErrHeld)
		if !strings.Contains(err.Error(), "pid 7 on box since 1970-01-01T01:02:03Z") {
			t.Errorf("%q does not name the holder, its host and time", err)
		}
	}
	refused(b)
	refused(a)
	must(t, l.Release())
	must(t, l.Release())
	l = acquire(t, b)
	refused(a)
	must(t, b.Close())
	<-l.Done()
	l = acquire(t, a)
	must(t, l.Release())
	l = acquire(t, a)
	refused(open(t))
	must(t, open(t).Close()) // must not release leases of other clients
	save(t, l, "one", 0)
	must(t, a.Close())
	<-l.Done()
}

func testEndedLease(t *testing.T, open Clients, _ func()) {
	a, b := open(t), open(t)
	old := acquire(t, a)
	one := save(t, old, "one", 0)
	select {
	case <-old.Done():
		t.Error("Done is closed for a valid lease")
	default:
	}
	must(t, old.Release())
	<-old.Done()
	_, err := old.Save(t.Context(), []byte("late"), one)
	wantError(t, "Save after Release", err, registry.ErrLost)
	held := acquire(t, b)
	_, err = old.Save(t.Context(), []byte("late"), one)
	wantError(t, "Save while another has the lease", err, registry.ErrLost)
	must(t, old.Release()) // must not affect the new holder
	two := save(t, held, "two", one)
	wantDoc(t, a, "two", two)
}

func testExpiredLease(t *testing.T, open Clients, expire func()) {
	a, b := open(t), open(t)
	old := acquire(t, a)
	one := save(t, old, "one", 0)
	expire()
	// The next holder has not saved yet, so checking only the revision would not suffice.
	held := acquire(t, b)
	_, err := old.Save(t.Context(), []byte("late"), one)
	wantError(t, "Save with a lease that was taken away", err, registry.ErrLost)
	wantDoc(t, b, "one", one)
	two := save(t, held, "two", one)

	expire()
	<-held.Done() // noticed without a Save
	_, err = held.Save(t.Context(), []byte("late"), two)
	wantError(t, "Save with a lease that was taken away", err, registry.ErrLost)
	must(t, old.Release())
	must(t, held.Release())
	l := acquire(t, a)
	save(t, l, "three", two)
	select {
	case <-l.Done():
		t.Error("ending older leases also ended a newer one")
	default:
	}
}
