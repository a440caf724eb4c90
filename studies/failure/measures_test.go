package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/run/study"
)

func TestReadSeries(t *testing.T) {
	const series = `new,seconds,samples_per_second,test_accuracy
,0.5,64,
,1.2,,0.5
,1.5,32,
,1.1,,0.25
,2.0,,NaN
,2.5,0,
`
	r := &result{}
	if err := r.readSeries(strings.NewReader(series), 32); err != nil {
		t.Fatal(err)
	}
	if want := []point{{1.1, .25}, {1.2, .5}}; !slices.Equal(r.Accuracy, want) {
		t.Errorf("accuracy %v, want %v: in the order of time", r.Accuracy, want)
	}
	if want := []point{{.5, 1}, {1.5, 2}, {2.5, 2}}; !slices.Equal(r.Gradients, want) {
		t.Errorf("gradients %v, want %v", r.Gradients, want)
	}
	for _, text := range []string{
		"a,b\n1,2\n", "seconds,test_accuracy,samples_per_second\nx,1,1\n",
		"seconds,clock\n1\n",
	} {
		if err := (&result{}).readSeries(strings.NewReader(text), 32); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}

func TestOutage(t *testing.T) {
	r := &result{Eval: 1, Accuracy: []point{{1, .1}, {2, .2}, {2.9, .3}, {3.05, .31}, {5.2, .25}, {6, .4}}}
	o := outage{3, 5}
	// What was read at 3.05 s may be from before.
	if before, next, back := r.around(o); before != .3 || next != .25 || back != .25 {
		t.Errorf("%g before, %g next and %g back; want 0.3, 0.25 and 0.25", before, next, back)
	}
	if gap := r.gap(o); math.Abs(gap-2.15) > 1e-9 {
		t.Errorf("a gap of %g s, want 2.15", gap)
	}
	r.Accuracy = slices.Insert(r.Accuracy, 4, point{3.5, .05}, point{4.5, .9})
	if before, next, back := r.around(o); before != .3 || next != .05 || back != .25 {
		t.Errorf("judged meanwhile: %g before, %g next and %g back; want 0.3, 0.05 and 0.25", before, next, back)
	}
	if gap := r.gap(o); math.Abs(gap-1) > 1e-9 {
		t.Errorf("judged meanwhile: a gap of %g s, want 1", gap)
	}
	if before, next, back := r.around(outage{0, 9}); !math.IsNaN(before) || next != .1 || !math.IsNaN(back) {
		t.Errorf("all of the run: %g before, %g next and %g back", before, next, back)
	}
	if at := r.reach(.3); at != 2.9 {
		t.Errorf("0.3 is reached at %g s, want 2.9", at)
	}
	if at := r.reach(.95); !math.IsInf(at, 1) {
		t.Errorf("0.95 is reached at %g s", at)
	}
}

func TestCurve(t *testing.T) {
	g := &group{Trials: []*result{
		{Eval: 2, Accuracy: []point{{2.01, .1}, {4.3, .2}, {8, .4}}},
		{Eval: 2, Accuracy: []point{{2, .3}, {7.9, .8}, {8.4, .6}}},
	}}
	want := []curvePoint{
		{2, study.Spread{Mid: .2, Low: .1, High: .3}},
		{4, study.Spread{Mid: .2, Low: .2, High: .2}},
		{8, study.Spread{Mid: .5, Low: .4, High: .6}},
	}
	if got := g.curve(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	var none *group
	if none.curve() != nil || !math.IsNaN(none.Last().Mid) {
		t.Error("nothing has a curve, or an accuracy")
	}
}

// TestVerdicts: one table for each rule.
func TestVerdicts(t *testing.T) {
	spread := func(v ...float64) study.Spread { return study.SpreadOf(v) }
	for _, c := range []struct {
		paper       float64
		found, calm study.Spread
		want        string
	}{
		{-.1, spread(-.2, -.01), spread(0, .1), reproduced},
		{-.1, spread(-.2, .01), spread(.02, .1), notReproduced},
		{-.1, spread(-.2, -.01), spread(-.05, .1), notReproduced}, // as without failures
		{-.1, spread(), spread(0, .1), incomparable},
		{-.1, spread(-.2), spread(), incomparable},
		{.1, spread(.01, .2), spread(), reproduced},
		{.1, spread(0, .2), spread(), notReproduced},
	} {
		if got := signVerdict(c.paper, c.found, c.calm); got != c.want {
			t.Errorf("paper %g, found %v beside %v: %s, want %s", c.paper, c.found, c.calm, got, c.want)
		}
	}
	for found, want := range map[float64]string{
		4: reproduced, 2: reproduced, 8: reproduced, 1.9: notReproduced,
		8.1: notReproduced, math.NaN(): incomparable, math.Inf(1): incomparable,
	} {
		if got := ratioVerdict(4, found, 2); got != want {
			t.Errorf("a ratio of %g beside 4: %s, want %s", found, got, want)
		}
	}
	for _, c := range []struct {
		one    study.Spread
		others []study.Spread
		want   string
	}{
		{spread(.8, .9), []study.Spread{spread(.6, .7), spread(.7, .85)}, reproduced},
		{spread(.8, .9), []study.Spread{spread(.7, .82), spread(.7, .85)}, notReproduced}, // no one is told apart
		{spread(.8, .9), []study.Spread{spread(.6, .7), spread(.85, .95)}, notReproduced},
		{spread(.8, .9), []study.Spread{spread(.6, .7), spread()}, incomparable},
		{spread(), []study.Spread{spread(.6, .7)}, incomparable},
		{spread(.8), nil, incomparable},
	} {
		if got := betterVerdict(c.one, c.others); got != c.want {
			t.Errorf("%v beside %v: %s, want %s", c.one, c.others, got, c.want)
		}
	}
}

// TestWhyNot: why something is not comparable is told.
func TestWhyNot(t *testing.T) {
	p := &page{Killed: []*group{
		{cell: paperCheckpointed, Trials: []*result{{}}},
		{cell: paperStateless, Trials: []*result{{}, {}}},
	}}
	for want, cells := range map[string][]cell{
		"only one trial of `asp checkpoint:100`": {paperStateless, paperCheckpointed},
		"no runs of `bsp chain:3`":               {paperStateless, {"bsp", "chain:3", false}},
		"":                                       {paperStateless},
	} {
		c := p.judge(claim{Verdict: reproduced}, cells...)
		if !strings.Contains(c.Why, want) || (c.Verdict == reproduced) != (want == "") || want == "" && c.Why != "" {
			t.Errorf("%v: %s, %q; want %q", cells, c.Verdict, c.Why, want)
		}
	}
}

func TestCells(t *testing.T) {
	s := settings{Modes: []string{"bsp", "asp"}, Strategies: []string{"checkpoint:100", "resend:20"}}
	want := "[bsp checkpoint:100 asp checkpoint:100 bsp resend:20 asp resend:20 asp resend:20, continue]"
	if got := fmt.Sprint(s.cells()); got != want {
		t.Errorf("cells %s, want %s", got, want)
	}
	for strategy, want := range map[string]int{
		"chain:3": 3, "chain:2,every:100": 2, "checkpoint:100": 1,
		"stateless": 1,
	} {
		if got := (cell{Strategy: strategy}).kept(); got != want {
			t.Errorf("%s keeps shards on %d servers, want %d", strategy, got, want)
		}
	}
}

func TestFlags(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseFlags([]string{"-perdure", self, "-quick", "-seeds", "7"})
	if err != nil || !slices.Equal(s.Seeds, []int{7}) || s.Scale != .05 || s.Out == "docs/studies/failure" {
		t.Errorf("quick with a seed: %+v, %v", s, err)
	}
	args := strings.Join(s.arguments(run{cell{"asp", "chain:3", false}, 7, true}), " ")
	for _, want := range []string{
		"--servers 3", "--until time:7.5s", "--eval-every 100ms", "--compute-ms 10",
		"--fault kill:server:0@1.5s+1s", "--fault kill:server:1@4s+1s",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("%s is not in %s", want, args)
		}
	}
	for args, want := range map[string]string{
		"all": "is no flag", "-scale 0": "above 0", "-scale 0.001": "every 10ms", "-kills 80s,30s": "ascending",
		"-kills 1s,80s": "ascending", "-kills 30s,51s": "two evaluations",
		"-length 90s": "-length", "-outage 1s": "shorter", "-goals 70": "at most 1", "-strategies=": "names none",
		"-workers 0": "at least 1", "-perdure no/such": "make build",
	} {
		_, err := parseFlags(append([]string{"-perdure", self}, strings.Fields(args)...))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want a line with %q", args, err, want)
		}
	}
}

// TestDoubts: a page of runs that did not keep up says so.
func TestDoubts(t *testing.T) {
	// 10 evaluations, 200 gradients
	s := settings{Scale: 1, Length: 10 * time.Second, Eval: time.Second, Workers: 2, ComputeMs: 100}
	trial := func(evaluations int, gradients float64) *group {
		return &group{
			cell:   cell{"asp", "chain:3", false},
			Trials: []*result{{Accuracy: make([]point, evaluations), Computed: gradients}},
		}
	}
	for want, g := range map[string]*group{
		"":                         trial(8, 120),
		"80% of the evaluations":   trial(7, 200),
		"60% of the 200 gradients": trial(10, 119),
	} {
		doubts, err := (&page{Study: s, Calm: []*group{g}}).Doubts()
		got := strings.Join(doubts, " ")
		if err != nil || !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	s.Remark = "The moon was full."
	if got, err := (&page{Study: s, Calm: []*group{trial(10, 200)}}).Doubts(); err != nil || len(got) != 1 ||
		got[0] != s.Remark {
		t.Errorf("%q, want %q", got, s.Remark)
	}
}
