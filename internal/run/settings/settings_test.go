package settings

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/workload"
)

// TestHeaderOfResumed checks that a resumed run reports the number of its current workers.
func TestHeaderOfResumed(t *testing.T) {
	for _, c := range []struct {
		spans []protocol.Interval
		want  int
	}{{nil, 3}, {[]protocol.Interval{{}, {Until: 5}, {From: 3}, {From: 9}}, 2}} {
		s := Run{Job: perdure.JobSpec{Slots: 3}, Cut: 5, Slots: c.spans}
		if got := s.InitialWorkers(); got != c.want {
			t.Errorf("%v at clock 5: %d workers, want %d", c.spans, got, c.want)
		}
	}
}

func TestZones(t *testing.T) {
	for _, c := range []struct{ zones, want []string }{
		{nil, nil},
		{[]string{"a", "b"}, []string{"a", "b", "a"}},
		{[]string{"a", "rack.1", "c"}, []string{"a", "rack.1", "c"}},
	} {
		got, err := parseZones(3, c.zones)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("--zones %q: got %q, %v; want %q", c.zones, got, err, c.want)
		}
	}
	if _, err := parseZones(3, []string{"a", "b", "c", "d"}); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("four zones for three servers: %v", err)
	}
}

func TestParseEvalEvery(t *testing.T) {
	for text, want := range map[string][2]int64{
		"": {0, 0}, "0": {0, 0}, "10": {10, 0}, "2s": {0, 2000},
		"1h": {0, 3_600_000}, "10ms": {0, 10},
	} {
		clocks, ms, err := parseEvalEvery(text)
		if err != nil || int64(clocks) != want[0] || ms != want[1] {
			t.Errorf("%s: %d clocks, %d ms, %v; want %v", text, clocks, ms, err, want)
		}
	}
	for _, text := range []string{"-1", "2 s", "9ms", "2h", "-2s", "99999999999"} {
		if _, _, err := parseEvalEvery(text); !errors.Is(err, perdure.ErrUsage) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want one line of usage", text, err)
		}
	}
}

func TestParseDelay(t *testing.T) {
	for text, want := range map[string][2]time.Duration{
		"5ms":         {5 * time.Millisecond, 0},
		"0s":          {0, 0},
		"5ms±2ms":     {5 * time.Millisecond, 2 * time.Millisecond},
		"5ms+-2ms":    {5 * time.Millisecond, 2 * time.Millisecond},
		"100us±100us": {100 * time.Microsecond, 100 * time.Microsecond},
		"0.3s±200ms":  {300 * time.Millisecond, 200 * time.Millisecond},
	} {
		delay, spread, err := parseDelay(text)
		if err != nil || delay != want[0] || spread != want[1] {
			t.Errorf("%s: %v ± %v, %v", text, delay, spread, err)
		}
	}
}

func TestParseBandwidth(t *testing.T) {
	for text, want := range map[string]int64{
		"100KB": 100_000, "10MB": 10_000_000, "1.5GB": 1_500_000_000, "100000B": 100_000,
		"100KiB": 100 << 10, "12.5MiB": 12.5 * (1 << 20), "1GiB": 1 << 30, "1000GB": 1_000_000_000_000,
	} {
		if got, err := parseBandwidth(text); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
	}
}

// TestDistanceOfSettings checks that a run.json with an invalid distance is rejected.
func TestDistanceOfSettings(t *testing.T) {
	_, err := (&Run{SimulatedNetwork: SimulatedNetwork{Delay: "soon"}}).Network(wire.RoleServer, 0, nil)
	if err == nil {
		t.Error("a delay of soon was accepted")
	}
	path := filepath.Join(t.TempDir(), "run.json")
	must(t, os.WriteFile(path, []byte(`{"schema":1,"delay":"5ms±2ms","bandwidth":"10MB"}`), 0o666))
	s, err := Read(path)
	must(t, err)
	m, err := s.Link()
	must(t, err)
	if want := (transport.LinkModel{
		Delay: 5 * time.Millisecond, Spread: 2 * time.Millisecond,
		BytesPerSecond: 10e6,
	}); m != want {
		t.Errorf("%+v, want %+v", m, want)
	}
}

// TestFitModels checks that consistency models for unknown tables are errors, and that unused default models are
// dropped.
func TestFitModels(t *testing.T) {
	tables := []perdure.TableSpec{{Name: "w"}, {Name: "b"}}
	for asked, want := range map[string]string{
		"bsp":                  "bsp",
		"ssp:2,b=bsp":          "ssp:2,b=bsp",
		"w=essp:3":             "bsp,w=essp:3",
		"w=essp:3,b=bsp":       "essp:3,b=bsp",
		"w=essp:3,b=essp:3":    "essp:3",
		"asp,w=ssp:1,b=bsp":    "ssp:1,b=bsp",
		"ssp:1,w=ssp:1":        "ssp:1",
		"vap:0.5,w=bsp":        "vap:0.5,w=bsp",
		"bsp,b=vap:0.25,w=asp": "asp,b=vap:0.25",
	} {
		job, before := perdure.JobSpec{Workload: "x"}, perdure.JobSpec{}
		var err error
		job.Consistency, job.TableConsistency, err = perdure.ParseModels(asked, perdure.Consistency{Kind: perdure.BSP})
		must(t, err)
		before.Consistency, before.TableConsistency = job.Consistency, job.TableConsistency
		must(t, fitModels(&job, tables))
		if job.Models() != want {
			t.Errorf("%s: %s, want %s", asked, job.Models(), want)
		}
		for _, table := range tables {
			if got, want := job.ConsistencyOf(table.Name), before.ConsistencyOf(table.Name); got != want {
				t.Errorf("%s: table %s is %s, want %s", asked, table.Name, got, want)
			}
		}
		again := job
		must(t, fitModels(&again, tables))
		if !reflect.DeepEqual(again, job) {
			t.Errorf("%s: %s becomes %s when it is read again", asked, job.Models(), again.Models())
		}
	}
}

// TestGoalReached checks which evaluations reach a goal.
func TestGoalReached(t *testing.T) {
	for _, c := range []struct {
		goal Goal
		eval workload.Eval
		want bool
	}{
		{Goal{Metric: "accuracy", Value: 0.8}, workload.Eval{Accuracy: 0.8}, true},
		{Goal{Metric: "accuracy", Value: 0.8}, workload.Eval{Accuracy: 0.79}, false},
		{Goal{Metric: "loss", Value: 0.2}, workload.Eval{Loss: 0.19}, true},
		{Goal{Metric: "loss", Value: 0.2}, workload.Eval{Loss: 0.21}, false},
		{Goal{Metric: "rmse", Value: 0.9}, workload.Eval{RMSE: math.NaN()}, false},
		// a time goal does not depend on evaluations
		{Goal{Metric: OverTime, Value: 1}, workload.Eval{Accuracy: 1}, false},
		{Goal{}, workload.Eval{Accuracy: 1}, false},
	} {
		if got := c.goal.Reached(c.eval); got != c.want {
			t.Errorf("%+v with %+v: %v", c.goal, c.eval, got)
		}
	}
}

// TestShape checks that a job with only these settings can run, and that errors name the wrong part.
func TestShape(t *testing.T) {
	p := Shape{Workers: 3, Servers: 2, Shards: 6, Consistency: "asp", Recovery: "chain:2", Clocks: 10, Seed: 7}
	job, err := p.Job("softmax")
	must(t, err)
	if job.Slots != 3 || job.Servers != 2 || job.Clocks != 10 || job.SuspendMs != defaultAfter.Milliseconds() ||
		job.ID == "" {
		t.Errorf("%+v", job)
	}
	for want, change := range map[string]func(*Shape){
		"--clocks 0":                  func(p *Shape) { p.Clocks = 0 },
		"unknown consistency model":   func(p *Shape) { p.Consistency = "soon" },
		"unknown recovery strategy":   func(p *Shape) { p.Recovery = "soon" },
		"chain:3 keeps each shard on": func(p *Shape) { p.Recovery = "chain:3" },
		"number of workers 0":         func(p *Shape) { p.Workers = 0 },
	} {
		odd := p
		change(&odd)
		if _, err := odd.Job("softmax"); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", odd, err, want)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestStartFromSlotCut checks which runs may start from a checkpoint in which the slots have different clocks.
func TestStartFromSlotCut(t *testing.T) {
	m := checkpoint.Manifest{Generation: 2, Cut: 30, Clocks: protocol.SlotClocks{40, 20}}
	for _, c := range []struct {
		recovery string
		atomic   bool
		clocks   perdure.Clock
		want     error
	}{
		{"checkpoint:10", true, 0, nil},
		{"resend:10", true, 40, nil}, // slot 0 has finished
		{"resend:10", true, 39, perdure.ErrUsage},
		{"chain:2,checkpoint:10", true, 50, nil},
		{"chain:2", true, 50, perdure.ErrUsage},
		{"none", true, 50, perdure.ErrUsage},
		{"checkpoint:10", false, 50, perdure.ErrUsage},
	} {
		how, err := perdure.ParseRecovery(c.recovery)
		if err != nil {
			t.Fatal(err)
		}
		s := Run{Job: perdure.JobSpec{Slots: 2, Recovery: how, AtomicClocks: c.atomic, Clocks: c.clocks}}
		if err := StartFrom(&s, "run", &m); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		} else if err == nil && !slices.Equal(s.Checkpoints.Clocks, m.Clocks) {
			t.Errorf("%+v: the slots start at %v", c, s.Checkpoints.Clocks)
		}
	}
	done := checkpoint.Manifest{Cut: 40, Clocks: protocol.SlotClocks{40, 40}}
	s := Run{Job: perdure.JobSpec{Slots: 2, AtomicClocks: true, Clocks: 40}}
	if err := StartFrom(&s, "run", &done); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("all slots have finished: %v", err)
	}
}
