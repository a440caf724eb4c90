// Package cnn trains a small convolutional network on pictures. The network is that of Cao, Luo, Gan and Jinesh,
// "Training Through Failure" (2024). It is the smallest network here that computes for longer than it communicates, and
// it is not convex.
//
// The layers, for pictures of 28 × 28 values in [-1, 1]:
//
//	conv 1→16, 3 × 3, zero border of 1   ReLU   max pool 2
//	conv 16→32, 3 × 3, zero border of 1  ReLU   max pool 2
//	full 1568→512                        ReLU   dropout 0.25
//	full 512→classes                     softmax, cross-entropy
//
// With 10 classes the network has 812,330 values, and all but 1% of them belong to the first fully connected layer.
// FinalReLU adds a ReLU before the softmax. The authors' code has it; networks usually do not.
//
// A slot computes the gradient of the mean loss over its batch, and the servers add up all slots' gradients, as in that
// paper. Unlike in workload softmax, the effective rate therefore grows with the number of workers.
//
// All results are functions of their arguments. (seed, slot, clock) determines batches and the units that dropout
// drops. The parameters and the batch determine gradients: each sum has a fixed order (see package gemm) and runs on
// one thread. A slot keeps no state between clocks, so there is none to save.
package cnn

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
	"github.com/perdure/perdure/internal/run/workload/gemm"
	"github.com/perdure/perdure/internal/run/workload/logreg"
)

// Options configures a Model.
type Options struct {
	Seed      uint64 // determines the order of the pictures and the dropout masks
	Slots     int    // at least 1
	Batch     int    // pictures per slot and clock, at least 1
	FinalReLU bool   // scores below 0 become 0
}

// shape holds the network's dimensions.
type shape struct {
	side          int // side of the pictures, a multiple of 4
	first, second int // channels of the convolutions
	hidden        int // units of the first full layer
}

// paper is the shape from the paper; tests use smaller ones.
var paper = shape{side: 28, first: 16, second: 32, hidden: 512}

// chunk is the number of pictures that pass through the network together. It is large enough that packing the 3 MB of
// weights of the first fully connected layer costs little compared with multiplying by them. Scratch memory is 50 kB
// per picture.
const chunk = 128

// Parameters holds the values of the tables (see the constants Conv1 to Bias), each row-major.
type Parameters [tables][]float32

// Model computes losses and gradients. It owns scratch memory and is not safe for concurrent use. It only reads its
// data set, which may be shared.
type Model struct {
	data    *dataset.Examples
	options Options
	order   *api.Order
	pixel   [256]float32 // value of each grey level

	conv1, conv2 conv
	flat, hidden int // inputs and outputs of the first fully connected layer
	classes      int

	mul gemm.Multiplier
	// Scratch memory for a chunk of pictures, by picture.
	input    []float32 // bordered
	pooled1  []float32 // bordered
	at1, at2 []uint8   // positions of the maxima
	pooled2  []float32 // later its gradient
	units    []float32 // outputs of the first fully connected layer, after ReLU and dropout
	scores   []float32 // later their gradient
	dPooled2 []float32
	dUnits   []float32
	// Scratch memory for one picture.
	cols     []float32
	made     []float32 // output of a convolution, later its gradient
	dPooled1 []float32 // bordered
	raw      []float32 // scores
	exps     []float64
}

// New returns a model for pictures of 28 × 28 values.
func New(data *dataset.Examples, o Options) (*Model, error) { return newModel(data, o, paper) }

func newModel(data *dataset.Examples, o Options, s shape) (*Model, error) {
	train := &data.Train
	switch {
	case o.Batch < 1:
		return nil, perdure.Usagef("cnn: invalid batch of %d images; choose at least 1", o.Batch)
	case train.Pixels == nil:
		return nil, perdure.Usagef("cnn: %s contains rows of numbers; use images of %d × %d pixels", data.Name, s.side,
			s.side)
	case train.Dim != s.side*s.side:
		return nil, perdure.Usagef("cnn: %s contains images of %d pixels; use images of %d × %d", data.Name, train.Dim,
			s.side, s.side)
	case train.Classes < 2:
		return nil, perdure.Usagef("cnn: all images in %s have the same class; there is nothing to learn", data.Name)
	}
	m := &Model{
		data: data, options: o, order: api.NewOrder(o.Seed, train.N, o.Batch), // SetSlots adds the slots
		conv1: conv{1, s.first, s.side}, conv2: conv{s.first, s.second, s.side / 2},
		flat: s.second * s.side / 4 * s.side / 4, hidden: s.hidden, classes: train.Classes,
	}
	for level := range m.pixel {
		m.pixel[level] = (float32(level)/255 - 0.5) / 0.5
	}
	values := func(n int) []float32 { return make([]float32, n) }
	m.input, m.pooled1 = values(chunk*m.conv1.inputSize()), values(chunk*m.conv2.inputSize())
	m.at1, m.at2 = make([]uint8, chunk*m.conv1.outputSize()/4), make([]uint8, chunk*m.flat)
	m.pooled2, m.dPooled2 = values(chunk*m.flat), values(chunk*m.flat)
	m.units, m.dUnits = values(chunk*s.hidden), values(chunk*s.hidden)
	m.scores = values(chunk * m.classes)
	m.cols = values(max(m.conv1.columns(), m.conv2.columns()))
	m.made = values(max(m.conv1.outputSize(), m.conv2.outputSize()))
	m.dPooled1 = values(m.conv2.inputSize())
	m.raw, m.exps = values(m.classes), make([]float64, m.classes)
	return m, m.SetSlots(o.Slots)
}

// SetSlots distributes the pictures among the given number of slots. It does nothing if the number is unchanged.
func (m *Model) SetSlots(slots int) error {
	if err := m.order.SetSlots(slots); err != nil {
		return fmt.Errorf("cnn: %w", err)
	}
	return nil
}

// masks returns the source of a slot's dropout masks for a clock.
func (m *Model) masks(slot perdure.Slot, clock perdure.Clock) dropout {
	return dropout(api.PassState(m.options.Seed^maskSeed, slot, int64(clock)))
}

// maskSeed separates the random numbers of dropout from those of the picture order.
const maskSeed = 0x6d61736b // "mask"

// Gradient computes a slot's clock at the parameters p. It writes the gradient of the batch's mean loss to grad, whose
// lengths are those of p, and returns the loss. It allocates nothing, except the slot's order on the slot's first
// clock.
func (m *Model) Gradient(p *Parameters, slot perdure.Slot, clock perdure.Clock, grad *Parameters) (loss float64) {
	for _, g := range grad {
		clear(g)
	}
	pictures := m.order.Batch(slot, clock)
	masks := m.masks(slot, clock)
	scale := float32(1 / float64(len(pictures)))
	for first := 0; first < len(pictures); first += chunk {
		part := pictures[first:min(first+chunk, len(pictures))]
		for i, picture := range part {
			m.loadPicture(i, &m.data.Train, int(picture))
		}
		m.forward(p, len(part))
		for i := range part {
			masks.relu(m.units[i*m.hidden:][:m.hidden], first+i)
		}
		m.score(p, len(part))
		for i, picture := range part {
			loss += m.lossAndGradient(i, m.data.Train.Labels[picture], scale)
		}
		m.backwardFull(p, grad, len(part))
		for i := range part {
			m.backwardConv(p, grad, i)
		}
	}
	return loss / float64(len(pictures))
}

// Evaluate returns the mean loss and the fraction of the pictures whose true class has the highest score. The first of
// equal scores counts as the highest. Dropout is off. The split must belong to the model's data set.
func (m *Model) Evaluate(p *Parameters, split *dataset.Split) (loss, accuracy float64) {
	right := 0
	m.Score(p, split, func(scores []float32, label uint8, itsLoss float64) {
		loss += itsLoss
		if logreg.Argmax(scores) == int(label) {
			right++
		}
	})
	return loss / float64(split.N), float64(right) / float64(split.N)
}

// Score calls each for every picture, in order, with its scores (one per class), its label and its loss. Dropout is
// off. The split must belong to the model's data set. The slice is valid until each returns.
func (m *Model) Score(p *Parameters, split *dataset.Split, each func(scores []float32, label uint8, loss float64)) {
	for first := 0; first < split.N; first += chunk {
		n := min(chunk, split.N-first)
		for i := range n {
			m.loadPicture(i, split, first+i)
		}
		m.forward(p, n)
		relu(m.units[:n*m.hidden])
		m.score(p, n)
		for i := range n {
			label := split.Labels[first+i]
			loss := m.lossAndGradient(i, label, 0)
			each(m.raw, label, loss)
		}
	}
}

// loadPicture copies a picture to index i of the chunk.
func (m *Model) loadPicture(i int, split *dataset.Split, picture int) {
	side, row := m.conv1.side, m.conv1.bordered()
	to := m.input[i*m.conv1.inputSize():][:m.conv1.inputSize()]
	for y, pixels := 0, split.Image(picture); y < side; y++ {
		line := to[(y+1)*row+1:][:side]
		for x, level := range pixels[y*side:][:side] {
			line[x] = m.pixel[level]
		}
	}
}

// forward computes the hidden units of the chunk's n pictures, before ReLU.
func (m *Model) forward(p *Parameters, n int) {
	bias := m.biases(p)
	for i := range n {
		m.conv1.unfold(m.cols, m.inputOf(i))
		m.conv1.forward(&m.mul, m.made, m.cols, p[Conv1], bias[0])
		pool(m.pooled1Of(i), 1, m.at1Of(i), m.made[:m.conv1.outputSize()], m.conv1.side)
		m.conv2.unfold(m.cols, m.pooled1Of(i))
		m.conv2.forward(&m.mul, m.made, m.cols, p[Conv2], bias[1])
		pool(m.pooled2[i*m.flat:][:m.flat], 0, m.at2[i*m.flat:][:m.flat], m.made[:m.conv2.outputSize()], m.conv2.side)
	}
	units := gemm.Of(m.units, n, m.hidden)
	rows(units.Data, n, bias[2])
	m.mul.Add(units, gemm.Of(m.pooled2, n, m.flat), gemm.Of(p[Full1], m.hidden, m.flat).T())
}

// score computes the scores of the chunk's n pictures.
func (m *Model) score(p *Parameters, n int) {
	scores := gemm.Of(m.scores, n, m.classes)
	rows(scores.Data, n, m.biases(p)[3])
	m.mul.Add(scores, gemm.Of(m.units, n, m.hidden), gemm.Of(p[Full2], m.hidden, m.classes))
}

// lossAndGradient returns the loss of the chunk's i-th picture and replaces its scores by their gradient times scale.
// It leaves the scores in raw.
func (m *Model) lossAndGradient(i int, label uint8, scale float32) (loss float64) {
	scores := m.scores[i*m.classes:][:m.classes]
	if m.options.FinalReLU {
		relu(scores)
	}
	copy(m.raw, scores)
	loss = logreg.CrossEntropy(scores, label, scale, m.exps)
	if m.options.FinalReLU {
		gate(scores, m.raw, 1)
	}
	return loss
}

// backwardFull propagates the gradient of the chunk's scores through the fully connected layers to the pooled values.
func (m *Model) backwardFull(p, grad *Parameters, n int) {
	bias := m.biases(grad)
	scores, units := gemm.Of(m.scores, n, m.classes), gemm.Of(m.units, n, m.hidden)
	sumRows(bias[3], scores.Data)
	m.mul.Add(gemm.Of(grad[Full2], m.hidden, m.classes), units.T(), scores)
	dUnits := gemm.Of(m.dUnits, n, m.hidden)
	m.mul.Set(dUnits, scores, gemm.Of(p[Full2], m.hidden, m.classes).T())
	gate(dUnits.Data, units.Data, keepScale)
	sumRows(bias[2], dUnits.Data)
	m.mul.Add(gemm.Of(grad[Full1], m.hidden, m.flat), dUnits.T(), gemm.Of(m.pooled2, n, m.flat))
	m.mul.Set(gemm.Of(m.dPooled2, n, m.flat), dUnits, gemm.Of(p[Full1], m.hidden, m.flat))
}

// backwardConv propagates the gradient of the chunk's i-th picture through the convolutions.
func (m *Model) backwardConv(p, grad *Parameters, i int) {
	bias := m.biases(grad)
	made := m.made[:m.conv2.outputSize()]
	unpool(made, m.conv2.side, m.dPooled2[i*m.flat:][:m.flat], 0, m.at2[i*m.flat:], bias[1])
	m.conv2.unfold(m.cols, m.pooled1Of(i))
	m.conv2.weights(&m.mul, grad[Conv2], made, m.cols)
	m.conv2.values(&m.mul, m.dPooled1, made, p[Conv2], m.cols)
	made = m.made[:m.conv1.outputSize()]
	unpool(made, m.conv1.side, m.dPooled1, 1, m.at1Of(i), bias[0])
	m.conv1.unfold(m.cols, m.inputOf(i))
	m.conv1.weights(&m.mul, grad[Conv1], made, m.cols)
}

// Scratch memory of the chunk's i-th picture.
func (m *Model) inputOf(i int) []float32   { n := m.conv1.inputSize(); return m.input[i*n:][:n] }
func (m *Model) pooled1Of(i int) []float32 { n := m.conv2.inputSize(); return m.pooled1[i*n:][:n] }
func (m *Model) at1Of(i int) []uint8       { n := m.conv1.outputSize() / 4; return m.at1[i*n:][:n] }

// biases returns the parts of the bias table, one for each layer.
func (m *Model) biases(p *Parameters) (parts [4][]float32) {
	all := p[Bias]
	for i, n := range [4]int{m.conv1.out, m.conv2.out, m.hidden, m.classes} {
		parts[i], all = all[:n:n], all[n:]
	}
	return parts
}
