// Package logreg says of which class an example of sparse features is, by logistic regression: the score of class k is
// b(k) + Σ x(f)·w(f,k) over the features f that the example has, and its probability the softmax of the scores. Of two
// classes the first one's score is 0, and a feature has one weight.
//
// A clock has a batch of examples. It reads the rows of the features that they have, and of the bias, and sends for
// each the gradient of the sum of the batch's losses. So what a clock costs depends on what its examples have, and not
// on how many features there are; the table is sparse, and a feature that no example has takes no room.
//
// [Plain] is the same computation without tables' servers, on one thread: the reference for speed. Both give the same
// bits on every run.
package logreg

import (
	"fmt"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/libsvm"
	"github.com/perdure/perdure/workload/batch"
)

// model computes losses and gradients. It owns scratch memory.
type model struct {
	data     *libsvm.Set
	order    *batch.Order
	dim      int // weights of a feature
	batch    int
	need     needs
	scores   []float32
	exps     []float64
	gradient []float32 // of the rows needed
}

// bias is the row that every example has; feature f has row f + 1.
const bias = 0

func newModel(data *libsvm.Set, seed uint64, slots, size int) (*model, error) {
	m := &model{data: data, batch: size, order: batch.NewOrder(seed, data.Train.Len(), size), dim: len(data.Classes)}
	if m.dim == 2 {
		m.dim = 1
	}
	m.scores, m.exps = make([]float32, len(data.Classes)), make([]float64, len(data.Classes))
	m.need.place = make([]int32, data.Features+1)
	return m, m.order.ShareOut(slots)
}

// needs are the rows that some examples need.
type needs struct {
	list  []perdure.RowID
	place []int32 // by row: 1 + its place in the list; 0: it is not in it
}

// of lists the rows of examples, as they come.
func (n *needs) of(s *libsvm.Split, examples []int32) {
	for _, row := range n.list {
		n.place[row] = 0
	}
	n.list = append(n.list[:0], bias)
	n.place[bias] = 1
	for _, e := range examples {
		features, _ := s.Example(int(e))
		for _, f := range features {
			if at := &n.place[f+1]; *at == 0 {
				n.list = append(n.list, perdure.RowID(f)+1)
				*at = int32(len(n.list))
			}
		}
	}
}

// row returns the values of a feature among those of the rows needed.
func (m *model) row(values []float32, f uint32) []float32 {
	at := int(m.need.place[f+1]-1) * m.dim
	return values[at : at+m.dim : at+m.dim]
}

// score computes the scores of an example, of weights of the rows needed.
func (m *model) score(weights []float32, features []uint32, values []float32) {
	if m.dim == 1 {
		sum := weights[0]
		for i, f := range features {
			sum += float32(values[i] * weights[m.need.place[f+1]-1])
		}
		m.scores[0], m.scores[1] = 0, sum
		return
	}
	copy(m.scores, weights[:m.dim])
	for i, f := range features {
		x := values[i]
		for k, w := range m.row(weights, f) {
			m.scores[k] += float32(x * w)
		}
	}
}

// losses computes the sum of the losses of examples, and its gradient.
func (m *model) losses(weights []float32, s *libsvm.Split, examples []int32) (loss float64, nonzeros int) {
	g := m.gradient[:len(weights)]
	clear(g)
	for _, e := range examples {
		features, values := s.Example(int(e))
		m.score(weights, features, values)
		loss += m.softmax(int(s.Label[e]))
		d := m.scores // now what the loss changes by with each
		if m.dim == 1 {
			d = d[1:]
		}
		for k, v := range d {
			g[k] += v
		}
		if m.dim == 1 {
			v := d[0]
			for i, f := range features {
				g[m.need.place[f+1]-1] += float32(v * values[i])
			}
		} else {
			for i, f := range features {
				x := values[i]
				for k, to := 0, m.row(g, f); k < len(to); k++ {
					to[k] += float32(x * d[k])
				}
			}
		}
		nonzeros += len(features)
	}
	return loss, nonzeros
}

// softmax returns the loss of an example of a class, and makes of the scores what the loss changes by with each.
func (m *model) softmax(label int) (loss float64) {
	most := m.scores[0]
	for _, s := range m.scores[1:] {
		most = max(most, s)
	}
	sum := 0.0
	for k, s := range m.scores {
		m.exps[k] = math.Exp(float64(s - most))
		sum += m.exps[k]
	}
	loss = math.Log(sum) - float64(m.scores[label]-most)
	for k, e := range m.exps {
		m.scores[k] = float32(e / sum)
	}
	m.scores[label]--
	return loss
}

// shareOut shares the examples out among the slots that there are from now on.
func (m *model) shareOut(slots int) error {
	if err := m.order.ShareOut(slots); err != nil {
		return fmt.Errorf("logreg: %w", err)
	}
	return nil
}
