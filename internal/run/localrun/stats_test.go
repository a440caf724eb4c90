package localrun

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
)

var begin = time.Unix(1000, 0)

func tallyOf(job perdure.JobSpec) *jobStats { return newStats(&settings.Run{Job: job}, begin) }

// TestSummaryCounts checks that updates are counted when the job is complete, and not later while a shard's chain
// changes.
func TestSummaryCounts(t *testing.T) {
	y := tallyOf(perdure.JobSpec{})
	for _, c := range []struct {
		told, want int64
		complete   bool
	}{{3, 3, false}, {2, 2, false}, {9, 9, true}, {5, 9, false}, {6, 9, false}, {8, 8, true}, {1, 8, false}} {
		y.RecordProgress(wire.Progress{UpdatesApplied: c.told, Complete: c.complete}, begin)
		if sum := y.Summary(finalValues{}); *sum.UpdatesApplied != c.want {
			t.Errorf("reported %d updates (complete: %v), the summary has %d, want %d", c.told, c.complete,
				*sum.UpdatesApplied, c.want)
		}
	}
}

// TestSummaryStands checks that later reports of the coordinator do not change a summary.
func TestSummaryStands(t *testing.T) {
	y := tallyOf(perdure.JobSpec{})
	tell := func(n int64) {
		loss := float64(n)
		y.RecordReport(wire.Report{TrainLoss: &loss}, 0)
		y.RecordProgress(wire.Progress{ClocksRedone: n, UpdatesApplied: n}, begin)
	}
	tell(1)
	sum := y.Summary(finalValues{})
	before := *sum.ClocksRedone + *sum.UpdatesApplied + int64(*sum.TrainLoss)
	tell(10)
	if after := *sum.ClocksRedone + *sum.UpdatesApplied + int64(*sum.TrainLoss); before != 3 || after != before {
		t.Errorf("the summary's figures sum to %d, then to %d, want 3", before, after)
	}
}

// TestClockOfNewCoordinator checks that the clock does not decrease when a new coordinator starts without knowing it,
// and does after a rollback.
func TestClockOfNewCoordinator(t *testing.T) {
	y := tallyOf(perdure.JobSpec{})
	for _, c := range []struct {
		generation, clock, want int
	}{{1, 10, 10}, {1, 0, 10}, {1, 12, 12}, {2, 5, 5}, {2, 3, 5}} {
		y.RecordProgress(wire.Progress{Generation: perdure.Generation(c.generation), Clock: perdure.Clock(c.clock)},
			begin)
		if got := y.Progress().Clock; int(got) != c.want {
			t.Errorf("reported clock %d in generation %d: clock %d, want %d", c.clock, c.generation, got, c.want)
		}
	}
}

// TestClocksDue: points of evaluations do not postpone the rows of clocks.csv.
func TestClocksDue(t *testing.T) {
	y := tallyOf(perdure.JobSpec{Slots: 1})
	rows := 0
	for at := begin; at.Before(begin.Add(5 * time.Second)); at = at.Add(100 * time.Millisecond) {
		if since := at.Sub(begin); since%(400*time.Millisecond) == 0 {
			y.Point(1, since, nil, at)
		}
		y.RecordProgress(wire.Progress{}, at)
		if y.ClocksDue(at) {
			rows++
		}
	}
	if rows != 10 {
		t.Errorf("%d rows in 5 s, want 10", rows)
	}
}

// TestDeadWorkersCountOnce: a slot without a process still has the counters of its last one. They count once.
func TestDeadWorkersCountOnce(t *testing.T) {
	y := tallyOf(perdure.JobSpec{Slots: 1})
	report := func(process string, samples int64) {
		y.RecordProgress(wire.Progress{Members: []wire.MemberProgress{{
			Role: wire.RoleWorker, Process: process, Worker: &perdure.WorkerCounters{Samples: samples},
		}}}, begin)
	}
	report("first", 10)
	report("", 12) // it died, and had reported more
	report("second", 1)
	y.mu.Lock()
	defer y.mu.Unlock()
	if w := y.totals(); w.Samples != 13 {
		t.Errorf("%d samples, want 13", w.Samples)
	}
}

// TestSpeed checks that the displayed and recorded speed is that of the last seconds, even with many rows of one clock,
// and while clocks wait for an evaluation.
func TestSpeed(t *testing.T) {
	y, now, points := tallyOf(perdure.JobSpec{Clocks: 5000}), begin, 0
	point := func(clock perdure.Clock) {
		points++
		p := y.Point(clock, now.Sub(begin), nil, now)
		if v := p.ClocksPerSecond; v == nil || *v < 150 || *v > 260 {
			t.Errorf("clock %d: %v clocks per second; want 180 to 250", clock, v)
		}
	}
	for clock := range perdure.Clock(400) {
		now = now.Add(4 * time.Millisecond)
		if y.RecordProgress(wire.Progress{Clock: clock, End: 5000}, now) {
			point(clock)
		}
		if clock%100 == 0 && clock > 0 { // the others wait for the evaluation
			now = now.Add(120 * time.Millisecond)
			if y.RecordReport(wire.Report{Clock: clock, TestLoss: new(1.0)}, now.Sub(begin)) {
				point(clock)
			}
		}
		if v := y.State(now.Sub(begin), now).ClocksPerSecond; clock > 10 && (v == nil || *v < 1) {
			t.Fatalf("clock %d: %v clocks per second", clock, v)
		}
	}
	if points < 3 {
		t.Errorf("%d points", points)
	}
	now = now.Add(time.Minute)
	if v := y.State(now.Sub(begin), now).ClocksPerSecond; v == nil || *v > 1 {
		t.Errorf("after a minute without a clock: %v", v)
	}
}

// TestSlotClocks checks that the clock of every slot is recorded, and that a slot without a process has none.
func TestSlotClocks(t *testing.T) {
	y := tallyOf(perdure.JobSpec{Slots: 3})
	slot := func(index int, state string, clock perdure.Clock) wire.MemberProgress {
		return wire.MemberProgress{
			Role: wire.RoleWorker, Index: index, Process: "p" + state, State: state, Clock: clock,
		}
	}
	y.RecordProgress(wire.Progress{Clock: 4, Members: []wire.MemberProgress{
		{Role: wire.RoleServer, Process: "s", State: "alive", Clock: 4},
		slot(0, "alive", 4), slot(2, "silent", 6), slot(3, "dead", 5),
	}}, begin)
	want := rundir.ClocksPoint{Seconds: 2, Clock: 4, Slots: []perdure.Clock{4, rundir.NoProcess, 6, rundir.NoProcess}}
	if got := y.Clocks(2 * time.Second); !reflect.DeepEqual(got, want) {
		t.Errorf("clocks %+v, want %+v", got, want)
	}
}

// TestMeasures checks that the counters of worker processes are summed over all of them, by slot where the summary does
// so, from each process's newest report.
func TestMeasures(t *testing.T) {
	y := tallyOf(perdure.JobSpec{Slots: 2, Consistency: perdure.Consistency{Kind: perdure.ESSP, Staleness: 2}})
	word := func(process string, slot int, compute, staleness, comm time.Duration,
		missing map[int64]int64,
	) wire.MemberProgress {
		return wire.MemberProgress{
			Role:    wire.RoleWorker,
			Index:   slot,
			Process: process,
			Worker: &perdure.WorkerCounters{
				ComputeNs: int64(compute), StalenessNs: int64(staleness), CommNs: int64(comm), MissingUpdates: missing,
			},
		}
	}
	var split [][]float64 // of the points
	tell := func(after time.Duration, places ...wire.MemberProgress) {
		y.RecordProgress(wire.Progress{Members: places}, begin.Add(after))
		p := y.Point(1, after, nil, begin.Add(after))
		split = append(split, []float64{*p.TimeCompute, *p.TimeStaleness, *p.TimeCommunication})
	}
	tell(time.Second,
		word("first", 0, time.Second, 0, 0, map[int64]int64{0: 1}),
		word("second", 1, time.Second, time.Second, time.Second, map[int64]int64{0: 5, 3: 1}),
		wire.MemberProgress{Role: wire.RoleServer, Index: 0, Process: "server"})
	tell(2*time.Second, // slot 0 has a new process without earlier reports
		word("first", 0, 3*time.Second, 0, 0, map[int64]int64{0: 10}),
		word("second", 1, time.Second, 2*time.Second, time.Second, map[int64]int64{0: 6, 3: 1}),
		word("third", 0, 0, 0, time.Second, map[int64]int64{-1: 2}))
	if want := [][]float64{{0.5, 0.25, 0.25}, {0.5, 0.25, 0.25}}; !reflect.DeepEqual(split, want) {
		t.Errorf("series: time split %v, want %v", split, want)
	}
	sum := y.Summary(finalValues{})
	want := &rundir.TimeSplit{
		Compute: 0.5, Staleness: 0.25, Communication: 0.25,
		Workers: []rundir.WorkerTime{
			{Slot: 0, ComputeS: 3, CommunicationS: 1},
			{Slot: 1, ComputeS: 1, StalenessS: 2, CommunicationS: 1},
		},
	}
	if !reflect.DeepEqual(sum.TimeSplit, want) {
		t.Errorf("time split %+v, want %+v", sum.TimeSplit, want)
	}
	if missing := map[string]int64{"-1": 2, "0": 16, "3": 1}; !reflect.DeepEqual(sum.MissingUpdates, missing) {
		t.Errorf("missing updates %v, want %v", sum.MissingUpdates, missing)
	}
	if sum.MissingBound == nil || *sum.MissingBound != 2*(2*2+1) {
		t.Errorf("missing bound %v, want 10", sum.MissingBound)
	}
}

// TestNoMeasures checks that values without a report are unknown rather than 0. Without a bound in clocks, the number
// of updates that a read lacks is unbounded.
func TestNoMeasures(t *testing.T) {
	y := tallyOf(perdure.JobSpec{
		Slots: 2, Consistency: perdure.Consistency{Kind: perdure.BSP},
		TableConsistency: map[string]perdure.Consistency{"w": {Kind: perdure.ASP}},
	})
	if sum := y.Summary(finalValues{}); sum.TimeSplit != nil || sum.MissingBound != nil || sum.ModelSHA256 != nil ||
		sum.Outage != nil {
		t.Errorf("%+v", sum)
	}
	if now := y.State(0, begin); now.TrainLoss != nil || now.ClocksPerSecond != nil || now.MBPerSecond != 0 {
		t.Errorf("%+v", now)
	}
	if p := y.Point(0, 0, nil, begin); p.SamplesPerSecond != nil || p.Backlog != nil || p.TestLoss != nil {
		t.Errorf("%+v", p)
	}
}

// TestTestedOnce checks that an evaluation is in exactly one point of the series.
func TestTestedOnce(t *testing.T) {
	y := tallyOf(perdure.JobSpec{})
	if y.RecordReport(wire.Report{TrainLoss: new(1.0)}, 0) {
		t.Error("a training loss counts as an evaluation")
	}
	if !y.RecordReport(wire.Report{TestAccuracy: new(0.5), Backlog: true}, 0) {
		t.Error("a test accuracy does not count as an evaluation")
	}
	if p := y.Point(1, 0, nil, begin); p.TestAccuracy == nil || p.Backlog == nil || !*p.Backlog || *p.TrainLoss != 1 {
		t.Errorf("%+v", p)
	}
	if p := y.Point(2, 0, nil, begin); p.TestAccuracy != nil || p.Backlog != nil || *p.TrainLoss != 1 {
		t.Errorf("the next point: %+v", p)
	}
	if sum := y.Summary(
		finalValues{Model: &finalModel{SHA256: "x"}},
	); *sum.ModelSHA256 != "x" ||
		*sum.TestAccuracy != 0 {
		t.Errorf("%+v", sum)
	}
}

// TestFinal checks that the last point of the series has the evaluation of the exported model.
func TestFinal(t *testing.T) {
	y := tallyOf(perdure.JobSpec{})
	early := 0.5
	y.RecordReport(wire.Report{TestAccuracy: &early}, 0)
	y.Point(1, 0, nil, begin)
	y.RecordFinal(workload.Eval{Loss: 0.25, Accuracy: 0.75, RMSE: math.NaN()})
	p := y.Point(2, time.Second, nil, begin)
	if p.TestLoss == nil || *p.TestLoss != 0.25 || p.TestAccuracy == nil || *p.TestAccuracy != 0.75 ||
		p.TestRMSE != nil {
		t.Errorf("the last point has %v, %v and %v", p.TestLoss, p.TestAccuracy, p.TestRMSE)
	}
	if p.Backlog == nil || *p.Backlog {
		t.Error("the last point does not report that the model has all updates")
	}
}

// TestDataIsNamed checks that a summary names the training data, or reports that there is none.
func TestDataIsNamed(t *testing.T) {
	for _, c := range []struct{ workload, data, want string }{
		{"softmax", "", "embedded"},
		{"mf", "synthetic:0.01", "synthetic:0.01"},
		{"quadratic", "", "none"},
		{settings.OwnWorkload, "", "own"},
	} {
		run := &settings.Run{Job: perdure.JobSpec{Workload: c.workload}}
		run.Params.Data = c.data
		if got := newStats(run, begin).Summary(finalValues{}).Data; got != c.want {
			t.Errorf("%s of %q: data %s, want %s", c.workload, c.data, got, c.want)
		}
	}
}

// TestUntrained checks that the summary has a line for each slot that did not train on all of its data, sorted by slot.
func TestUntrained(t *testing.T) {
	y := tallyOf(perdure.JobSpec{})
	left := int64(19)
	y.RecordReport(wire.Report{Slot: 2, Untrained: &wire.Untrained{Unsent: 5}}, 0)
	y.RecordReport(wire.Report{Slot: 1, Untrained: &wire.Untrained{Left: &left, Total: 50, Unsent: 3}}, 0)
	y.RecordReport(wire.Report{Slot: 3, Untrained: &wire.Untrained{Left: &left, Total: 60, Unit: wire.UnitSteps}}, 0)
	y.RecordReport(wire.Report{Slot: 0, Untrained: &wire.Untrained{}}, 0)
	own := []string{"of the workload"}
	got := y.Summary(finalValues{Model: &finalModel{Findings: own}}).Findings
	const done = "slot %d was not done when the job ended: %s"
	want := []string{
		own[0], fmt.Sprintf(done, 0, "its loop had not ended"),
		fmt.Sprintf(done, 1, "19 of 50 batches were not trained, 3 steps since its last outer step do not count"),
		fmt.Sprintf(done, 2, "5 steps since its last outer step do not count"),
		fmt.Sprintf(done, 3, "19 of 60 steps were not trained"),
	}
	if !slices.Equal(got, want) {
		t.Errorf("summary %q, want %q", got, want)
	}
}
