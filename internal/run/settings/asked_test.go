package settings

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/rundir"
)

// asks is what the least says that there is to say of a run of a workload.
func asks(name string, given ...string) *Asked {
	a := &Asked{
		Version: "v", Workload: name, Reach: Reach{Listen: "here"}, Grace: "3s", Given: map[string]bool{},
		Shape: Shape{Workers: 2, Servers: 2, Shards: 4, Consistency: "asp", Recovery: "resend:20", Seed: 7},
		Work:  WorkAsked{Data: "synthetic:0.001"},
	}
	if name == DefaultWorkload {
		a.Work.Data = "" // which it has with it
	}
	for _, flag := range given {
		a.Given[flag] = true
	}
	return a
}

// TestNew: what nobody says is chosen; workers that are programs of the user's own choose
// what theirs keep themselves.
func TestNew(t *testing.T) {
	s, err := asks(DefaultWorkload).New()
	must(t, err)
	if s.Version != "v" || s.Reach.Listen != "here" || s.Checkpoints.Grace != 3*time.Second || s.Job.OwnWorkers ||
		s.Job.Clocks != 300 || s.CacheMB != DefaultCacheMB || s.RetainMB != DefaultRetainMB ||
		s.Job.Seal.SHA256 == "" || s.Params.Rule.Kind != perdure.RuleSGD ||
		s.Params.Rule.Schedule != perdure.ScheduleConst || s.Params.Batch == 0 ||
		s.Job.SuspendMs != usually.Milliseconds() || s.Log != nil {
		t.Errorf("%+v", s)
	}
	going := asks(DefaultWorkload, "on-outage")
	going.Outage = OutageAsked{On: "continue:5", Rows: "frozen", MB: 3}
	s, err = going.New()
	must(t, err)
	if s.Job.StaleScale != perdure.ScaleAverage || s.Job.OutageBytes != 3<<20 {
		t.Errorf("a job that goes on in an outage: %+v", s.Job)
	}
	own := asks(OwnWorkload)
	own.Shape.Clocks = 9
	s, err = own.New()
	must(t, err)
	if !s.Job.OwnWorkers || s.CacheMB != 0 || s.RetainMB != 0 || s.Job.Clocks != 9 || s.Job.Seal.SHA256 == "" {
		t.Errorf("of programs of the user's own: %+v", s)
	}
}

// TestFewShards: where data are few there are fewer shards than usual, and not if somebody has said how many.
func TestFewShards(t *testing.T) {
	few := filepath.Join(t.TempDir(), "ratings.csv")
	var text strings.Builder
	for user := range 12 {
		for item := range 9 {
			fmt.Fprintf(&text, "%d,%d,%d\n", user, item, 1+(user+item)%5)
		}
	}
	must(t, os.WriteFile(few, []byte(text.String()), 0o600))
	a := asks("mf")
	a.Work.Data, a.Shape.Shards = few, 16
	s, err := a.New()
	must(t, err)
	if s.Job.Shards != 9 {
		t.Errorf("12 users and 9 items are in %d shards", s.Job.Shards)
	}
	a = asks("mf", "shards")
	a.Work.Data, a.Shape.Shards = few, 16
	if _, err := a.New(); err == nil || !strings.Contains(err.Error(), "16 shards for table") {
		t.Errorf("as many shards as were asked for: %v", err)
	}
}

// TestNewRefuses: what cannot be, and what would be ignored, is told with its flag.
func TestNewRefuses(t *testing.T) {
	for want, a := range map[string]*Asked{
		"--retain-mb is about updates": change(asks(DefaultWorkload, "retain-mb"), func(a *Asked) {
			a.Shape.Recovery = "chain:2"
		}),
		"--outage-mb is for jobs that go on in an outage": asks(DefaultWorkload, "outage-mb"),
		"--log is about the update log": change(asks(OwnWorkload, "log"), func(a *Asked) {
			a.Log = "file:"
		}),
		"--stale-scale is empty":    asks(DefaultWorkload, "stale-scale"),
		"0 clocks":                  asks(DefaultWorkload, "clocks"),
		"--cache-mb 0; choose 1":    asks(DefaultWorkload, "cache-mb"),
		`--mtbf ""; write the time`: asks(DefaultWorkload, "mtbf"),
		`--grace "soon"`: change(asks(DefaultWorkload), func(a *Asked) {
			a.Grace = "soon"
		}),
		"--until needs --eval-every": change(asks(DefaultWorkload), func(a *Asked) {
			a.Work.Until = "loss:1"
		}),
		"learning rate 0": change(asks(DefaultWorkload), func(a *Asked) { a.Work.LR = new(float64) }),
	} {
		if a.Workload == OwnWorkload {
			a.Shape.Clocks = 9
		}
		if _, err := a.New(); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func change(a *Asked, by func(a *Asked)) *Asked {
	by(a)
	return a
}

// TestRepeat: a run begins again with the settings of another, under a name of its own; what
// was given and fits replaces them, and what does not is refused.
func TestRepeat(t *testing.T) {
	first := asks(DefaultWorkload)
	first.Faults, first.Delay = []string{"kill:server:0@1s"}, "2ms"
	s, err := first.New()
	must(t, err)
	text, err := rundir.EncodeRun(&s)
	must(t, err)
	file := filepath.Join(t.TempDir(), "run.json")
	must(t, os.WriteFile(file, text, 0o666))
	again, err := (&Asked{Version: "w", Distance: Distance{Delay: "1ms"}}).Repeat(file)
	must(t, err)
	if again.Job.ID == s.Job.ID || again.Version != "w" || again.Delay != "2ms" || len(again.Faults) != 1 ||
		again.Checkpoints.Grace != 0 || again.Job.Clocks != 300 {
		t.Errorf("%+v", again)
	}
	again, err = (&Asked{
		Distance: Distance{Delay: "1ms"}, Faults: []string{"kill:worker:0@1s"}, Given: map[string]bool{"delay": true},
	}).Repeat(file)
	must(t, err)
	if again.Delay != "1ms" || again.Faults[0] != "kill:worker:0@1s" {
		t.Errorf("what was given: %+v", again)
	}
	soon := map[string]bool{"delay": true}
	for want, a := range map[string]*Asked{
		"--seed cannot be changed with --from":  {Given: map[string]bool{"seed": true}},
		"--quiet cannot be changed with --from": {Workload: OwnWorkload, Given: map[string]bool{"quiet": true}},
		"is a run of softmax, not of mf":        {Workload: "mf"},
		"use: perdure train --from":             {Workload: OwnWorkload},
		`--delay "soon"`:                        {Distance: Distance{Delay: "soon"}, Given: soon},
		"there is no server:9":                  {Faults: []string{"kill:server:9@1s"}},
	} {
		if _, err := a.Repeat(file); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for flag, may := range map[string]bool{"clocks": true, "mtbf": true, "until": true, "seed": false} {
		if err := (&Asked{Given: map[string]bool{flag: true}}).OnlyTaken("--resume"); (err == nil) != may {
			t.Errorf("--%s with --resume: %v", flag, err)
		}
	}
}

// TestRefuseEmpty: an empty argument is refused, unless it belongs to another program or to a service.
func TestRefuseEmpty(t *testing.T) {
	for _, c := range []struct {
		args []string
		may  bool
	}{
		{nil, true},
		{[]string{"train", "--resume", "run", "--clocks=3"}, true},
		{[]string{"train", "--resume", ""}, false},
		{[]string{"train", "--resume="}, false},
		{[]string{"study", ""}, false},
		{[]string{"study", "losses", "--", "mf", ""}, true},
		{[]string{"host", "--zone="}, true},
	} {
		if err := RefuseEmpty(c.args); c.may != (err == nil) || !c.may && !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%q: %v", c.args, err)
		}
	}
}
