package study

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// smallRecord is small enough to check by hand: four machines are added; b is removed at 10 s, a and c at 20 s; e is
// added at 30 s and f at 50 s; e is removed again at 52 s.
const smallRecord = `0,add,a
0,add,b
1000,add,c
2000,add,d
10000,remove,b
20000,remove,a
20000,remove,c
30000,add,e
50000,add,f
52000,remove,e
100000,remove,d
`

func recordOf(t *testing.T, text string) machineTrace {
	t.Helper()
	r, err := readMachineTrace([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func texts(t *testing.T, p *faultPlan, job faultJob) []string {
	t.Helper()
	f, err := p.Of(job)
	if err != nil {
		t.Fatal(err)
	}
	return f.Texts()
}

// TestReplay replays a window of 60 s that starts at 5 s, in 6 s of the job.
func TestReplay(t *testing.T) {
	three := faultJob{Workers: 1, Servers: 2}
	r := faultReplay{
		Trace: recordOf(t, smallRecord), Name: "small",
		From: 5 * time.Second, Length: time.Minute, Into: 6 * time.Second,
	}
	for _, c := range []struct {
		name string
		of   func(*faultReplay)
		want []string // without targets
		note string
	}{
		{
			"all", func(*faultReplay) {},
			// b's slot waits longest and gets e, whose removal is another fault. f gets one of the other slots. Slots
			// still empty at the end are filled then.
			[]string{"@500ms+2s", "@1.5s+3s", "@1.5s+4.5s", "@4.7s+1.3s"},
			"4 removals hit the job's 3 machines, 2 were replaced",
		},
		{
			"boot", func(r *faultReplay) { r.Boot = 25 * time.Second },
			// e would work from 55 s on, but is removed earlier: its slot stays empty throughout.
			[]string{"@500ms+5.5s", "@1.5s+4.5s", "@1.5s+4.5s"},
			"4 removals hit the job's 3 machines, 2 were replaced (removed before they worked: 1)",
		},
		{
			"one server",
			func(r *faultReplay) { r.From, r.Length, r.Who = 9*time.Second, 18*time.Second, "servers" },
			[]string{"@333ms+5.667s", "@3.667s+2.333s"},
			"2 removals hit the job's 2 machines, 0 were replaced; 1 removals of other " +
				"machines were ignored",
		},
	} {
		r := r
		c.of(&r)
		f, err := (&faultPlan{Replay: &r}).Of(three)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, fault := range f.All {
			text := fault.String()
			got = append(got, text[strings.Index(text, "@"):])
			if fault.Kind != "kill" || c.name == "one server" && fault.Target.Role != wire.RoleServer {
				t.Errorf("%s: %s", c.name, fault)
			}
		}
		if !slices.Equal(got, c.want) || len(f.Notes) != 1 || !strings.HasSuffix(f.Notes[0], c.note) {
			t.Errorf("%s: %q, %q; want %q, %q", c.name, got, f.Notes, c.want, c.note)
		}
	}
}

// TestReplayTargets checks that the seed assigns machines to servers and workers, and that the removal of a replacement
// hits the slot that it filled.
func TestReplayTargets(t *testing.T) {
	r := &faultPlan{Replay: &faultReplay{
		Trace: recordOf(t, smallRecord), Name: "small",
		From: 5 * time.Second, Length: time.Minute, Into: 6 * time.Second,
	}}
	seen := map[string]bool{}
	for seed := range uint64(20) {
		job := faultJob{Workers: 1, Servers: 2, Seed: seed}
		f, err := r.Of(job)
		if err != nil {
			t.Fatal(err)
		}
		if f.All[0].Target != f.All[3].Target {
			t.Errorf("seed %d: e replaced b, but its removal hits another target: %q", seed, f.Texts())
		}
		if f.All[0].Target == f.All[1].Target || f.All[1].Target == f.All[2].Target {
			t.Errorf("seed %d: two machines in one slot: %q", seed, f.Texts())
		}
		if again := texts(t, r, job); !slices.Equal(again, f.Texts()) {
			t.Errorf("seed %d: %q, and then %q", seed, f.Texts(), again)
		}
		seen[f.All[0].Target.String()] = true
	}
	if len(seen) != 3 {
		t.Errorf("b was always %v", seen)
	}
}

// TestBamboo checks the replay of the record that the spot study uses. The numbers were counted with another program.
func TestBamboo(t *testing.T) {
	b, err := os.ReadFile("../../../studies/traces/bamboo-p3.csv")
	if err != nil {
		t.Fatal(err)
	}
	r, err := readMachineTrace(b)
	if err != nil {
		t.Fatal(err)
	}
	came, gone := 0, 0
	for _, e := range r {
		if e.added {
			came++
		} else {
			gone++
		}
	}
	if came != 177 || gone != 167 || r.end() != 40920*time.Second {
		t.Errorf("%d added, %d removed, until %v", came, gone, r.end())
	}
	f, err := (&faultPlan{Replay: &faultReplay{
		Trace: r, Name: "p3", From: 220 * time.Minute, Length: time.Hour, Into: 3 * time.Minute,
	}}).Of(faultJob{Workers: 8, Servers: 4, Seed: 1})
	want := "p3 from 3h40m0s to 4h40m0s, in 3m0s: 12 removals hit the job's 12 machines, 12 were replaced; " +
		"8 removals of other machines were ignored"
	if err != nil || !slices.Equal(f.Notes, []string{want}) || len(f.All) != 12 {
		t.Errorf("%q, %v; want %q", f.Notes, err, want)
	}
}

// TestRecords checks that errors in a record name the line.
func TestRecords(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "at least one line `milliseconds,add,name`",
		"0,add":                    "line 1: want milliseconds,add|remove,name",
		"0,gone,a":                 "line 1: want",
		"x,add,a":                  `line 1: "x" is not a valid number of milliseconds`,
		"-5,add,a":                 `line 1: "-5" is not a valid number`,
		"# b\n0,add,a\n0,remove,b": "line 3: b is removed but was not added",
		"0,add,a\n0,add,a":         "line 2: a is added twice",
		"5,add,a\n4,add,b":         "line 2: its time is before",
		"0,add,\"a":                "parse error on line 1",
	} {
		_, err := readMachineTrace([]byte(text))
		isUsage(t, text, err, want)
	}
}

// TestFailureMistakes checks the errors of invalid plans.
func TestFailureMistakes(t *testing.T) {
	r := recordOf(t, smallRecord)
	window := func(from, length time.Duration) *faultReplay {
		return &faultReplay{Trace: r, Name: "small", From: from, Length: length, Into: time.Second}
	}
	freeze := window(5*time.Second, time.Second)
	freeze.How = "freeze"
	for want, p := range map[string]*faultPlan{
		`unknown kind "burn"`:     {Given: []string{"burn:server:0@1s"}},
		"choose exponential":      {Draw: &faultDraw{Law: "normal"}},
		"exponential needs mean":  {Draw: &faultDraw{Law: lawExponential}},
		"weibull needs scale":     {Draw: &faultDraw{Law: lawWeibull, Scale: time.Second}},
		"away and until":          {Draw: &faultDraw{Law: lawExponential, Mean: time.Second, Away: -1}},
		"no time limit":           {Draw: &faultDraw{Law: lawExponential, Mean: time.Second}},
		"choose servers, workers": {Draw: &faultDraw{Law: lawExponential, Mean: time.Second, Until: 1, Who: "all"}},
		"how: burn":               {Draw: &faultDraw{Law: lawExponential, Mean: time.Second, Until: 1, How: "burn"}},
		"more than 10000":         {Draw: &faultDraw{Law: lawExponential, Mean: time.Microsecond, Until: time.Second}},
		"length (of the trace)":   {Replay: window(0, 0)},
		"from and boot":           {Replay: window(-1, 1)},
		"the window ends at 1m50s, but the trace ends at 1m40s": {Replay: window(50*time.Second, time.Minute)},
		"at 1s there are 2 machines, but the job needs 3; the first time with enough is 2s": {
			Replay: window(time.Second, time.Minute),
		},
		"choose kill or term": {Replay: freeze},
	} {
		_, err := p.Of(faultJob{Workers: 1, Servers: 2})
		isUsage(t, want, err, want)
	}
	_, err := (&faultPlan{Replay: window(5*time.Second, time.Second)}).Of(faultJob{Workers: 8})
	isUsage(t, "large", err, "never has the 8 machines")
}

// TestLaws checks that drawn times have the mean of their distribution.
func TestLaws(t *testing.T) {
	const runs = 400
	for _, c := range []struct {
		draw faultDraw
		mean float64 // of the first failure, in s
	}{
		{faultDraw{Law: lawExponential, Mean: 10 * time.Second}, 10},
		{faultDraw{Law: lawWeibull, Scale: 10 * time.Second, Shape: 1}, 10},
		{faultDraw{Law: lawWeibull, Scale: 10 * time.Second, Shape: 2}, 10 * math.Gamma(1.5)},
	} {
		sum := 0.0
		for seed := range uint64(runs) {
			c.draw.Who = "servers"
			job := faultJob{Servers: 1, Workers: 3, Time: time.Hour, Seed: seed}
			f, err := (&faultPlan{Draw: &c.draw}).Of(job)
			if err != nil || f.All[0].Target.Role != wire.RoleServer {
				t.Fatal(f.Texts(), err)
			}
			sum += f.All[0].When.Since.Seconds()
		}
		if got := sum / runs; got < .85*c.mean || got > 1.15*c.mean {
			t.Errorf("%+v: the mean is %.2f, want %.2f", c.draw, got, c.mean)
		}
	}
}

// TestDraw checks that drawn faults are within the run and hit only machines that are up.
func TestDraw(t *testing.T) {
	for _, ofJob := range []bool{false, true} {
		d := &faultPlan{
			Given: []string{"freeze:worker:0@90s+1s"},
			Draw:  &faultDraw{Law: lawExponential, Mean: 3 * time.Second, OfJob: ofJob, Away: 20 * time.Second},
		}
		job := faultJob{Workers: 2, Servers: 1, Time: time.Minute, Seed: 7}
		f, err := d.Of(job)
		if err != nil || len(f.All) < 5 || f.All[len(f.All)-1].Kind != "freeze" {
			t.Fatal(f.Texts(), err)
		}
		until := map[string]time.Duration{}
		for _, fault := range f.All[:len(f.All)-1] {
			at := fault.When.Since
			if at >= time.Minute || at < until[fault.Target.String()] {
				t.Errorf("of the job %v: %s; %q", ofJob, fault, f.Texts())
			}
			until[fault.Target.String()] = at + fault.For
		}
		if again := texts(t, d, job); !slices.Equal(again, f.Texts()) {
			t.Errorf("%q, and then %q", f.Texts(), again)
		}
		job.Seed++
		if other := texts(t, d, job); slices.Equal(other, f.Texts()) {
			t.Errorf("another seed gives the same faults: %q", other)
		}
	}
}
