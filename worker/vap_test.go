package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/worker"
)

// vapped is a job with two slots under vap:1 in which slot 1 has read rows 1, 2 and 4.
type vapped struct {
	*cluster
	ws   [2]*worker.Client
	taps [2]*tap
	ts   [2]*worker.Table
}

var seenRows = []perdure.RowID{1, 2, 4}

func inVAP(t *testing.T, test func(v *vapped)) {
	t.Helper()
	inCluster(t, "vap:1", "none", 2, 0, func(c *cluster) {
		v := &vapped{cluster: c}
		v.ws, v.taps, v.ts = twoTapped(c)
		c.reads(v.ts[1], false, 0, seenRows...)
		test(v)
	})
}

// goes ends a clock of slot 0 in which it adds to row 1, and expects no wait.
func (v *vapped) goes(delta float32, clock perdure.Clock) {
	v.Helper()
	v.incRows(v.ts[0], delta, 1)
	start := time.Now()
	if v.clock(v.ws[0], clock); time.Since(start) != 0 {
		v.Fatalf("Clock to %d waited %v", clock, time.Since(start))
	}
	v.pass(10 * time.Millisecond)
}

// waits is goes for a clock that must wait until something else happens.
func (v *vapped) waits(delta float32, ctx context.Context) chan error {
	v.Helper()
	v.incRows(v.ts[0], delta, 1)
	done := go1(func() error { _, err := v.ws[0].Clock(ctx); return err })
	v.pass(500 * time.Millisecond)
	if len(done) > 0 {
		v.Fatalf("Clock did not wait: %v", <-done)
	}
	return done
}

// ends expects a waiting Clock to return within a time.
func (v *vapped) ends(done chan error, within time.Duration, why string) {
	v.Helper()
	start := time.Now()
	if err := <-done; err != nil || time.Since(start) > within {
		v.Fatalf("%s: Clock: %v after %v", why, err, time.Since(start))
	}
}

// TestInTransit checks that under vap the sum of a slot's updates in transit stays at or below V/√(c+1): Clock waits
// until the other slots have seen some of them.
func TestInTransit(t *testing.T) {
	inVAP(t, func(v *vapped) {
		v.goes(0.9, 1)
		v.reads(v.ts[1], true, 0.9, 1) // it was pushed, and the read waits for no other slot
		v.goes(-0.6, 2)
		v.goes(0.5, 3)
		v.taps[1].close()
		v.goes(0.25, 4)
		v.goes(0.15, 5)
		v.goes(-0.4, 6) // values that cancel out are not in transit
		v.goes(0.3, 7)
		done := v.waits(0.1, v.ctx) // 0.4 in total, and 1/√8 is less
		v.taps[1].open()
		v.ends(done, 10*time.Millisecond, "when all was seen")
		v.pass(10 * time.Millisecond)
		want := float32(0)
		for _, d := range []float32{0.9, -0.6, 0.5, 0.25, 0.15, -0.4, 0.3, 0.1} {
			want += d
		}
		v.reads(v.ts[1], true, want, 1)
		if n := v.ws[0].Counters().BeyondBound; n != 0 {
			t.Errorf("%d updates are said to have been beyond the bound", n)
		}
	})
}

// TestBeyondBound checks that an update which alone exceeds the bound is sent alone and counted.
func TestBeyondBound(t *testing.T) {
	inVAP(t, func(v *vapped) {
		v.goes(5, 1)
		v.taps[1].close()
		v.goes(0.1, 2)
		done := v.waits(7, v.ctx)
		if n := v.ws[0].Counters().BeyondBound; n != 1 {
			t.Errorf("%d updates are said to have been beyond the bound, want 1", n)
		}
		v.taps[1].open()
		v.ends(done, 10*time.Millisecond, "when all was seen")
		v.pass(10 * time.Millisecond)
		if n := v.ws[0].Counters().BeyondBound; n != 2 {
			t.Errorf("%d updates are said to have been beyond the bound, want 2", n)
		}
		v.taps[1].close()
		v.goes(9, 4)
		done = v.waits(0, v.ctx) // no other update may be in transit with one that exceeds the bound
		v.taps[1].open()
		v.ends(done, 10*time.Millisecond, "when all was seen")
	})
}

// TestGate checks that no part of an update is sent before the gate, neither by Flush nor because it is large. Clock
// may be interrupted there and called again.
func TestGate(t *testing.T) {
	inVAP(t, func(v *vapped) {
		v.goes(0.1, 1)
		v.taps[1].close()
		v.goes(0.6, 2)
		updates := v.taps[0].sent(wire.KindUpdate)
		large := v.table(v.ws[0], func(s *perdure.TableSpec) { s.Name, s.Rows, s.Dim = "large", 1<<10, 1<<10 })
		if err := errors.Join(large.IncRun(0, make([]float32, 1<<20)), large.Flush(), v.ts[0].Flush()); err != nil {
			t.Fatal(err)
		}
		if err := <-v.waits(0.5, v.within(time.Second)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a Clock that was interrupted: %v", err)
		}
		if v.ws[0].Now() != 2 {
			t.Fatalf("it is clock %d then", v.ws[0].Now())
		}
		done := go1(func() error { _, err := v.ws[0].Clock(v.ctx); return err })
		v.taps[0].cut() // resent updates are not waiting updates
		v.pass(time.Second)
		if n := v.taps[0].sent(wire.KindUpdate) - updates; n > v.job.Shards || len(done) > 0 {
			t.Fatalf("%d parts of updates left before they may; %d Clocks are over", n, len(done))
		}
		v.taps[1].open()
		v.ends(done, 100*time.Millisecond, "when all was seen")
		v.pass(10 * time.Millisecond)
		if v.ws[0].Now() != 3 {
			t.Errorf("it is clock %d then", v.ws[0].Now())
		}
		v.reads(v.ts[1], true, 0.1+0.6+0.5, 1)
	})
}

// TestGateAndOthers checks that no slot waits for a reader's cache that no longer exists: the reader has dropped its
// rows, has a new connection, or is dead. If the reader is frozen, others wait until it is replaced.
func TestGateAndOthers(t *testing.T) {
	inVAP(t, func(v *vapped) {
		v.goes(0.1, 1)
		v.taps[1].close()
		v.goes(0.6, 2)
		done := v.waits(0.5, v.ctx)
		v.taps[1].cut()
		v.taps[1].open()
		v.ends(done, time.Second, "after the other slot has connected again")
		v.pass(10 * time.Millisecond)
		v.reads(v.ts[1], false, 0.1+0.6+0.5, 1)
		v.taps[1].close()
		v.goes(0.4, 4)
		done = v.waits(0.5, v.ctx)
		v.pass(5 * time.Second)
		if len(done) > 0 {
			t.Fatalf("Clock did not wait for a slot that is frozen: %v", <-done)
		}
		v.Net.Kill("worker:1")
		v.ends(done, 3*time.Second, "after the other slot was given up")
		v.taps[1].open()
		v.pass(10 * time.Millisecond)
		v.goes(0.4, 6)
		v.goes(0.4, 7)
		next, _ := v.tapped("worker:2", 1)
		table := v.table(next)
		if _, err := next.LoadState(v.ctx); err != nil {
			t.Fatal(err)
		}
		v.goes(0.4, 8)
		if got, _ := v.read(table, []perdure.RowID{1}); got < 3.29 || got > 3.31 {
			t.Errorf("the slot's next process reads %v, want 3.3", got)
		}
		v.goes(0.4, 9)
		if got, waited := v.read(table, []perdure.RowID{1}); got < 3.69 || got > 3.71 || waited != 0 {
			t.Errorf("the slot's next process reads %v after %v, want 3.7 at once", got, waited)
		}
	})
}
