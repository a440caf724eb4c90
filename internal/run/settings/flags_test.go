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

// asks returns the smallest valid request for a run of a workload.
func asks(name string, given ...string) *Flags {
	a := &Flags{
		Version: "v", Workload: name, Reach: Reach{Listen: "here"}, Grace: "3s", Given: map[string]bool{},
		Shape: Shape{Workers: 2, Servers: 2, Shards: 4, Consistency: "asp", Recovery: "resend:20", Seed: 7},
		Work:  WorkloadFlags{Data: "synthetic:0.001"},
	}
	if name == DefaultWorkload {
		a.Work.Data = "" // it has built-in data
	}
	for _, flag := range given {
		a.Given[flag] = true
	}
	return a
}

// TestNew checks that defaults are chosen. The user's own worker programs choose the defaults of their own settings.
func TestNew(t *testing.T) {
	s, err := asks(DefaultWorkload).New()
	must(t, err)
	if s.Version != "v" || s.Reach.Listen != "here" || s.Checkpoints.Grace != 3*time.Second || s.Job.OwnWorkers ||
		s.Job.Clocks != 300 || s.CacheMB != DefaultCacheMB || s.RetainMB != DefaultRetainMB ||
		s.Job.Seal.SHA256 == "" || s.Params.Rule.Kind != perdure.RuleSGD ||
		s.Params.Rule.Schedule != perdure.ScheduleConst || s.Params.Batch == 0 ||
		s.Job.SuspendMs != defaultAfter.Milliseconds() || s.Log != nil {
		t.Errorf("%+v", s)
	}
	going := asks(DefaultWorkload, "on-outage")
	going.Outage = OutageFlags{On: "continue:5", Rows: "frozen", MB: 3}
	s, err = going.New()
	must(t, err)
	if s.Job.StaleScale != perdure.ScaleAverage || s.Job.OutageBytes != 3<<20 {
		t.Errorf("job that continues during an outage: %+v", s.Job)
	}
	own := asks(OwnWorkload)
	own.Shape.Clocks = 9
	s, err = own.New()
	must(t, err)
	if !s.Job.OwnWorkers || s.CacheMB != 0 || s.RetainMB != 0 || s.Job.Clocks != 9 || s.Job.Seal.SHA256 == "" {
		t.Errorf("the user's own programs: %+v", s)
	}
}

// TestFewShards checks that a small data set gets fewer shards than the default, unless the user chose the number.
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
	if _, err := a.New(); err == nil || !strings.Contains(err.Error(), "16 shards are too many for table") {
		t.Errorf("with the requested number of shards: %v", err)
	}
}

// TestNewRefuses checks that invalid settings, and settings that would be ignored, are reported with their flag.
func TestNewRefuses(t *testing.T) {
	for want, a := range map[string]*Flags{
		"--retain-mb limits the updates": change(asks(DefaultWorkload, "retain-mb"), func(a *Flags) {
			a.Shape.Recovery = "chain:2"
		}),
		"--outage-mb applies only to jobs": asks(DefaultWorkload, "outage-mb"),
		"--log configures the update log": change(asks(OwnWorkload, "log"), func(a *Flags) {
			a.Log = "file:"
		}),
		"--stale-scale is empty":         asks(DefaultWorkload, "stale-scale"),
		"--clocks 0":                     asks(DefaultWorkload, "clocks"),
		"--cache-mb 0; choose 1":         asks(DefaultWorkload, "cache-mb"),
		`--mtbf ""; write the mean time`: asks(DefaultWorkload, "mtbf"),
		`--grace "soon"`: change(asks(DefaultWorkload), func(a *Flags) {
			a.Grace = "soon"
		}),
		"--until needs --eval-every": change(asks(DefaultWorkload), func(a *Flags) {
			a.Work.Until = "loss:1"
		}),
		"learning rate 0": change(asks(DefaultWorkload), func(a *Flags) { a.Work.LR = new(float64) }),
	} {
		if a.Workload == OwnWorkload {
			a.Shape.Clocks = 9
		}
		if _, err := a.New(); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func change(a *Flags, by func(a *Flags)) *Flags {
	by(a)
	return a
}

// TestRepeat checks that a run can be started over with the settings of another, under an ID of its own. Given flags
// replace those settings if they may, and are errors otherwise.
func TestRepeat(t *testing.T) {
	first := asks(DefaultWorkload)
	first.Faults, first.Delay = []string{"kill:server:0@1s"}, "2ms"
	s, err := first.New()
	must(t, err)
	text, err := rundir.EncodeRun(&s)
	must(t, err)
	file := filepath.Join(t.TempDir(), "run.json")
	must(t, os.WriteFile(file, text, 0o666))
	again, err := (&Flags{Version: "w", SimulatedNetwork: SimulatedNetwork{Delay: "1ms"}}).Repeat(file)
	must(t, err)
	if again.Job.ID == s.Job.ID || again.Version != "w" || again.Delay != "2ms" || len(again.Faults) != 1 ||
		again.Checkpoints.Grace != 0 || again.Job.Clocks != 300 {
		t.Errorf("%+v", again)
	}
	again, err = (&Flags{
		SimulatedNetwork: SimulatedNetwork{Delay: "1ms"}, Faults: []string{"kill:worker:0@1s"},
		Given: map[string]bool{"delay": true},
	}).Repeat(file)
	must(t, err)
	if again.Delay != "1ms" || again.Faults[0] != "kill:worker:0@1s" {
		t.Errorf("given flags were not applied: %+v", again)
	}
	soon := map[string]bool{"delay": true}
	for want, a := range map[string]*Flags{
		"--seed cannot be changed with --from":  {Given: map[string]bool{"seed": true}},
		"--quiet cannot be changed with --from": {Workload: OwnWorkload, Given: map[string]bool{"quiet": true}},
		"is a run of softmax, not of mf":        {Workload: "mf"},
		"use: perdure train --from":             {Workload: OwnWorkload},
		`--delay "soon"`:                        {SimulatedNetwork: SimulatedNetwork{Delay: "soon"}, Given: soon},
		"there is no server:9":                  {Faults: []string{"kill:server:9@1s"}},
	} {
		if _, err := a.Repeat(file); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for flag, may := range map[string]bool{"clocks": true, "mtbf": true, "until": true, "seed": false} {
		if err := (&Flags{Given: map[string]bool{flag: true}}).CheckEffective("--resume"); (err == nil) != may {
			t.Errorf("--%s with --resume: %v", flag, err)
		}
	}
}

// TestRefuseEmpty checks that an empty argument is an error, unless it belongs to another program or to a service.
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
		if err := RejectEmpty(c.args); c.may != (err == nil) || !c.may && !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%q: %v", c.args, err)
		}
	}
}
