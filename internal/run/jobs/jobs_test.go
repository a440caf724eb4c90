package jobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/run/settings"
)

var write = flag.Bool("jobs.write", false, "write the golden files")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// at is when all happens.
var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newRegistry is one in a folder.
func newRegistry(t testing.TB) (r *Registry, dir string) {
	t.Helper()
	dir = t.TempDir()
	r, err := Open(t.Context(), dir)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	r.now, r.by = func() time.Time { return at }, "ann@box"
	return r, dir
}

func asked(name string) Asked {
	return Asked{
		Name: name, File: "some/job.yaml", Text: []byte("workload: own\nclocks: 30\n"), Version: "v1",
		Settings: &settings.Run{Job: perdure.JobSpec{Workload: settings.OwnWorkload, Clocks: 30}},
	}
}

func create(t testing.TB, r *Registry, name string) *Job {
	t.Helper()
	j, err := r.Create(t.Context(), asked(name))
	must(t, err)
	return j
}

// lead takes the lease of a job, and arrives.
func lead(t testing.TB, r *Registry, j *Job) (*Leader, registry.Lease, *Job) {
	t.Helper()
	l, err := r.Lead(t.Context(), j)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	lease, err := l.Acquire(t.Context(), registry.Holder{PID: 7, Host: "box", Since: at})
	must(t, err)
	now, err := l.Arrive(t.Context())
	must(t, err)
	return l, lease, now
}

// facts are those of a job that has begun.
func facts(t testing.TB, change func(f *membership.Facts)) []byte {
	t.Helper()
	var f membership.Facts
	f.Job.Consistency.Kind, f.Job.Recovery.Kind = perdure.BSP, perdure.RecoverNone
	f.View.End = 30
	change(&f)
	doc, err := json.Marshal(f)
	must(t, err)
	return doc
}

func phase(t testing.TB, r *Registry, name string, want Phase) *Job {
	t.Helper()
	j, err := r.Find(t.Context(), name)
	must(t, err)
	if j.Phase() != want {
		t.Errorf("job %s is %s; want %s", name, j.Phase(), want)
	}
	return j
}

// TestDocuments: what is written is what was written, byte by byte, but for the id, which is drawn.
func TestDocuments(t *testing.T) {
	r, dir := newRegistry(t)
	j := create(t, r, "first")
	l, _, _ := lead(t, r, j)
	must(t, l.Tell(t.Context(), func(s *State) {
		s.Phase, s.Clock, s.Address, s.Folder = Running, 7, "10.0.0.5:7000", "/job"
	}))
	wish(t, r, j)
	var all []byte
	for _, name := range []string{"job", "state", "wish"} {
		b, err := os.ReadFile(filepath.Join(dir, "first", name))
		must(t, err)
		_, body, _ := bytes.Cut(b, []byte("\n")) // the sum of the seal depends on the id
		all = append(all, bytes.ReplaceAll(body, []byte(j.ID), []byte("0123456789abcdef"))...)
	}
	golden := filepath.Join("testdata", "jobs-1.golden")
	if *write {
		must(t, os.WriteFile(golden, all, 0o666))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if !bytes.Equal(all, want) {
		t.Errorf("they are\n%swant\n%s", all, want)
	}
}

// wish has a job end, and waits for nobody.
func wish(t testing.TB, r *Registry, j *Job) {
	t.Helper()
	sealed, err := seal(wishKind, Wish{ID: j.ID, Want: stop, At: at, By: "bob@box"})
	must(t, err)
	must(t, r.catalog.Wish(t.Context(), j.Name, j.raw, sealed))
}

// TestUnpublished: what a leader had no time to publish is found in the facts by who looks, by who removes, and by the
// next leader, which publishes it.
func TestUnpublished(t *testing.T) {
	for want, change := range map[Phase]func(f *membership.Facts){
		Done:   func(f *membership.Facts) { f.View.Done = true },
		Failed: func(f *membership.Facts) { f.Failed = "why" },
	} {
		for _, by := range []string{"leader", "remover"} {
			r, _ := newRegistry(t)
			j := create(t, r, "first")
			l, lease, _ := lead(t, r, j)
			must(t, l.Tell(t.Context(), func(s *State) { s.Phase, s.Clock = Running, 29 }))
			_, err := lease.Save(t.Context(), facts(t, change), 0)
			must(t, err)
			must(t, l.Close()) // it dies
			phase(t, r, "first", Away)
			if seen, err := r.Look(t.Context(), "first"); err != nil || seen.Phase() != want {
				t.Errorf("who looks sees %v, %v", seen, err)
			}
			if by == "remover" {
				must(t, r.Remove(t.Context(), &bytes.Buffer{}, "first", false))
				continue
			}
			_, _, now := lead(t, r, j)
			if now.Phase() != want {
				t.Errorf("the next leader finds it %s", now.Phase())
			}
			if is := phase(t, r, "first", want); want == Done && is.State.Clock != 30 || want == Failed &&
				is.State.Why != "why" {
				t.Errorf("it is %+v", is.State)
			}
		}
	}
}

// TestLateLeader: one whose lease was taken away publishes nothing more, and does not find its job when there is
// another of the same name.
func TestLateLeader(t *testing.T) {
	r, dir := newRegistry(t)
	j := create(t, r, "first")
	old, _, _ := lead(t, r, j)
	running := func(clock perdure.Clock) func(s *State) {
		return func(s *State) { s.Phase, s.Clock = Running, clock }
	}
	must(t, old.Tell(t.Context(), running(1)))
	must(t, os.Remove(filepath.Join(dir, "first", "facts.lock")))
	next, lease, now := lead(t, r, j)
	if now.State.Clock != 1 {
		t.Errorf("the next one finds %+v", now.State)
	}
	must(t, next.Tell(t.Context(), running(2)))
	if err := old.Tell(t.Context(), running(3)); !errors.Is(err, registry.ErrLost) {
		t.Errorf("a late leader publishes: %v", err)
	}
	if err := old.Conclude(t.Context(), "stopped", 3); !errors.Is(err, registry.ErrLost) {
		t.Errorf("a late leader ends it: %v", err)
	}
	if is := phase(t, r, "first", Running); is.State.Clock != 2 {
		t.Errorf("it is at clock %d", is.State.Clock)
	}
	must(t, next.Conclude(t.Context(), "stopped at clock 2", 2))
	must(t, lease.Release())
	phase(t, r, "first", Stopped)
	must(t, r.Remove(t.Context(), &bytes.Buffer{}, "first", false))
	if _, err := next.There(t.Context()); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("a job that was removed is there: %v", err)
	}
	create(t, r, "first")
	if _, err := next.There(t.Context()); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("another job is the same: %v", err)
	}
	phase(t, r, "first", Waiting)
}

// TestStop: who leads hears that a job is to end, who comes later, too; who asks is told what came of it.
func TestStop(t *testing.T) {
	r, _ := newRegistry(t)
	says := func(name, want string) {
		t.Helper()
		var out bytes.Buffer
		if err := r.Stop(t.Context(), &out, name); err != nil || !strings.Contains(out.String(), want) ||
			strings.Count(out.String(), "\n") != 1 {
			t.Errorf("it says %q, %v; want one line with %q", out.String(), err, want)
		}
	}
	j := create(t, r, "new")
	says("new", "nobody leads the job now")
	phase(t, r, "new", Stopping)
	_, _, now := lead(t, r, j)
	if now.Phase() != Stopped {
		t.Errorf("nobody has begun it, and it is %s", now.Phase())
	}

	j = create(t, r, "led")
	l, lease, _ := lead(t, r, j)
	_, err := lease.Save(t.Context(), facts(t, func(*membership.Facts) {}), 0)
	must(t, err)
	if stops, err := l.Wanted(t.Context()); stops != nil || err != nil {
		t.Errorf("%v, %v", stops, err)
	}
	heard := make(chan error, 1)
	go func() { // as a coordinator does
		for {
			stops, err := l.Wanted(t.Context())
			if err != nil || stops != nil {
				heard <- errors.Join(err, l.Tell(t.Context(), func(s *State) { s.Phase, s.Clock = Stopping, 5 }))
				return
			}
			<-time.After(time.Millisecond)
		}
	}()
	says("led", "job led is stopping, at clock 5: its leader has heard it")
	must(t, <-heard)
	must(t, l.Close()) // it dies
	phase(t, r, "led", Stopping)
	l, _, now = lead(t, r, j)
	if stops, err := l.Wanted(t.Context()); stops == nil || err != nil || now.Phase() != Stopping {
		t.Errorf("the next one hears %v, %v; the job is %s", stops, err, now.Phase())
	}
	must(t, l.Conclude(t.Context(), "stopped at clock 6", 6))
	if is := phase(t, r, "led", Stopped); is.State.Clock != 6 || is.State.Why != "stopped at clock 6" {
		t.Errorf("it is %+v", is.State)
	}
	if err := r.Stop(t.Context(), &bytes.Buffer{}, "led"); !errors.Is(err, perdure.ErrRefused) {
		t.Errorf("it is stopped again: %v", err)
	}
}

// TestTell: what has not changed is not written again.
func TestTell(t *testing.T) {
	r, dir := newRegistry(t)
	l, _, _ := lead(t, r, create(t, r, "first"))
	for range 2 {
		must(t, l.Tell(t.Context(), func(s *State) { s.Phase = Running }))
		must(t, os.WriteFile(filepath.Join(dir, "first", "state"), []byte("mine"), 0o666))
	}
	if b, err := os.ReadFile(filepath.Join(dir, "first", "state")); err != nil || string(b) != "mine" {
		t.Errorf("%q, %v", b, err)
	}
}
