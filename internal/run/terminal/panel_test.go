package terminal

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/rundir"
)

// job returns the state of a job that has run for a while, with n workers.
func job(n int) *State {
	now := &State{
		Clocks: 300, Progress: wire.Progress{Clock: 231, End: 300}, LastEvent: "server 1 serves again",
		TrainLoss: new(0.4312), TestAccuracy: new(0.8431), ClocksPerSecond: new(41.0), MBPerSecond: 3.2,
	}
	for i, state := range []string{"alive", "dead"} {
		now.Progress.Members = append(now.Progress.Members,
			wire.MemberProgress{Role: wire.RoleServer, Index: i, State: state})
	}
	for i := range n {
		now.Progress.Members = append(now.Progress.Members, wire.MemberProgress{
			Role: wire.RoleWorker, Index: i, State: "alive", Clock: 231 + perdure.Clock(i%4),
		})
	}
	return now
}

// TestPicture checks the panel's content and that it fits the screen.
func TestPicture(t *testing.T) {
	v := &panel{faults: []perdure.Clock{60, 150, 400}}
	for i := range 1000 {
		v.loss.add(2 / (1 + float64(i)/100))
	}
	for _, size := range [][2]int{{70, 24}, {200, 60}, {40, 10}, {21, 8}} {
		for _, workers := range []int{0, 4, 40} {
			lines := v.picture(job(workers), size[0], size[1])
			for _, l := range lines {
				if n := utf8.RuneCountInString(l); n > size[0] {
					t.Errorf("at %v a line has %d columns: %q", size, n, l)
				}
			}
			if len(lines) >= size[1] {
				t.Errorf("at %v with %d workers there are %d lines", size, workers, len(lines))
			}
		}
	}
	got := strings.Join(v.picture(job(4), 70, 24), "\n")
	want := strings.Join([]string{
		strings.Repeat("─", 70),
		"41 clocks/s  2s left  clock 231 of 300  loss 0.4312",
		strings.Repeat("█", 14) + "╳" + strings.Repeat("█", 20) + "╳" + strings.Repeat("█", 17) +
			strings.Repeat("░", 16) + "╳",
		"", // the curve is checked below
		"servers   ●✗",
		"worker 0  ●                                          clock 231",
		"worker 1  ────●                                      clock 232 +1",
		"worker 2  ────────●                                  clock 233 +2",
		"worker 3  ────────────●                              clock 234 +3",
		"last: server 1 serves again",
	}, "\n")
	lines := strings.Split(got, "\n")
	curve := lines[3]
	lines[3] = ""
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("the panel is\n%s\nwant\n%s", got, want)
	}
	if !strings.HasPrefix(curve, "loss █▆▅") || !strings.HasSuffix(curve, "▁ 2 to 0.182") {
		t.Errorf("the curve is %q", curve)
	}
}

// TestColours checks that signs are coloured only if the terminal permits it, and mean the same without colours.
func TestColours(t *testing.T) {
	plain, coloured := &panel{}, &panel{colour: true}
	p, c := plain.picture(job(1), 70, 24), coloured.picture(job(1), 70, 24)
	if strings.Contains(strings.Join(p, ""), "\x1b") {
		t.Errorf("coloured: %q", p)
	}
	for i, l := range c {
		for _, code := range []string{"\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[0m"} {
			l = strings.ReplaceAll(l, code, "")
		}
		if l != p[i] {
			t.Errorf("%q in colours is %q", p[i], l)
		}
	}
	if servers := c[3]; !strings.Contains(servers, "\x1b[31m✗") {
		t.Errorf("a dead server is not red: %q", servers)
	}
}

// TestTrail checks that a curve of any length keeps its shape in bounded memory.
func TestTrail(t *testing.T) {
	for _, n := range []int{0, 1, 2, 255, 256, 257, 100_000} {
		var tr boundedCurve
		for i := range n {
			tr.add(float64(i))
			tr.add(math.NaN())
		}
		if len(tr.points) > maxPoints {
			t.Errorf("%d values are %d points", n, len(tr.points))
		}
		drawn := []rune(tr.draw(16))
		if n < 2 {
			if len(drawn) > 0 {
				t.Errorf("%d values are drawn as %q", n, string(drawn))
			}
			continue
		}
		for i := 1; i < len(drawn); i++ {
			if drawn[i] < drawn[i-1] {
				t.Errorf("%d rising values are drawn as %q", n, string(drawn))
			}
		}
		if n > 2 && (len(drawn) != 16 || drawn[0] != '▁' || drawn[15] != '█') {
			t.Errorf("%d values are drawn as %q", n, string(drawn))
		}
	}
	var flat boundedCurve
	for range 9 {
		flat.add(3)
	}
	if got := flat.draw(40); got != strings.Repeat("▁", 9) {
		t.Errorf("a flat curve is drawn as %q", got)
	}
}

// TestFirstLines checks the two lines about how a run ended.
func TestFirstLines(t *testing.T) {
	kill := func(at, again float64) rundir.Failure {
		return rundir.Failure{Kind: "kill", AtSeconds: at, ServingAgainAfterMs: &again}
	}
	for want, s := range map[string]rundir.Summary{
		"300 clocks in 7.3 s\nno faults, 0 updates lost, 0 clocks redone": {
			Clocks: 300, WallSeconds: 7.31, UpdatesLost: new(int64(0)), ClocksRedone: new(int64(0)),
		},
		"test accuracy 0.8431, test loss 0.4000 after 300 clocks in 7.3 s on synthetic data\n" +
			"3 kills, 1 slow, 12 updates lost, 1 clock redone, 800 ms until all served again": {
			Clocks: 300, WallSeconds: 7.31, UpdatesLost: new(int64(12)), ClocksRedone: new(int64(1)),
			TestAccuracy: new(0.8431), TestLoss: new(0.4), Data: "synthetic:mnist",
			Failures: []rundir.Failure{kill(5, 300), kill(1, 400), {Kind: "slow*2.5", AtSeconds: 2}, kill(1.1, 400)},
		},
		"20 clocks in 1.0 s\n1 kill, 0 updates lost, 27 lost in part, 0 clocks redone, 100 ms until all served again": {
			Clocks: 20, WallSeconds: 1, UpdatesLost: new(int64(0)), ClocksRedone: new(int64(0)),
			Failures: []rundir.Failure{kill(1, 100)},
			Saving:   &protocol.Saving{Rows: &protocol.RowSaving{PartlyLost: 27}},
		},
	} {
		if got := fmt.Sprintf("%s\n%s", resultLine(&s), failureLine(&s, 0)); got != want {
			t.Errorf("%s\nand not\n%s", got, want)
		}
	}
}

func TestCurve(t *testing.T) {
	for want, values := range map[string][]float64{
		"":     {math.NaN()},
		"▁":    {3},
		"▁▁":   {3, 3},
		"▁█":   {0, math.Inf(1), 1},
		"█▄▁":  {2, 1, 0},
		"▁▂▆█": {0, 0, 1, 2, 5, 6, 7, 8},
	} {
		if got := Curve(values, 4); got != want {
			t.Errorf("%v is %q, want %q", values, got, want)
		}
	}
}
