package failurecost

import (
	"io"
	"math"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// tried runs trials of a quadratic. All its clocks make equal progress, so a training that loses everything and
// continues from the rows saved at some clock lags by the clocks since then.
func tried(t *testing.T, change func(a *Flags)) *Result {
	t.Helper()
	a := asked(t)
	a.Strike, a.Lost, a.Recovery = StrikeBetween, []string{"1"}, []string{"checkpoint:8", "scar:8,1", "none"}
	change(a)
	r, err := a.Execute(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// behind returns by how many clocks a trial of the quadratic lags if each failure loses everything, and everything is
// saved every few clocks; every 0 means never.
func behind(failures []Failure, every perdure.Clock) int {
	saved, at, last := perdure.Clock(0), perdure.Clock(0), failures[len(failures)-1].Clock
	left := failures
	for clock := perdure.Clock(0); clock <= last; clock++ {
		if len(left) > 0 && left[0].Clock == clock {
			at, left = saved, left[1:]
		}
		if at++; every > 0 && (clock+1)%every == 0 {
			saved = at
		}
	}
	return int(last + 1 - at)
}

// TestFailures checks that each of several failures strikes the training that the earlier ones disturbed, with the rows
// saved since.
func TestFailures(t *testing.T) {
	for _, failures := range []int{1, 2, 3} {
		r := tried(t, func(a *Flags) { a.Failures, a.Trials, a.MeanClocks = failures, 5, 6 })
		some := 0
		for _, tr := range r.Trials {
			if len(tr.Failures) != failures {
				t.Fatalf("%d failures: %+v", failures, tr)
			}
			every := map[string]perdure.Clock{"scar:8,1,priority": 8, "none": 0}[tr.Strategy]
			want := behind(tr.Failures, every)
			if tr.Strategy == "checkpoint:8" {
				continue
			}
			if tr.Censored {
				want = min(want, tr.Cost)
			} else if tr.Cost > 0 {
				some++
			}
			if tr.Cost != want {
				t.Errorf("%s, failures %+v: cost %d, censored %t; want %d", tr.Strategy, tr.Failures, tr.Cost,
					tr.Censored, want)
			}
		}
		if some == 0 {
			t.Error("all failures are free")
		}
	}
}

// TestRedone checks the count of repeated clocks when all shards roll back: later failures count the repeated clocks as
// well.
func TestRedone(t *testing.T) {
	arm := armOf(perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 8})
	for want, clocks := range map[int][]perdure.Clock{5: {5}, 0: {16}, 9: {5, 9}, 12: {5, 20}, 3: {8, 11}} {
		tr := Trial{arm: &arm}
		for _, c := range clocks {
			tr.Failures = append(tr.Failures, Failure{Clock: c})
		}
		if got := redone(&tr); got != want {
			t.Errorf("failures at %v: %d clocks repeated, want %d", clocks, got, want)
		}
	}
}

// TestPerturb checks that perturbations have the requested size, that resetting all rows restarts the training, and
// that adversarial perturbations cost more than random ones.
func TestPerturb(t *testing.T) {
	r := tried(t, func(a *Flags) {
		a.Perturb, a.Measure = []string{"random:0.5", "adversarial:0.5", "reset:1", "reset:1/2"}, MeasureDistance
		a.Run.Params.Rule.Rate = 0.5
	})
	starts := map[uint64]float64{}
	costs, norms := map[string]int{}, map[string]float64{}
	for _, tr := range r.Trials {
		f := tr.Failures[0]
		costs[tr.Strategy] += tr.Cost
		norms[tr.Strategy] += f.Norm
		switch tr.Strategy {
		case "random:0.5":
			starts[tr.Seed] = 2 * f.Norm
		case "adversarial:0.5":
			if math.Abs(2*f.Norm-starts[tr.Seed]) > 1e-9 || f.Norm == 0 {
				t.Errorf("%+v: the norm differs from that of random, %v", tr, starts)
			}
		case "reset:1":
			if !tr.Censored && tr.Cost != int(f.Clock) {
				t.Errorf("resetting all rows at clock %d cost %d", f.Clock, tr.Cost)
			}
		}
		if tr.Lost == 0 && f.Servers != nil {
			t.Errorf("%s killed servers", tr.Strategy)
		}
	}
	if costs["adversarial:0.5"] <= costs["random:0.5"] || costs["random:0.5"] <= 0 || norms["reset:1/2"] == 0 ||
		norms["reset:1/2"] >= norms["reset:1"] {
		t.Errorf("costs %v, norms %v", costs, norms)
	}
}

// TestBounds checks that costs stay within their bounds, and that there is no bound if the training does not contract.
func TestBounds(t *testing.T) {
	r := tried(t, func(a *Flags) {
		a.Perturb, a.Measure, a.Failures = []string{"random:0.2", "adversarial:0.02"}, MeasureDistance, 2
		a.Recovery, a.Lost = append(a.Recovery, "scar:8,1/4,round"), []string{"1/2", "1"}
	})
	known := 0
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Strategy == "checkpoint:8" {
			if c.Bounds != nil {
				t.Errorf("%+v has bounds", c)
			}
			continue
		}
		if c.Bounds == nil || c.Bounds.Known != c.Trials-c.Censored || c.Bounds.Below != c.Bounds.Known {
			t.Fatalf("%s, %g lost: %+v of %d trials, %d censored", c.Strategy, c.Lost, c.Bounds, c.Trials, c.Censored)
		}
		known += c.Bounds.Known
	}
	if known < 10 || r.BoundsTable() == "" {
		t.Errorf("%d trials have bounds", known)
	}
	u := &twin{
		initial: rows{{one(t, 0)}}, best: rows{{one(t, 1)}}, losses: []float64{1, 0.5, 0.25}, epsilon: 0.25, rate: 0.5,
	}
	u.reach.Clock = 2
	// The failure moves the model by 2. With c = 1/2 the distances are 2.5, 1.25 …, so ε is reached four clocks later.
	tr := &Trial{Cost: 3, Failures: []Failure{{Clock: 1, Norm: 2}}}
	err := u.setBounds(tr, []float64{1, 2.5, 1.25, 0.625, 0.3125, 0.15625}, StrikeBetween)
	if err != nil || tr.Bound == nil || *tr.Bound < tr.Cost || *tr.Bound > tr.Cost+2 {
		t.Errorf("bound %v, %v; the cost is %d", tr.Bound, err, tr.Cost)
	}
	if tr.SimpleBound == nil || math.Abs(*tr.SimpleBound-math.Log2(5)) > 1e-9 {
		t.Errorf("neat form %v", tr.SimpleBound)
	}
	tr = &Trial{Cost: 3, Failures: []Failure{{Clock: 1, Norm: 2}}}
	err = u.setBounds(tr, []float64{1, 2.5, 2.6, 0.625, 0.3125, 0.15625}, StrikeBetween)
	if err != nil || tr.Bound != nil {
		t.Errorf("bound %v, %v for a training that does not contract", tr.Bound, err)
	}
}

// one returns a table with a single value.
func one(t *testing.T, v float32) *table.Part {
	t.Helper()
	p := table.New(perdure.TableSpec{Name: "x", Rows: 1, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}}, 0, 1, 0, 1)
	if err := p.ApplyRows(0, nil, 1, []float32{v}, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestStale checks that with reads one clock old the first step is repeated, and that older reads cost more.
func TestStale(t *testing.T) {
	s := bowl(t, "none")
	s.Params.Rule.Rate = 0.25
	crew, err := NewSlotWorkloads(&s)
	if err != nil {
		t.Fatal(err)
	}
	norm := func(stale, clocks int) float64 {
		tr, err := NewTraining(&s, crew)
		if err != nil {
			t.Fatal(err)
		}
		tr.Stale = stale
		for range clocks {
			if _, err := tr.Compute(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := tr.Apply(); err != nil {
				t.Fatal(err)
			}
		}
		return distance(tr, initial(tr))
	}
	first := norm(0, 1)
	if fresh, old := norm(0, 2), norm(1, 2); math.Abs(old/first-2) > 1e-6 || fresh/first > 1.99 {
		t.Errorf("one step moves by %g; two steps by %g, and by %g with reads one clock old", first, fresh, old)
	}
	if three := norm(1, 3); three/first > 2.99 {
		t.Errorf("three steps move by %g: reads are older than one clock", three)
	}
	r := tried(t, func(a *Flags) {
		a.Run.Params.Rule.Rate = 0.25
		a.Perturb = []string{"stale:1", "stale:3"}
	})
	if n := len(r.Trials); n != 2*(3*3+2) || len(r.Cells) != 5 || r.Cells[3].Trials != 2 {
		t.Errorf("%d trials in %d cells, %+v", n, len(r.Cells), r.Cells[3])
	}
}

// TestSavedAs checks that rows saved as bfloat16 return rounded to 8 bits of precision, to nearest with ties to even.
func TestSavedAs(t *testing.T) {
	for v, want := range map[float32]float32{
		1: 1, 1 + 1.0/128: 1 + 1.0/128, 1 + 1.0/256: 1, 1 + 3.0/256: 1 + 1.0/64, -1 - 1.1/256: -1 - 1.0/128, 0: 0,
	} {
		p := one(t, v)
		if halve([]*table.Part{p}); p.Values(0, 1)[0] != want {
			t.Errorf("%g rounds to %g, want %g", v, p.Values(0, 1)[0], want)
		}
	}
	p := one(t, 0)
	p.Image().Planes[0][0][0] = float32(math.NaN())
	if halve([]*table.Part{p}); p.Values(0, 1)[0] == p.Values(0, 1)[0] {
		t.Error("NaN becomes a number")
	}
	for _, failures := range []int{1, 2} {
		whole := tried(t, func(a *Flags) { a.Failures = failures })
		half := tried(t, func(a *Flags) { a.SavedAs, a.Failures = SavedHalf, failures })
		others := 0
		for i, tr := range half.Trials {
			if tr.Strategy == "scar:8,1,priority" && tr.Failures[0].Norm != whole.Trials[i].Failures[0].Norm {
				others++
			}
		}
		if others == 0 {
			t.Errorf("%d failures: rounded rows return unchanged", failures)
		}
	}
}

// TestLose checks that the requested part of the shards is lost, and that they need not be neighbours on one server.
func TestLose(t *testing.T) {
	a := asked(t)
	a.Lose, a.Lost, a.Trials = LoseShards, []string{"1/4", "1"}, 6
	r, err := a.Execute(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	apart := 0
	for _, tr := range r.Trials {
		f := tr.Failures[0]
		lost := f.lost(&a.Run.Job)
		if len(lost) != int(tr.Lost*8) || f.Servers != nil {
			t.Errorf("%g lost: shards %v, servers %v", tr.Lost, lost, f.Servers)
		}
		if tr.Lost < 1 && lost[0]/2 != lost[1]/2 { // of 8 shards on 4 servers
			apart++
		}
		if tr.Strategy == "scar:8,1,priority" && f.Clock%8 != 0 && f.Norm == 0 {
			t.Errorf("%+v: nothing was lost", tr)
		}
	}
	if apart == 0 {
		t.Error("lost shards always share a server")
	}
}

// TestSmooth checks the moving average. The quadratic's loss falls evenly, so smoothing does not change the costs.
func TestSmooth(t *testing.T) {
	if got := smooth([]float64{4, 2, 6, 1}, 3); !slices.Equal(got, []float64{4, 3, 4, 3}) {
		t.Errorf("the means of 3 clocks are %v", got)
	}
	losses := []float64{9, 7, 8, 5, 6, 3, 4, 1, 2}
	if got := smooth(losses, 1); !slices.Equal(got, losses) {
		t.Errorf("the means of 1 clock are %v", got)
	}
	plain, even := tried(t, func(*Flags) {}), tried(t, func(a *Flags) { a.Smooth = 4 })
	for i, tr := range even.Trials {
		other := &plain.Trials[i]
		if !tr.Censored && !other.Censored && max(tr.Cost-other.Cost, other.Cost-tr.Cost) > 1 {
			t.Errorf("%+v costs %d, and %d without smoothing", tr, tr.Cost, other.Cost)
		}
	}
	if plain.Twins[0].Epsilon >= even.Twins[0].Epsilon {
		t.Errorf("ε is %g, and %g with smoothing", plain.Twins[0].Epsilon, even.Twins[0].Epsilon)
	}
}
