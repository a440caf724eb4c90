package terminal

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestPanelCoversCtrlC checks that output overwrites the ^C that the terminal shows after the panel.
func TestPanelCoversCtrlC(t *testing.T) {
	var out bytes.Buffer
	v := &panel{plainView: &plainView{out: &out}, lines: 3}
	v.Event(&State{}, wire.Event{Kind: "closing", Text: "the job is ending"})
	if !strings.HasPrefix(out.String(), "\r\x1b[3A\x1b[J") || !strings.Contains(out.String(), "the job is ending\n") {
		t.Errorf("drawn: %q", out.String())
	}
}

// TestStatusLine checks that a run's line has its known values and omits unknown ones.
func TestStatusLine(t *testing.T) {
	for want, now := range map[string]State{
		"   0.00s  clock     0 of 300  0.0 MB/s": {Clocks: 300},
		"   0.00s  clock     0  0.0 MB/s":        {Clocks: 1_000_000_000}, // its programs end it
		"   2.50s  clock    50 of 100  loss 0.5000  test accuracy 0.8000  25 clocks/s  1.5 MB/s  2s left": {
			Since: 2500 * time.Millisecond, Clocks: 300, Progress: wire.Progress{Clock: 50, End: 100},
			TrainLoss: new(0.5), TestAccuracy: new(0.8), ClocksPerSecond: new(25.0), MBPerSecond: 1.5,
		},
		"   1.00s  clock     5 of 10  rmse 1.2500  test rmse 0.9140  0.25 clocks/s  0.0 MB/s  7 clocks in outages  " +
			"20s left": {
			Since: time.Second, Clocks: 10, Progress: wire.Progress{Clock: 5}, TrainLoss: new(0.5),
			TrainRMSE: new(1.25),
			TestRMSE:  new(0.914), ClocksPerSecond: new(0.25), OutageClocks: 7,
		},
		"   1.00s  clock     5 of 10  0.00 clocks/s  0.0 MB/s": { // the remaining time is too long to show
			Since: time.Second, Clocks: 10, Progress: wire.Progress{Clock: 5}, ClocksPerSecond: new(1e-9),
		},
	} {
		if got := status(&now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestPlainView checks that an event is shown immediately, the progress once per second, and the result at the end.
func TestPlainView(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		v := &plainView{out: &out}
		now := &State{Clocks: 10}
		v.Message("it is large")
		v.Start(&settings.Run{Job: perdure.JobSpec{Workload: "softmax", Slots: 3, Servers: 2, Shards: 6}}, "runs/x")
		v.Event(now, wire.Event{Kind: "serving", Clock: 7, Text: "it serves again"})
		v.Event(now, wire.Event{Kind: "checkpoint", Clock: 7, Text: "an internal detail"})
		for range 5 {
			v.Progress(now)
			time.Sleep(400 * time.Millisecond)
		}
		v.End(&rundir.Summary{Clocks: 10}, "runs/x", nil)
		v.Close()
	})
	all := out.String()
	for want, times := range map[string]int{
		"it is large\n": 1, "softmax, ": 1, ": 3 workers, 2 servers, 6 shards, seed 0; folder runs/x\n": 1,
		"clock     7  it serves again\n": 1, "internal detail": 0, "clock     0 of 10": 2,
		"\ndone: 10 clocks in 0.0 s\nno faults, updates lost not known, clocks redone not known\n": 1,
	} {
		if n := strings.Count(all, want); n != times {
			t.Errorf("%q is shown %d times, want %d:\n%s", want, n, times, all)
		}
	}
}

// TestPlainViewComplete checks that the progress of a complete job is shown once. While the chain of a shard changes, a
// job may be incomplete again. Then its progress is shown again.
func TestPlainViewComplete(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		v := &plainView{out: &out}
		for _, complete := range []bool{false, true, true, true, false, true, true} {
			v.Progress(&State{Clocks: 10, Progress: wire.Progress{Clock: 10, Complete: complete}})
			time.Sleep(2 * time.Second)
		}
	})
	if n := strings.Count(out.String(), "clock    10 of 10"); n != 4 {
		t.Errorf("the progress is shown %d times; want 4:\n%s", n, out.String())
	}
}

// TestGoalLine checks that the evaluation that reached the goal is shown if the model has another value.
func TestGoalLine(t *testing.T) {
	met := rundir.Goal{Metric: "accuracy", Value: 0.83, Clock: 25, Met: new(0.83), Final: new(0.825)}
	line, differs := goalLine(&rundir.Summary{Goal: &met, Clocks: 27})
	if !differs || !strings.Contains(line[1], "accuracy 0.8300 at clock 25") ||
		!strings.Contains(line[1], "of clock 27") {
		t.Errorf("the line says: %s", line)
	}
	met.Final = new(0.83)
	if line, differs := goalLine(&rundir.Summary{Goal: &met}); differs {
		t.Errorf("the model has the same value, and the line is: %s", line)
	}
}

func TestTimeLine(t *testing.T) {
	for want, split := range map[string]*rundir.TimeSplit{
		"not known": nil,
		"compute 71 %, waiting for staleness 20 %, communication 9 %": {
			Compute: 0.714, Staleness: 0.196,
			Communication: 0.09,
		},
	} {
		if got := timeLine(split); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestKept(t *testing.T) {
	for strategy, want := range map[string]string{
		"none": "", "chain:2": "", "resend:5": ", checkpoint/", "chain:2,checkpoint:5": ", checkpoint/",
		"stateless": ", log/, snapshots/",
	} {
		r, err := perdure.ParseRecovery(strategy)
		if err != nil {
			t.Fatal(err)
		}
		if got := resumableDirs(r, true); got != want {
			t.Errorf("%s: %q", strategy, got)
		}
	}
	if got := resumableDirs(perdure.Recovery{Kind: perdure.RecoverStateless}, false); got != ", snapshots/" {
		t.Errorf("with an external log: %q", got)
	}
}
