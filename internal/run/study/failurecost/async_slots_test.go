package failurecost

import (
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
)

// under returns a run of the quadratic under a consistency model.
func under(t *testing.T, model string, workers int) settings.Run {
	t.Helper()
	return runOf(t, "none", func(a *settings.Flags) {
		a.Shape.Consistency, a.Shape.Workers = model, workers
		a.Work.LR = new(float64)
		*a.Work.LR = 0.5
	})
}

// after trains s in memory for a number of clocks and returns the training. If copied is above 0, a copy made after
// that many clocks takes the training's place.
func after(t *testing.T, s settings.Run, clocks, copied perdure.Clock) *Training {
	t.Helper()
	crew, err := NewSlotWorkloads(&s)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := NewTraining(&s, crew)
	if err != nil {
		t.Fatal(err)
	}
	for tr.Clock < clocks {
		if _, err := tr.Advance(t.Context()); err != nil {
			t.Fatal(err)
		}
		if tr.Clock == copied {
			if tr, err = tr.Copy(crew); err != nil {
				t.Fatal(err)
			}
		}
	}
	return tr
}

// TestLoose checks the models that a training in memory reaches under ssp and asp, where the order of updates matters.
// A single worker reaches the same bits under asp as under bsp. Four workers reach the model of bsp under ssp:0, up to
// rounding, and a different one under weaker consistency models. A copy of a training also copies its updates in
// progress, and so reaches the same bits.
func TestLoose(t *testing.T) {
	hash := func(tr *Training) string {
		h, err := tr.Hash()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if hash(after(t, under(t, "asp", 1), 9, 0)) != hash(after(t, under(t, "bsp", 1), 9, 0)) {
		t.Error("a single worker gives a different model under asp")
	}
	bsp := after(t, under(t, "bsp", 4), 9, 0)
	way := distance(bsp, initial(bsp))
	if d := distance(after(t, under(t, "ssp:0", 4), 9, 0), rowsOf(bsp)); d > 1e-5*way {
		t.Errorf("under ssp:0 the model is off by %g, of %g", d, way)
	}
	models := map[string]string{}
	for _, model := range []string{"ssp:1", "ssp:3", "asp"} {
		tr := after(t, under(t, model, 4), 12, 0)
		if d := distance(tr, rowsOf(after(t, under(t, "bsp", 4), 12, 0))); d < 1e-3*way {
			t.Errorf("under %s the model is off by only %g, of %g", model, d, way)
		}
		h := hash(tr)
		if again := hash(after(t, under(t, model, 4), 12, 5)); again != h {
			t.Errorf("under %s a copy continues differently", model)
		}
		models[h] = model
	}
	if len(models) < 2 {
		t.Errorf("all models are equal: %v", models)
	}
}

// TestLooseStudy checks that failures under ssp and asp are reproducible, and that settings that require bsp are
// rejected.
func TestLooseStudy(t *testing.T) {
	ask := func(model string) *Flags {
		a := asked(t)
		a.Run, a.Strike = under(t, model, 3), StrikeBetween
		a.Recovery = []string{"scar:8,1", "scar:8,1/4,priority", "none"}
		return a
	}
	for _, model := range []string{"ssp:3", "asp"} {
		first, err := ask(model).Execute(t.Context(), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ask(model).Execute(t.Context(), io.Discard)
		if err != nil || !reflect.DeepEqual(first, again) {
			t.Errorf("%s: two runs of the same study differ, %v", model, err)
		}
		if c := first.Cell("none", 1); c.Mean == nil && c.Censored == 0 || c.Mean != nil && *c.Mean <= 0 {
			t.Errorf("%s: losing everything costs %+v", model, c)
		}
	}
	for want, change := range map[string]func(a *Flags){
		"compare with scar:C,1": func(a *Flags) { a.Recovery = append(a.Recovery, "checkpoint:8") },
		"within a clock":        func(a *Flags) { a.Strike = StrikeWithin },
		"bounds are known":      func(a *Flags) { a.Measure = MeasureDistance },
		"stale anyway":          func(a *Flags) { a.Perturb = []string{"stale:1"} },
		"only under bsp":        func(a *Flags) { a.Repeat = 1 },
	} {
		a := ask("asp")
		change(a)
		if _, err := a.Execute(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
