package supervisor

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// isUsage checks that err is a one-line usage error.
func isUsage(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v, want a one-line usage error with %q", err, want)
	}
}

func parse(t *testing.T, s string) Fault {
	t.Helper()
	f, err := ParseFault(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestParseFault(t *testing.T) {
	for s, want := range map[string]Fault{
		"kill:server:0@12.5s": {
			Kind: FaultKill, Target: Target{Role: wire.RoleServer},
			When: When{Since: 12500 * time.Millisecond},
		},
		"kill:coordinator@90s+2s": {
			Kind: FaultKill, Target: Target{Role: wire.RoleCoordinator},
			When: When{Since: 90 * time.Second}, For: 2 * time.Second,
		},
		"term:worker:*@clock:100": {
			Kind: FaultTerm, Target: Target{Role: wire.RoleWorker, Index: All},
			When: When{ByClock: true, Clock: 100},
		},
		"kill:server:1@clock:100,250ms+2s": {
			Kind: FaultKill, Target: Target{Role: wire.RoleServer, Index: 1},
			When: When{ByClock: true, Clock: 100, After: 250 * time.Millisecond}, For: 2 * time.Second,
		},
		"freeze:server:12@0s+500ms": {
			Kind: FaultFreeze, Target: Target{Role: wire.RoleServer, Index: 12},
			For: 500 * time.Millisecond,
		},
		"cut:log@clock:0": {Kind: FaultCut, Target: Target{Role: RoleLog}, When: When{ByClock: true}},
		"slow*3:worker:1@100ms": {
			Kind: FaultSlow, Factor: 3, Target: Target{Role: wire.RoleWorker, Index: 1},
			When: When{Since: 100 * time.Millisecond},
		},
		"jitter*2.5:worker:1@clock:7": {
			Kind: FaultJitter, Factor: 2.5,
			Target: Target{Role: wire.RoleWorker, Index: 1}, When: When{ByClock: true, Clock: 7},
		},
		"kill:shards:0.5@clock:10+1.5s": {
			Kind: FaultKill, Target: Target{Role: RoleShards, Fraction: 0.5},
			When: When{ByClock: true, Clock: 10}, For: 1500 * time.Millisecond,
		},
	} {
		if got := parse(t, s); got != want {
			t.Errorf("%s parsed as %+v, want %+v", s, got, want)
		}
		if want.String() != s {
			t.Errorf("%+v formatted as %s, want %s", want, want, s)
		}
	}
	if got := parse(t, "kill:server:0@1m30s").String(); got != "kill:server:0@90s" {
		t.Errorf("minutes formatted as %s", got)
	}
}

// TestMistakes checks the error for each mistake, including its example.
func TestMistakes(t *testing.T) {
	for s, want := range map[string]string{
		"":                                        "has no target",
		"kill":                                    "has no target",
		"kill:server:0":                           "has no time",
		"burn:server:0@1s":                        `unknown kind "burn"`,
		"Kill:server:0@1s":                        `unknown kind "Kill"`,
		"kill*3:server:0@1s":                      "kill takes no factor",
		"slow:server:0@1s":                        "slow needs a factor",
		"slow*1:server:0@1s":                      `factor "1" must be above 1`,
		"jitter*NaN:server:0@1s":                  "must be above 1",
		"jitter*Inf:server:0@1s":                  "must be above 1",
		"slow*1e9:server:0@1s":                    `factor "1e9" must be above 1 and at most 10000`,
		"slow*x:server:0@1s":                      "must be above 1",
		"kill:node:0@1s":                          `unknown target "node:0"`,
		"kill:@1s":                                `unknown target ""`,
		"kill:server@1s":                          "needs the number of a server",
		"kill:worker:-1@1s":                       "needs the number of a worker",
		"kill:worker:1:2@1s":                      "needs the number of a worker",
		"kill:server:99999999999@1s":              "needs the number of a server",
		"kill:coordinator:0@1s":                   "one coordinator",
		"kill:coordinator:@1s":                    "one coordinator",
		"kill:log:0@1s":                           "one log",
		"kill:shards@1s":                          "needs a fraction of the shards",
		"kill:shards:0@1s":                        "needs a fraction of the shards",
		"kill:shards:1.5@1s":                      "needs a fraction of the shards",
		"kill:shards:NaN@1s":                      "needs a fraction of the shards",
		"freeze:shards:0.5@1s":                    "only be killed",
		"kill:server:0@":                          "neither a time",
		"kill:server:0@5":                         "neither a time",
		"kill:server:0@-5s":                       "neither a time",
		"kill:server:0@noon":                      "neither a time",
		"kill:server:0@clock:x":                   `"x" is not a clock`,
		"kill:server:0@clock:-1":                  `"-1" is not a clock`,
		"kill:server:0@clock:5,":                  `"" is not a valid delay`,
		"kill:server:0@clock:5,0s+1s":             `"0s" is not a valid delay`,
		"kill:server:0@1s+":                       `"" is not a duration above 0`,
		"kill:server:0@1s+0s":                     `"0s" is not a duration above 0`,
		"kill:server:0@1s+-2s":                    `"-2s" is not a duration above 0`,
		"kill:server:0@1s+2":                      `"2" is not a duration above 0`,
		"kill:server:0@clock:1+clock:5":           `"clock:5" is not a duration above 0`,
		"kill:server:0\n@1s":                      "needs the number of a server",
		"kill:server:0@99999999999h":              "neither a time",
		"kill:server:0@clock:1e3":                 `"1e3" is not a clock`,
		"kill:server:0@1s@2s":                     "neither a time",
		"kill:server:+1@1s":                       "needs the number of a server",
		"kill:server:0@clock:9999999999999999999": "is not a clock",
	} {
		_, err := ParseFault(s)
		isUsage(t, err, want)
		if err != nil && !strings.Contains(err.Error(), "for example") {
			t.Errorf("no example in: %v", err)
		}
	}
}

func TestValidate(t *testing.T) {
	for s, want := range map[string]string{
		"kill:server:1@1s":                        "",
		"kill:server:*@1s":                        "",
		"kill:worker:2@1s":                        "",
		"cut:coordinator@1s":                      "",
		"kill:shards:1@1s":                        "",
		"kill:server:2@1s":                        "there is no server:2; this job has 2 servers",
		"slow*2:worker:3@1s":                      "there is no worker:3; this job has 3 workers",
		"kill:log@1s":                             "this job has no log process",
		"kill:log@2s":                             "",
		"freeze:log@2s":                           "",
		"cut:log@2s":                              "the log can only be killed, terminated or frozen",
		"jitter*2:log@clock:100":                  "this job has no log process",
		"kill:server:0@clock:1000":                "",
		"kill:server:0@clock:1001":                "it would never occur: the job ends at clock 1000",
		"kill:server:0@clock:9223372036854775807": "it would never occur",
	} {
		err := parse(t, s).Validate(2, 3, strings.HasSuffix(s, "log@2s"), 1000)
		if want == "" && err != nil {
			t.Error(err)
		} else if want != "" {
			isUsage(t, err, want)
		}
	}
}

func TestTargetHits(t *testing.T) {
	type process struct {
		role  wire.Role
		index int
	}
	processes := []process{{wire.RoleServer, 0}, {wire.RoleServer, 1}, {wire.RoleWorker, 1}, {wire.RoleCoordinator, 0}}
	for target, want := range map[string][]int{
		"server:1": {1}, "server:*": {0, 1}, "worker:1": {2}, "worker:0": nil, "coordinator": {3}, "shards:1": nil,
		"log": nil,
	} {
		var hit []int
		for i, p := range processes {
			if parse(t, "kill:"+target+"@1s").Target.Matches(p.role, p.index) {
				hit = append(hit, i)
			}
		}
		if !slices.Equal(hit, want) {
			t.Errorf("%s hits %v, want %v", target, hit, want)
		}
	}
}

// drawFault generates any valid fault.
func drawFault(t *rapid.T) Fault {
	f := Fault{Kind: rapid.SampledFrom([]FaultKind{
		FaultKill, FaultTerm, FaultFreeze, FaultCut, FaultSlow,
		FaultJitter,
	}).Draw(t, "kind")}
	if f.Kind == FaultSlow || f.Kind == FaultJitter {
		f.Factor = rapid.Float64Range(math.Nextafter(1, 2), maxFactor).Draw(t, "factor")
	}
	roles := []wire.Role{wire.RoleServer, wire.RoleWorker, wire.RoleCoordinator, RoleLog}
	if f.Kind == FaultKill {
		roles = append(roles, RoleShards)
	}
	f.Target.Role = rapid.SampledFrom(roles).Draw(t, "role")
	if numbered(f.Target.Role) {
		f.Target.Index = rapid.IntRange(All, math.MaxInt32).Draw(t, "index")
	}
	if f.Target.Role == RoleShards {
		f.Target.Fraction = rapid.Float64Range(math.SmallestNonzeroFloat64, 1).Draw(t, "part")
	}
	if rapid.Bool().Draw(t, "by clock") {
		f.When = When{ByClock: true, Clock: perdure.Clock(rapid.Int64Min(0).Draw(t, "clock"))}
	} else {
		f.When.Since = time.Duration(rapid.Int64Min(0).Draw(t, "since"))
	}
	if rapid.Bool().Draw(t, "stays") {
		f.For = time.Duration(rapid.Int64Min(1).Draw(t, "for"))
	}
	return f
}

func TestFaultRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFault(t)
		got, err := ParseFault(f.String())
		if err != nil || got != f {
			t.Fatalf("%+v formatted as %s, parsed as %+v, %v", f, f, got, err)
		}
		b, err := json.Marshal(f)
		if err == nil {
			err = json.Unmarshal(b, &got)
		}
		if err != nil || got != f {
			t.Fatalf("%s encoded as %s, decoded as %s, %v", f, b, got, err)
		}
	})
}

func FuzzParseFault(f *testing.F) {
	for _, s := range []string{
		"kill:server:0@12.5s", "slow*3:worker:*@clock:100+2s", "kill:shards:0.5@1h1ns",
		"jitter*0x1p4:log@0",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		fault, err := ParseFault(s)
		if err != nil {
			isUsage(t, err, "for example")
			return
		}
		again, err := ParseFault(fault.String())
		if err != nil || again != fault {
			t.Errorf("%q parsed as %+v, formatted as %s, parsed as %+v, %v", s, fault, fault, again, err)
		}
	})
}

// TestSchedule checks that each fault is due once, in the given order, even if the clock rolls back.
func TestSchedule(t *testing.T) {
	faults := []Fault{
		parse(t, "kill:server:0@clock:10"),
		parse(t, "kill:server:1@2s"),
		parse(t, "kill:worker:0@1s"),
		parse(t, "kill:worker:1@clock:10"),
		parse(t, "kill:coordinator@clock:0"),
		parse(t, "kill:worker:1@clock:10,300ms"),
	}
	s := NewSchedule(faults)
	if got := s.Alarms(); !slices.Equal(got, []perdure.Clock{0, 10}) {
		t.Errorf("alarms %v", got)
	}
	for _, step := range []struct {
		since time.Duration
		clock perdure.Clock
		due   []int
	}{
		{0, 0, []int{4}},
		{time.Second - 1, 9, nil},
		{time.Second, 10, []int{0, 2, 3}},
		{1299 * time.Millisecond, 10, nil},
		{1300 * time.Millisecond, 5, []int{5}}, // delay after the clock, although it was rolled back
		{1500 * time.Millisecond, 5, nil},      // rolled back
		{1600 * time.Millisecond, 20, nil},
		{time.Hour, 21, []int{1}},
		{time.Hour, 22, nil},
	} {
		var want []Fault
		for _, i := range step.due {
			want = append(want, faults[i])
		}
		if got := s.Due(step.since, step.clock); !reflect.DeepEqual(got, want) {
			t.Errorf("at %v, clock %d: due %v, want %v", step.since, step.clock, got, want)
		}
	}
	if faults[0].Kind != FaultKill || len(s.Alarms()) != 0 {
		t.Error("the schedule changed its input, or alarms are left")
	}
}
