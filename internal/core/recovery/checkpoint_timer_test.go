package recovery

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestDue checks when a cut is due: first after two clocks, later when the interval since the previous one has passed,
// and never without progress since the newest checkpoint.
func TestDue(t *testing.T) {
	for _, c := range []struct {
		interval         float64
		named, tick      int64
		working, durable perdure.Clock
		want             bool
	}{
		{interval: 0, tick: 5, working: 1, durable: 0, want: false},
		{interval: 0, tick: 5, working: 2, durable: 0, want: true},
		{interval: 0, tick: 5, working: 11, durable: 10, want: false},
		{interval: 2, named: 30, tick: 49, working: 9, durable: 3, want: false},
		{interval: 2, named: 30, tick: 50, working: 9, durable: 3, want: true},
		{interval: 2, named: 30, tick: 50, working: 3, durable: 3, want: false},
		{interval: 2, named: 30, tick: 50, working: 4, durable: 3, want: true},
	} {
		timer := NewTimer(0.1)
		timer.Named(c.named)
		if got := timer.Due(protocol.Saving{Interval: c.interval},
			JobProgress{c.tick, c.working, c.durable}); got != c.want {
			t.Errorf("%+v: due %v", c, got)
		}
	}
}

// TestChoice checks that measurements change the interval, and that only large changes are reported.
func TestChoice(t *testing.T) {
	timer, s := NewTimer(0.1), protocol.Saving{}
	at := func(tick int64, working perdure.Clock) JobProgress { return JobProgress{Tick: tick, Working: working} }
	step := func(what string, next protocol.Saving, sent, want string) {
		t.Helper()
		if s = next; (sent == "") != (want == "") || !strings.Contains(sent, want) {
			t.Errorf("%s: told %q, want %q", what, sent, want)
		}
	}
	next, sent := timer.Failed(s, at(10, 1), 0)
	step("a failure before the first save", next, sent, "")
	if s.Failures != 1 || s.Ran != 1 || s.Interval != 0 {
		t.Errorf("%+v", s)
	}
	timer.Due(s, at(20, 1))
	next, sent = timer.Saved(s, at(30, 11), 800, 1)
	step("the first save", next, sent,
		"checkpoints every 40 s, now about 400 clocks; "+
			"Young: a save takes 1 s, and a failure occurs every 800 s (given)")
	next, sent = timer.Saved(s, at(40, 12), 800, 1.2)
	step("a save that takes about as long", next, sent, "")
	next, sent = timer.Saved(s, at(50, 13), 800, 9)
	step("one that takes far longer", next, sent, "saving may take at most 1/20 of the time: a save takes 5.05 s")
	next, sent = timer.Failed(s, at(60, 13), 1e6)
	step("a failure, though they are rare", next, sent, "a failure occurs every 1000000 s (given)")
	if s.Failures != 2 || s.Ran != 6 {
		t.Errorf("%+v", s)
	}
}

// TestMuchOff checks that the interval changes when it and the best one differ by a factor of 1.5.
func TestMuchOff(t *testing.T) {
	for _, c := range []struct {
		interval, mtbf float64 // a save takes 1 s
		want           float64
	}{
		{40, 800, 40},
		{40, 1799, 40},
		{40, 1800, 60},
		{60, 801, 60},
		{60, 800, 40},
		{0, 800, 40},
		{15, 100, 22.5}, // the best is 20 s, and the current one saves too often
		{20, 100, 20},
	} {
		var timer Timer
		next, sent := timer.Saved(protocol.Saving{Interval: c.interval}, JobProgress{}, c.mtbf, 1)
		if next.Interval != c.want || (sent != "") != (c.want != c.interval) {
			t.Errorf("%v s, the best being by %v s between failures: %v s, told %q, want %v s", c.interval, c.mtbf,
				next.Interval, sent, c.want)
		}
	}
}

// TestPace checks that the time per clock is measured from the first call with progress to save.
func TestPace(t *testing.T) {
	timer := NewTimer(0.1)
	for _, at := range []JobProgress{{10, 1, 1}, {40, 3, 1}, {60, 23, 1}} {
		timer.Due(protocol.Saving{}, at)
	}
	_, sent := timer.Saved(protocol.Saving{}, JobProgress{80, 23, 1}, 800, 1) // 20 clocks in 4 s
	if !strings.Contains(sent, "checkpoints every 40 s, now about 200 clocks; ") {
		t.Errorf("told %q", sent)
	}
	// Clocks that are redone after a failure do not count.
	_, sent = timer.Failed(protocol.Saving{}, JobProgress{90, 5, 1}, 800)
	if !strings.Contains(sent, "checkpoints every 40 s; ") {
		t.Errorf("after a failure, told %q", sent)
	}
	timer.Due(protocol.Saving{}, JobProgress{100, 5, 1})
	timer.Failed(protocol.Saving{}, JobProgress{110, 9, 1}, 800)
	timer.Due(protocol.Saving{}, JobProgress{120, 9, 1})
	_, sent = timer.Saved(protocol.Saving{}, JobProgress{140, 19, 1}, 800, 1)
	if !strings.Contains(sent, "about 200 clocks") {
		t.Errorf("after another, told %q", sent) // 10 clocks in 2 s
	}
}
