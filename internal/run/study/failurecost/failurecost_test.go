package failurecost

import (
	"encoding/json"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
)

// bowl returns a run of the workload quadratic, whose minimum is known.
func bowl(t *testing.T, recovery string) settings.Run {
	t.Helper()
	return runOf(t, recovery, func(*settings.Flags) {})
}

// runOf returns a small run, modified by change.
func runOf(t *testing.T, recovery string, change func(a *settings.Flags)) settings.Run {
	t.Helper()
	rows := 200
	a := settings.Flags{
		Version: "test", Workload: "quadratic",
		Shape: settings.Shape{
			Workers: 2, Servers: 4, Shards: 8, Consistency: "bsp", Recovery: recovery, Clocks: 30, Seed: 3,
		},
		Work: settings.WorkloadFlags{
			Schedule: "const", StepEvery: 1, StepFactor: 0.5, EvalEvery: "10", CacheMB: 1, RetainMB: 1,
			Bowl: settings.QuadFlags{Rows: &rows},
		},
		Grace: "0s", Keep: 1, Reach: settings.Reach{Listen: "127.0.0.1:0"}, Given: map[string]bool{},
	}
	change(&a)
	s, err := a.New()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func asked(t *testing.T) *Flags {
	return &Flags{
		Run: bowl(t, "none"), Recovery: []string{"checkpoint:8", "scar:8,1", "scar:8,1/4,priority"},
		Lost: []string{"1/4", "1"},
		Options: Options{
			Twins: 2, Trials: 3, Failures: 1, Sample: 10, Parallel: 2, Strike: StrikeWithin, SavedAs: SavedWhole,
			Lose: LoseServers, Smooth: 1,
		},
	}
}

// TestStudy checks that a study is reproducible. checkpoint:8 costs the clocks since the last checkpoint. Losing all
// servers under scar:8,1 restores the same rows as rolling back to checkpoint:8.
func TestStudy(t *testing.T) {
	first, err := asked(t).Execute(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	again, err := asked(t).Execute(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(first, again) {
		t.Error("two runs of the same study differ")
	}
	if n := len(first.Trials); n != 3*2*2*3 || len(first.Cells) != 6 {
		t.Fatalf("%d trials in %d cells", n, len(first.Cells))
	}
	norms := map[string]float64{}
	for _, tr := range first.Trials {
		f := tr.Failures[0]
		switch {
		case tr.Strategy == "checkpoint:8":
			if tr.Cost != int(f.Clock%8) || tr.Censored || f.Norm != 0 {
				t.Errorf("checkpoint:8 at clock %d: %+v", f.Clock, tr)
			}
		case tr.Strategy == "scar:8,1,priority":
			norms[key(&tr)] = f.Norm
			if f.Clock%8 == 0 && f.Norm != 0 {
				t.Errorf("everything was saved in clock %d, but %g is lost", f.Clock, f.Norm)
			}
		}
		if f.Clock < 1 || f.Clock > 24 {
			t.Errorf("failure at clock %d of 30", f.Clock)
		}
	}
	for _, tr := range first.Trials { // partial recovery never moves further than full recovery from the same values
		if tr.Strategy == "scar:8,1,priority" && tr.Lost < 1 {
			all := tr
			all.Lost = 1
			if part, whole := tr.Failures[0].Norm, norms[key(&all)]; part > whole {
				t.Errorf("clock %d: losing a part of the servers moves by %g, losing all by %g",
					tr.Failures[0].Clock, part, whole)
			}
		}
	}
	if b, err := json.Marshal(first); err != nil || !strings.Contains(string(b), `"fewer":null`) {
		t.Errorf("as JSON: %v; the first strategy must not be compared", err)
	}
	if err := first.Print(io.Discard); err != nil {
		t.Error(err)
	}
	if err := first.Write(t.TempDir()); err != nil {
		t.Error(err)
	}
	if text := first.Table(); !strings.Contains(text, "| `scar:8,1/4,priority` |") ||
		!strings.Contains(text, "¼ lost") || strings.Count(text, "\n") != 5 {
		t.Errorf("the table is\n%s", text)
	}
}

func key(t *Trial) string {
	b, _ := json.Marshal([]any{t.Lost, t.Seed, t.Failures[0].Clock})
	return string(b)
}

// TestBytes checks that the bytes that a strategy writes do not depend on the order of the strategies.
func TestBytes(t *testing.T) {
	bytes := func(recovery ...string) map[string]int64 {
		a := asked(t)
		a.Recovery = append([]string{"checkpoint:8"}, recovery...)
		r, err := a.Execute(t.Context(), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		return r.Bytes
	}
	one, other := bytes("scar:8,1", "scar:8,1/4,round"), bytes("scar:8,1/4,round", "scar:8,1")
	if len(one) != 3 || one["checkpoint:8"] == 0 || !reflect.DeepEqual(one, other) {
		t.Errorf("bytes %v, but %v in another order", one, other)
	}
}

// TestCopies checks that a copy continues exactly as the original, that a loss in one does not affect the other, and
// that a training that loses shards continues with the rows that SavedRows returns.
func TestCopies(t *testing.T) {
	s := bowl(t, "scar:8,1/4,round")
	crew, err := NewSlotWorkloads(&s)
	if err != nil {
		t.Fatal(err)
	}
	steps := func(tr *Training, n int) {
		for range n {
			if _, err := tr.Compute(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := tr.Apply(); err != nil {
				t.Fatal(err)
			}
		}
	}
	hash := func(tr *Training) string {
		h, err := tr.Hash()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	a, err := NewTraining(&s, crew)
	if err != nil {
		t.Fatal(err)
	}
	steps(a, 7)
	b, err := a.Copy(crew)
	if err != nil {
		t.Fatal(err)
	}
	steps(a, 5)
	steps(b, 5)
	if hash(a) != hash(b) {
		t.Error("a copy continues differently")
	}
	calm := hash(b)
	laid, err := a.SavedRows(2)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Lose([]int{2}); err != nil {
		t.Fatal(err)
	}
	if squaredDistance(a.Parts(2), laid) != 0 || squaredDistance(a.Parts(2), b.Parts(2)) == 0 {
		t.Error("the rows of a lost shard are not those last saved")
	}
	if hash(a) == calm || hash(b) != calm {
		t.Error("a loss changes nothing, or also changes the copy")
	}
}

// TestForks checks that a fork has the same results and losses as a training from the first clock on, even if slots
// have memory, as those of lda do.
func TestForks(t *testing.T) {
	half, docs, rank, topics := 0.5, "synthetic:100", 2, 10
	for name, change := range map[string]func(a *settings.Flags){
		"quadratic": func(*settings.Flags) {},
		"lda": func(a *settings.Flags) {
			a.Workload, a.Work.Data = "lda", docs
			a.Work.Topics = settings.LDAFlags{Topics: &topics, Fraction: &half}
		},
		"lda rebuild": func(a *settings.Flags) {
			a.Workload, a.Work.Data = "lda", docs
			a.Work.Topics = settings.LDAFlags{Topics: &topics, Fraction: &half, Rebuild: true}
		},
		"lda on table": func(a *settings.Flags) {
			a.Workload, a.Work.Data = "lda", docs
			a.Work.Topics = settings.LDAFlags{
				Topics: &topics, Fraction: &half, Rebuild: true, DocTopics: "table",
			}
		},
		"als": func(a *settings.Flags) {
			a.Workload, a.Work.Factors.Solver, a.Work.Data, a.Work.Factors.Rank = "mf", "als", "synthetic:0.001", &rank
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := asked(t)
			a.Run = runOf(t, "none", func(a *settings.Flags) {
				a.Shape.Clocks = 16
				change(a)
			})
			a.Recovery, a.Lost, a.Twins, a.Trials = []string{"scar:8,1/4,priority"}, []string{"1/2"}, 1, 2
			p, err := a.Plan()
			if err != nil {
				t.Fatal(err)
			}
			for _, strike := range []string{StrikeBetween, StrikeWithin} {
				p.Strike = strike
				p.compare(t)
			}
		})
	}
}

// compare compares the models of all forks of a twin with those of trainings from the first clock on.
func (p *Plan) compare(t *testing.T) {
	t.Helper()
	c := &executor{Plan: p, horizon: 16}
	if err := c.open(3); err != nil {
		t.Fatal(err)
	}
	u, err := c.train(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	crew := <-c.crews
	for _, tr := range c.trials(u) {
		var models []string
		for _, anew := range []bool{false, true} {
			of := tr
			of.Failures = slices.Clone(tr.Failures)
			training, err := c.begin(t.Context(), u, &of, crew, anew)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.disturb(t.Context(), u, &of, training); err != nil {
				t.Fatal(err)
			}
			h, err := training.Hash()
			if err != nil {
				t.Fatal(err)
			}
			models = append(models, h)
		}
		if models[0] != models[1] {
			t.Errorf("strike %s, %+v: the fork ends with a different model", p.Strike, tr)
		}
	}
}

// TestBowl checks that a training in memory matches its workload: the loss of the quadratic falls in every clock.
func TestBowl(t *testing.T) {
	s := bowl(t, "none")
	p := Plan{Run: s}
	if p.measure() != MeasureTrain {
		t.Errorf("the measure of quadratic is %s", p.measure())
	}
	crew, err := NewSlotWorkloads(&s)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := NewTraining(&s, crew)
	if err != nil {
		t.Fatal(err)
	}
	before := math.Inf(1)
	for range 10 {
		loss, err := tr.Compute(t.Context())
		if err != nil || !(loss < before) {
			t.Fatalf("clock %d: loss %g after %g, %v", tr.Clock, loss, before, err)
		}
		before = loss
		if err := tr.Apply(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRefused checks that mistakes are reported in one line each, before training starts.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(a *Flags)
		want   string
	}{
		"auto":     {func(a *Flags) { a.Recovery = []string{"scar:auto,1/8"} }, "depends on time"},
		"chain":    {func(a *Flags) { a.Recovery = []string{"chain:2"} }, "checkpoint:C"},
		"full":     {func(a *Flags) { a.Recovery = []string{"checkpoint:8"} }, "rolls back all shards"},
		"selector": {func(a *Flags) { a.Recovery = []string{"scar:8,1/8,best"} }, "best"},
		"lost":     {func(a *Flags) { a.Lost = []string{"0"} }, "--lost 0"},
		"more":     {func(a *Flags) { a.Lost = []string{"3/2"} }, "--lost 3/2"},
		"part":     {func(a *Flags) { a.Lost = []string{"half"} }, "--lost half"},
		"failures": {func(a *Flags) { a.Failures = 20 }, "--failures 20"},
		"no fail":  {func(a *Flags) { a.Failures = 0 }, "--failures 0"},
		"perturb":  {func(a *Flags) { a.Perturb = []string{"shake:1"} }, "--perturb shake:1; choose random:X"},
		"random":   {func(a *Flags) { a.Perturb = []string{"random:much"} }, "--perturb random:much"},
		"reset":    {func(a *Flags) { a.Perturb = []string{"reset:2"} }, "--perturb 2; choose a fraction"},
		"stale":    {func(a *Flags) { a.Perturb = []string{"stale:0"} }, "is 1 to 1000"},
		"lose":     {func(a *Flags) { a.Lose = "rows" }, "--lose rows"},
		"smooth":   {func(a *Flags) { a.Smooth = 20 }, "--smooth 20"},
		"unsmooth": {func(a *Flags) { a.Smooth, a.Measure = 2, MeasureDistance }, "bounds apply to single clocks"},
		"saved as": {func(a *Flags) { a.SavedAs = "int8" }, "--saved-as int8"},
		"twins":    {func(a *Flags) { a.Twins = 0 }, "number of twins 0"},
		"mean":     {func(a *Flags) { a.MeanClocks = 0.5 }, "--mean-clocks 0.5"},
		"measure":  {func(a *Flags) { a.Measure = "accuracy" }, "--measure accuracy"},
		"strike":   {func(a *Flags) { a.Strike = "soon" }, "--strike soon"},
		"sample":   {func(a *Flags) { a.Sample = 0 }, "--sample 0"},
		"clocks":   {func(a *Flags) { a.Run.Job.Clocks = 5 }, "--clocks 5"},
		"vap": {
			func(a *Flags) { a.Run.Job.Consistency = perdure.Consistency{Kind: perdure.VAP, Bound: 1} },
			"bsp, ssp:S or asp",
		},
		"scale": {func(a *Flags) { a.Run.Scale = []string{"3@clock:5"} }, "--scale"},
	} {
		t.Run(name, func(t *testing.T) {
			a := asked(t)
			c.change(a)
			if _, err := a.Plan(); err == nil || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want one line with %q", err, c.want)
			}
		})
	}
}
