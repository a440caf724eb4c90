package cnn

import (
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// small is a network small enough to check every value.
var small = shape{side: 8, first: 2, second: 3, hidden: 35}

// noise returns a data set of random pictures.
func noise(r *rand.Rand, n, side, classes int) *dataset.Examples {
	split := dataset.Split{
		N: n, Dim: side * side, Classes: classes, Pixels: make([]uint8, n*side*side),
		Labels: make([]uint8, n),
	}
	for i := range split.Pixels {
		split.Pixels[i] = uint8(r.Uint32())
	}
	for i := range split.Labels {
		split.Labels[i] = uint8(r.IntN(classes))
	}
	return &dataset.Examples{Name: "noise", Train: split, Test: split}
}

// randomParameters returns parameters and biases of the same scale as in training.
func randomParameters(r *rand.Rand, m *Model) Parameters {
	p := blank(m.specs(perdure.Rule{}))
	for i, s := range m.specs(perdure.Rule{}) {
		for k := range p[i] {
			p[i][k] = float32(r.NormFloat64() * max(0.1, s.Init.Scale/2))
		}
	}
	return p
}

func mustModel(t testing.TB, data *dataset.Examples, o Options, s shape) *Model {
	t.Helper()
	m, err := newModel(data, o, s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// naive is a simple reference implementation of the network in float64. It returns the mean loss of pictures and their
// scores. masks holds the weight of each unit, by picture.
func naive(
	m *Model, p [tables][]float64, split *dataset.Split, pictures []int32, masks [][]float32,
) (loss float64, scores [][]float64) {
	c1, c2 := m.conv1.out, m.conv2.out
	bias := p[Bias]
	for i, picture := range pictures {
		x := make([]float64, split.Dim)
		for k, level := range split.Image(int(picture)) {
			x[k] = float64(level)/127.5 - 1
		}
		x = naivePool(naiveConv(m.conv1, x, p[Conv1], bias[:c1]), m.conv1.side)
		x = naivePool(naiveConv(m.conv2, x, p[Conv2], bias[c1:c1+c2]), m.conv2.side)
		score := slices.Clone(bias[c1+c2+m.hidden:])
		for u := range m.hidden {
			unit := max(0, bias[c1+c2+u]+dot(x, p[Full1][u*m.flat:][:m.flat])) * float64(masks[i][u])
			for k := range score {
				score[k] += unit * p[Full2][u*m.classes+k]
			}
		}
		sum := 0.0
		for k := range score {
			if m.options.FinalReLU {
				score[k] = max(0, score[k])
			}
			sum += math.Exp(score[k])
		}
		loss += (math.Log(sum) - score[split.Labels[picture]]) / float64(len(pictures))
		scores = append(scores, score)
	}
	return loss, scores
}

func allWide(p *Parameters) (w [tables][]float64) {
	for i, v := range p {
		w[i] = wide(v)
	}
	return w
}

// masksOf returns the weights of the units in a slot's clock.
func masksOf(m *Model, slot perdure.Slot, clock perdure.Clock) [][]float32 {
	d := m.masks(slot, clock)
	masks := make([][]float32, m.options.Batch)
	for i := range masks {
		masks[i] = make([]float32, m.hidden)
		fill(masks[i], 1)
		d.relu(masks[i], i)
	}
	return masks
}

// TestGradientIsTheSlopeOfTheLoss checks every parameter of a small network against central differences of the
// reference implementation, including across the end of a chunk. Within a step of 1e-5 a ReLU or maximum rarely
// switches; with these seeds none does.
func TestGradientIsTheSlopeOfTheLoss(t *testing.T) {
	for _, o := range []Options{
		{Seed: 1, Slots: 2, Batch: 3},
		{Seed: 2, Slots: 1, Batch: 4, FinalReLU: true},
		{Seed: 3, Slots: 1, Batch: chunk + 2},
	} {
		r := rand.New(rand.NewPCG(o.Seed, 1))
		m := mustModel(t, noise(r, 200, small.side, 4), o, small)
		slot, clock := perdure.Slot(o.Slots-1), perdure.Clock(5)
		p, grad := randomParameters(r, m), randomParameters(r, m) // previous values are overwritten
		loss := m.Gradient(&p, slot, clock, &grad)
		pictures, masks, w := slices.Clone(m.order.Batch(slot, clock)), masksOf(m, slot, clock), allWide(&p)
		f := func() float64 { loss, _ := naive(m, w, &m.data.Train, pictures, masks); return loss }
		if want := f(); math.Abs(loss-want) > 1e-5*(1+want) {
			t.Errorf("%+v: loss %v, want %v", o, loss, want)
		}
		for i, s := range m.specs(perdure.Rule{}) {
			if values, of := w[i], grad[i]; o.Batch <= 4 || len(values) < 50 { // larger tables would take too long
				slopes(t, s.Name, values, of, f)
			}
		}
	}
}

// TestGradientOfTheNetwork checks the network of the paper. It compares each table's gradient with the slope of the
// loss along a random direction.
func TestGradientOfTheNetwork(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	data, err := dataset.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	m := mustModel(t, data, Options{Seed: 4, Slots: 1, Batch: 2}, paper)
	plain, err := NewPlain(m, perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.01})
	if err != nil {
		t.Fatal(err)
	}
	p, grad := &plain.values, &plain.grads[0]
	loss := m.Gradient(p, 0, 0, grad)
	pictures, masks, w := slices.Clone(m.order.Batch(0, 0)), masksOf(m, 0, 0), allWide(p)
	if want, _ := naive(m, w, &data.Train, pictures, masks); math.Abs(loss-want) > 1e-5 {
		t.Errorf("loss %v, want %v", loss, want)
	}
	for i, s := range plain.specs {
		direction := wide(random(r, len(w[i])))
		at := w[i]
		along := func(step float64) float64 {
			w[i] = slices.Clone(at)
			for k, d := range direction {
				w[i][k] += step * d
			}
			loss, _ := naive(m, w, &data.Train, pictures, masks)
			return loss
		}
		const step = 1e-7
		want, got := (along(step)-along(-step))/(2*step), dot(direction, wide(grad[i]))
		w[i] = at
		if math.Abs(got-want) > 1e-3*math.Abs(want) {
			t.Errorf("%s: slope %v, gradient %v", s.Name, want, got)
		}
	}
}

func TestEvaluateIsTheNaiveOne(t *testing.T) {
	for _, final := range []bool{false, true} {
		r := rand.New(rand.NewPCG(8, 8))
		m := mustModel(t, noise(r, chunk+20, small.side, 5), Options{Slots: 1, Batch: 1, FinalReLU: final}, small)
		p := randomParameters(r, m)
		var all []int32
		var masks [][]float32
		for i := range m.data.Test.N {
			ones := make([]float32, m.hidden)
			fill(ones, 1)
			all, masks = append(all, int32(i)), append(masks, ones)
		}
		wantLoss, scores := naive(m, allWide(&p), &m.data.Test, all, masks)
		right := 0
		for i, s := range scores {
			if slices.Index(s, slices.Max(s)) == int(m.data.Test.Labels[i]) {
				right++
			}
		}
		loss, accuracy := m.Evaluate(&p, &m.data.Test)
		if math.Abs(loss-wantLoss) > 1e-5 || accuracy != float64(right)/float64(len(all)) {
			t.Errorf("loss %v, accuracy %v; want %v, %v", loss, accuracy, wantLoss, float64(right)/float64(len(all)))
		}
	}
}

// TestLearns trains with the paper's settings, except for the rate, in a fraction of a second. A second trainer with a
// different number of processors, and with other batches in between, must compute the same bits.
func TestLearns(t *testing.T) {
	data, err := dataset.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	few := *data
	few.Test.N = 300
	start := func() *Plain {
		p, err := NewPlain(mustModel(t, &few, Options{Seed: 5, Slots: 2, Batch: DefaultBatch}, paper),
			perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.03})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := start()
	before, _ := p.HeldOut()
	p.Run(12)
	after, accuracy := p.HeldOut()
	if !(after < 0.6*before) || accuracy < 0.5 {
		t.Errorf("held-out loss %v before, %v after, accuracy %v", before, after, accuracy)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3 - min(2, runtime.GOMAXPROCS(0))))
	again := start()
	for clock := range perdure.Clock(12) {
		again.model.Gradient(&again.values, 1, 1000+clock, &again.grads[0])
		again.Run(1)
	}
	for i, s := range p.specs {
		if !slices.Equal(p.values[i], again.values[i]) {
			t.Errorf("%s has other bits the second time", s.Name)
		}
	}
}

// TestClockIsPure checks that a clock's bits do not depend on earlier computations, and that slots, clocks and seeds
// differ.
func TestClockIsPure(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	data := noise(r, 100, small.side, 4)
	o := Options{Seed: 7, Slots: 3, Batch: 5}
	used := mustModel(t, data, o, small)
	p := randomParameters(r, used)
	gradient := func(m *Model, slot perdure.Slot, clock perdure.Clock) []float32 {
		grad := blank(m.specs(perdure.Rule{}))
		m.Gradient(&p, slot, clock, &grad)
		return slices.Concat(grad[:]...)
	}
	var seen [][]float32
	for _, at := range []struct {
		seed  uint64
		slot  perdure.Slot
		clock perdure.Clock
	}{{7, 0, 0}, {7, 2, 0}, {7, 0, 9}, {7, 2, 1 << 40}, {8, 0, 0}} {
		if at.seed != o.Seed {
			o.Seed = at.seed
			used = mustModel(t, data, o, small)
		}
		got := gradient(used, at.slot, at.clock)
		if !slices.Equal(got, gradient(mustModel(t, data, o, small), at.slot, at.clock)) {
			t.Errorf("%+v: other bits than of a new model", at)
		}
		if slices.ContainsFunc(seen, func(other []float32) bool { return slices.Equal(other, got) }) {
			t.Errorf("%+v: the bits of another clock", at)
		}
		seen = append(seen, got)
	}
}

// TestMasks checks that different slots, clocks and seeds have different masks.
func TestMasks(t *testing.T) {
	data := noise(rand.New(rand.NewPCG(6, 6)), 10, small.side, 4)
	seen := map[dropout]bool{}
	for seed := range uint64(3) {
		m := mustModel(t, data, Options{Seed: seed, Slots: 3, Batch: 1}, small)
		for slot := range perdure.Slot(3) {
			for clock := range perdure.Clock(3) {
				seen[m.masks(slot, clock)] = true
			}
		}
	}
	if len(seen) != 27 {
		t.Errorf("27 clocks have %d masks", len(seen))
	}
}

// TestSparse checks that the workload supports sparse tables.
func TestSparse(t *testing.T) {
	w, err := Open(api.Params{
		Slots: 1, Batch: 1, Sparse: true,
		Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: DefaultRate},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range w.Tables() {
		s.Consistency = perdure.Consistency{Kind: perdure.BSP}
		if err := s.Validate(100); err != nil || !s.Sparse {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestAllocatesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	m := mustModel(t, noise(r, 100, small.side, 4), Options{Slots: 1, Batch: 7}, small)
	p, grad := randomParameters(r, m), randomParameters(r, m)
	clock := perdure.Clock(0)
	if n := testing.AllocsPerRun(20, func() { m.Gradient(&p, 0, clock, &grad); clock++ }); n > 0 {
		t.Errorf("%v allocations in a clock", n)
	}
	if n := testing.AllocsPerRun(20, func() { m.Evaluate(&p, &m.data.Test) }); n > 0 {
		t.Errorf("%v allocations in an evaluation", n)
	}
}

func TestRefuses(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	good := noise(r, 10, 28, 4)
	lines := *good
	lines.Train.Pixels, lines.Train.Features = nil, make([]float32, 10*784)
	for _, c := range []struct {
		data *dataset.Examples
		o    Options
		want string
	}{
		{good, Options{Slots: 1}, "batch of 0 images"},
		{good, Options{Batch: 1}, "number of workers 0"},
		{good, Options{Batch: 1, Slots: 11}, "11 workers are too many for 10 training examples"},
		{noise(r, 10, 8, 4), Options{Batch: 1, Slots: 1}, "images of 64 pixels; use images of 28 × 28"},
		{noise(r, 10, 28, 1), Options{Batch: 1, Slots: 1}, "the same class"},
		{&lines, Options{Batch: 1, Slots: 1}, "rows of numbers; use images"},
	} {
		if _, err := New(c.data, c.o); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	for _, c := range []struct {
		change func(*api.Params)
		want   string
	}{
		{func(p *api.Params) { p.Slots = 0 }, "number of workers 0"},
		{func(p *api.Params) { p.Batch = 0 }, "batch of 0"},
		{func(p *api.Params) { p.Rule = perdure.Rule{Kind: perdure.RuleAdd} }, "choose a rule that does"},
		{
			func(p *api.Params) { p.Rule = perdure.Rule{Kind: perdure.RuleFTRL, Rate: 1, Beta: 1} },
			"starts from zeros",
		},
	} {
		p := api.Params{Slots: 1, Batch: 1, Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: DefaultRate}}
		c.change(&p)
		if _, err := Open(p); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// HeldOut returns the mean loss and the accuracy on the test pictures.
func (p *Plain) HeldOut() (loss, accuracy float64) {
	return p.model.Evaluate(&p.values, &p.model.data.Test)
}
