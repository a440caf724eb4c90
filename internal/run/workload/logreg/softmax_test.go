package logreg

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
)

// randomData returns a data set of random pictures.
func randomData(r *rand.Rand, n, dim, classes int) *dataset.Examples {
	split := dataset.Split{N: n, Dim: dim, Classes: classes, Pixels: make([]uint8, n*dim), Labels: make([]uint8, n)}
	for i := range split.Pixels {
		split.Pixels[i] = uint8(r.Uint32())
	}
	for i := range split.Labels {
		split.Labels[i] = uint8(r.IntN(classes))
	}
	return &dataset.Examples{Name: "noise", Train: split, Test: split}
}

func randomWeights(r *rand.Rand, n int) []float32 {
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(r.NormFloat64() * 0.1)
	}
	return w
}

func newSoftmax(t testing.TB, data *dataset.Examples, o SoftmaxOptions) *Softmax {
	t.Helper()
	m, err := NewSoftmax(data, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func embedded(t testing.TB) *dataset.Examples {
	t.Helper()
	data, err := dataset.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// naive is a simple reference implementation of Gradient in float64, pixel by pixel.
func naive(data *dataset.Split, batch []int32, w []float32, o SoftmaxOptions) (loss float64, grad []float64) {
	classes := data.Classes
	grad = make([]float64, len(w))
	for _, picture := range batch {
		x := make([]float64, data.Dim+1)
		for j := range data.Dim {
			if at := int(picture)*data.Dim + j; data.Pixels != nil {
				x[j] = float64(data.Pixels[at])/127.5 - 1
			} else {
				x[j] = float64(data.Features[at])
			}
		}
		x[data.Dim] = 1
		shares := make([]float64, classes)
		sum := 0.0
		for k := range shares {
			score := 0.0
			for j, v := range x {
				score += v * float64(w[j*classes+k])
			}
			shares[k] = math.Exp(score)
			sum += shares[k]
		}
		label := int(data.Labels[picture])
		loss -= math.Log(shares[label]/sum) / float64(len(batch))
		for k := range shares {
			g := shares[k] / sum
			if k == label {
				g--
			}
			for j, v := range x {
				if o.Full {
					grad[j*classes+k] += g * v / float64(data.N)
				} else {
					grad[j*classes+k] += g * v / float64(len(batch)*o.Slots)
				}
			}
		}
	}
	for i, v := range w[:data.Dim*classes] {
		loss += o.L2 / 2 * float64(v) * float64(v)
		grad[i] += o.L2 * float64(v) / float64(o.Slots)
	}
	return loss, grad
}

// TestSoftmaxGradientIsTheNaiveOne compares with the reference implementation, on pictures and on rows of numbers, with
// sizes beyond one chunk of examples, columns and classes.
func TestSoftmaxGradientIsTheNaiveOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 200).Draw(t, "pictures")
		dim := rapid.IntRange(1, 450).Draw(t, "dim")
		classes := rapid.IntRange(2, 210).Draw(t, "classes")
		o := SoftmaxOptions{
			Seed:  rapid.Uint64().Draw(t, "seed"),
			Slots: rapid.IntRange(1, min(n, 5)).Draw(t, "slots"),
			Batch: rapid.IntRange(1, 150).Draw(t, "batch"),
			L2:    rapid.SampledFrom([]float64{0, 0.1}).Draw(t, "l2"),
			Full:  rapid.Bool().Draw(t, "full"),
		}
		slot := perdure.Slot(rapid.IntRange(0, o.Slots-1).Draw(t, "slot"))
		clock := perdure.Clock(rapid.IntRange(0, 1000).Draw(t, "clock"))
		r := rand.New(rand.NewPCG(o.Seed, 1))
		data := randomData(r, n, dim, classes)
		if rapid.Bool().Draw(t, "features") {
			data.Train.Pixels, data.Train.Features = nil, randomWeights(r, n*dim)
		}
		m, err := NewSoftmax(data, o)
		if err != nil {
			t.Fatal(err)
		}
		w := randomWeights(r, m.Rows()*m.Classes())
		grad := randomWeights(r, len(w)) // previous values are overwritten
		loss := m.Gradient(w, slot, clock, grad)
		wantLoss, want := naive(&data.Train, m.Batch(slot, clock), w, o)
		if math.Abs(loss-wantLoss) > 1e-5*(1+wantLoss) {
			t.Fatalf("loss %v, want %v", loss, wantLoss)
		}
		for i := range want {
			if math.Abs(float64(grad[i])-want[i]) > 1e-5 {
				t.Fatalf("gradient %d is %v, want %v", i, grad[i], want[i])
			}
		}
	})
}

// TestSoftmaxGradientIsTheSlopeOfTheLoss needs no second formula: it compares the gradient with finite differences of
// the loss.
func TestSoftmaxGradientIsTheSlopeOfTheLoss(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	o := SoftmaxOptions{Seed: 3, Slots: 2, Batch: 9, L2: 0.2}
	m := newSoftmax(t, randomData(r, 20, 6, 4), o)
	w := randomWeights(r, m.Rows()*m.Classes())
	grad, unused := make([]float32, len(w)), make([]float32, len(w))
	m.Gradient(w, 1, 5, grad)
	const step = 1.0 / 64
	for i := range w {
		at := w[i]
		w[i] = at + step
		above := m.Gradient(w, 1, 5, unused)
		w[i] = at - step
		below := m.Gradient(w, 1, 5, unused)
		w[i] = at
		if slope := (above - below) / (2 * step) / float64(o.Slots); math.Abs(slope-float64(grad[i])) > 1e-4 {
			t.Errorf("weight %d: slope %v, gradient %v", i, slope, grad[i])
		}
	}
}

func TestSoftmaxEvaluateIsTheNaiveOne(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	data := randomData(r, 150, 30, 5)
	m := newSoftmax(t, data, SoftmaxOptions{Slots: 1, Batch: 1, L2: 5})
	w := randomWeights(r, m.Rows()*m.Classes())
	all := make([]int32, data.Test.N)
	right := 0
	for i := range all {
		all[i] = int32(i)
		// The class with the highest score has the smallest loss as label.
		least, class := math.Inf(1), 0
		for k := range data.Test.Classes {
			as := data.Test
			as.Labels = slices.Repeat([]uint8{uint8(k)}, as.N)
			if loss, _ := naive(&as, []int32{int32(i)}, w, SoftmaxOptions{Slots: 1}); loss < least {
				least, class = loss, k
			}
		}
		if class == int(data.Test.Labels[i]) {
			right++
		}
	}
	wantLoss, _ := naive(&data.Test, all, w, SoftmaxOptions{Slots: 1})
	loss, accuracy := m.Evaluate(w, &data.Test)
	if math.Abs(loss-wantLoss) > 1e-5 || accuracy != float64(right)/150 {
		t.Errorf("loss %v, accuracy %v; want %v, %v", loss, accuracy, wantLoss, float64(right)/150)
	}
}

// TestSoftmaxSameBits also trains twice, so that a dependence on earlier computations would show.
func TestSoftmaxSameBits(t *testing.T) {
	train := func(procs int) []float32 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		m := newSoftmax(t, embedded(t), SoftmaxOptions{Seed: 5, Slots: 2, Batch: 150, L2: 1e-4})
		rate := func(perdure.Clock) float32 { return 0.05 }
		first := TrainPlainSoftmax(m, 10, rate)
		if again := TrainPlainSoftmax(m, 10, rate); !slices.Equal(first, again) {
			t.Error("training again with the same model gives other bits")
		}
		return first
	}
	if one, eight := train(1), train(8); !slices.Equal(one, eight) {
		t.Error("1 and 8 processors give different bits")
	}
}

func TestSoftmaxDoesNotAllocate(t *testing.T) {
	m := newSoftmax(t, embedded(t), SoftmaxOptions{Seed: 5, Slots: 8, Batch: 100})
	w := make([]float32, m.Rows()*m.Classes())
	grad := make([]float32, len(w))
	clock := perdure.Clock(0)
	// 20 clocks with 100 of 1,250 pictures cross the end of an epoch.
	allocs := testing.AllocsPerRun(20, func() {
		m.Gradient(w, 3, clock, grad)
		clock++
	})
	split := dataset.Split{
		N: 100, Dim: 784, Classes: 10, Pixels: m.data.Test.Pixels[:78400],
		Labels: m.data.Test.Labels[:100],
	}
	allocs += testing.AllocsPerRun(3, func() { m.Evaluate(w, &split) })
	if allocs != 0 {
		t.Errorf("%v allocations per clock", allocs)
	}
}

func TestSoftmaxLearns(t *testing.T) {
	data := embedded(t)
	m := newSoftmax(t, data, SoftmaxOptions{Seed: 1, Slots: 4, Batch: SoftmaxBatch})
	w := TrainPlainSoftmax(m, 200, func(perdure.Clock) float32 { return SoftmaxRate })
	loss, accuracy := m.Evaluate(w, &data.Test)
	t.Logf("after 200 clocks: test loss %.4f, accuracy %.4f", loss, accuracy)
	if accuracy < 0.78 || loss > 0.65 {
		t.Errorf("test loss %v, accuracy %v; want at most 0.65, at least 0.78", loss, accuracy)
	}
}

func TestSoftmaxRefuses(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	data, oneClass := randomData(r, 10, 4, 3), randomData(r, 10, 4, 1)
	for want, c := range map[string]struct {
		data *dataset.Examples
		SoftmaxOptions
	}{
		"number of workers 0":                     {data, SoftmaxOptions{Batch: 1}},
		"batch of -1 examples":                    {data, SoftmaxOptions{Slots: 1, Batch: -1}},
		"11 workers are too many for 10 training": {data, SoftmaxOptions{Slots: 11, Batch: 1}},
		"weight decay NaN is not a finite":        {data, SoftmaxOptions{Slots: 1, Batch: 1, L2: math.NaN()}},
		"weight decay +Inf is not a finite":       {data, SoftmaxOptions{Slots: 1, Batch: 1, L2: math.Inf(1)}},
		"the same class":                          {oneClass, SoftmaxOptions{Slots: 1, Batch: 1}},
	} {
		_, err := NewSoftmax(c.data, c.SoftmaxOptions)
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// BenchmarkSoftmaxTrainPlain measures the baseline that jobs are compared with: the same training on one thread,
// without a parameter server.
func BenchmarkSoftmaxTrainPlain(b *testing.B) {
	for _, batch := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			m := newSoftmax(b, embedded(b), SoftmaxOptions{Seed: 1, Slots: 1, Batch: batch})
			b.ResetTimer()
			TrainPlainSoftmax(m, perdure.Clock(b.N), func(perdure.Clock) float32 { return SoftmaxRate })
			b.ReportMetric(float64(b.N)*float64(batch)/b.Elapsed().Seconds(), "samples/s")
		})
	}
}

func BenchmarkSoftmaxEvaluate(b *testing.B) {
	data := embedded(b)
	m := newSoftmax(b, data, SoftmaxOptions{Slots: 1, Batch: 1})
	w := make([]float32, m.Rows()*m.Classes())
	for b.Loop() {
		m.Evaluate(w, &data.Test)
	}
	b.ReportMetric(float64(b.N)*float64(data.Test.N)/b.Elapsed().Seconds(), "samples/s")
}

// TestSoftmaxFullBatch checks that the slots' gradients sum to the gradient over all examples, for any number of them.
func TestSoftmaxFullBatch(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	data := randomData(r, 101, 12, 5)
	w := randomWeights(r, 13*5)
	var first []float32
	for _, slots := range []int{1, 3, 7} {
		m := newSoftmax(t, data, SoftmaxOptions{Seed: 1, Slots: slots, Batch: 1, L2: 0.3, Full: true})
		sum, grad, examples := make([]float32, len(w)), make([]float32, len(w)), 0
		for slot := range perdure.Slot(slots) {
			m.Gradient(w, slot, 4, grad)
			examples += len(m.Batch(slot, 4))
			for i, g := range grad {
				sum[i] += g
			}
		}
		if examples != data.Train.N {
			t.Errorf("%d slots have %d of %d examples", slots, examples, data.Train.N)
		}
		if first == nil {
			first = sum
		}
		for i := range sum {
			if math.Abs(float64(sum[i]-first[i])) > 1e-5 {
				t.Fatalf("%d slots: gradient %d is %v, of one slot %v", slots, i, sum[i], first[i])
			}
		}
	}
}

// TestSoftmaxMean checks gradients that are averaged over slots: each is the gradient over the slot's own examples,
// including weight decay. Their mean, weighted by the number of examples if slots have different numbers, is the
// gradient over all examples.
func TestSoftmaxMean(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	data := randomData(r, 101, 12, 5)
	w := randomWeights(r, 13*5)
	for _, o := range []SoftmaxOptions{{Batch: 7}, {Batch: 1, Full: true}} {
		o.Seed, o.Slots, o.L2, o.Mean = 1, 3, 0.3, true
		whole := o
		whole.Mean = false
		averaged, summed := newSoftmax(t, data, o), newSoftmax(t, data, whole)
		mean, sum, grad, examples := make([]float64, len(w)), make([]float64, len(w)), make([]float32, len(w)), 0
		for slot := range perdure.Slot(o.Slots) {
			n := len(averaged.Batch(slot, 4))
			examples += n
			averaged.Gradient(w, slot, 4, grad)
			for i, g := range grad {
				mean[i] += float64(n) * float64(g)
			}
			summed.Gradient(w, slot, 4, grad)
			for i, g := range grad {
				sum[i] += float64(g)
			}
		}
		for i := range mean {
			if math.Abs(mean[i]/float64(examples)-sum[i]) > 1e-5 {
				t.Fatalf("full %t: the mean gradient %d is %v, want %v", o.Full, i, mean[i]/float64(examples), sum[i])
			}
		}
	}
}
