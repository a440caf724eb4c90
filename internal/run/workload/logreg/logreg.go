// Package logreg trains logistic regression, as two workloads: softmax for dense examples (see [Softmax]) and logreg
// for sparse examples. The rest of this comment describes logreg.
//
// Workload logreg predicts the class of an example with sparse features. The score of class k is b(k) + Σ x(f)·w(f,k)
// over the example's features f. The softmax of the scores gives the probabilities. With two classes, the score of the
// first one is 0 and each feature has a single weight.
//
// A clock processes a batch of examples. It reads the rows of their features and of the bias, and sends each row's
// gradient of the sum of the batch's losses. The cost of a clock therefore depends on the features present in its
// examples, not on the number of possible features. The table is sparse: a feature that no example has uses no memory.
//
// [Plain] is the same computation on one thread without servers: the baseline for speed. Both compute the same bits on
// every run.
package logreg

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// model computes losses and gradients. It owns scratch memory.
type model struct {
	data     *dataset.SparseSet
	order    *api.Order
	dim      int // weights per feature
	batch    int
	need     neededRows
	scores   []float32
	exps     []float64
	gradient []float32 // of the rows needed
}

// bias is the row that every example uses; feature f has row f + 1.
const bias = 0

func newModel(data *dataset.SparseSet, seed uint64, slots, size int) (*model, error) {
	m := &model{data: data, batch: size, order: api.NewOrder(seed, data.Train.Len(), size), dim: len(data.Classes)}
	if m.dim == 2 {
		m.dim = 1
	}
	m.scores, m.exps = make([]float32, len(data.Classes)), make([]float64, len(data.Classes))
	return m, m.order.SetSlots(slots)
}

// neededRows lists the rows that some examples need. Its memory depends on the number of features in the examples, not
// on the number of possible features.
type neededRows struct {
	list  []perdure.RowID
	at    []int32 // by feature of the examples, in order: the index of its row in the list
	slots []int32 // open-addressed hash table of the list: 1 + an index; 0: free
}

// of lists the rows of the examples, in order of first use.
func (n *neededRows) of(s *dataset.SparseSplit, examples []int32) {
	nonzeros := 0
	for _, e := range examples {
		nonzeros += int(s.Starts[e+1] - s.Starts[e])
	}
	width := bits.Len(uint(2*nonzeros + 1)) // at most half of the slots are used
	n.slots = slices.Grow(n.slots[:0], 1<<width)[:1<<width]
	clear(n.slots)
	n.list, n.at = append(n.list[:0], bias), slices.Grow(n.at[:0], nonzeros)
	for _, e := range examples {
		features, _ := s.Example(int(e))
		for _, f := range features {
			n.at = append(n.at, n.indexOf(perdure.RowID(f)+1, width))
		}
	}
}

// indexOf returns the index of a row in the list, and appends the row if it is missing.
func (n *neededRows) indexOf(row perdure.RowID, width int) int32 {
	const golden = 0x9e3779b97f4a7c15 // spreads adjacent rows
	last := uint64(len(n.slots) - 1)
	for i := uint64(row) * golden >> (64 - width); ; i = (i + 1) & last {
		switch at := n.slots[i]; {
		case at == 0:
			n.list = append(n.list, row)
			n.slots[i] = int32(len(n.list))
			return int32(len(n.list)) - 1
		case n.list[at-1] == row:
			return at - 1
		}
	}
}

// row returns the values of the needed row with index at.
func (m *model) row(values []float32, at int32) []float32 {
	from := int(at) * m.dim
	return values[from : from+m.dim : from+m.dim]
}

// score computes an example's scores from the weights of the needed rows. at holds the indexes of its features' rows.
func (m *model) score(weights []float32, at []int32, values []float32) {
	if m.dim == 1 {
		sum := weights[0]
		for i, to := range at {
			sum += float32(values[i] * weights[to])
		}
		m.scores[0], m.scores[1] = 0, sum
		return
	}
	copy(m.scores, weights[:m.dim])
	for i, to := range at {
		x := values[i]
		for k, w := range m.row(weights, to) {
			m.scores[k] += float32(x * w)
		}
	}
}

// losses computes the sum of the losses of the examples whose rows are listed, and its gradient.
func (m *model) losses(weights []float32, s *dataset.SparseSplit, examples []int32) (loss float64, nonzeros int) {
	g := m.gradient[:len(weights)]
	clear(g)
	for _, e := range examples {
		_, values := s.Example(int(e))
		at := m.need.at[nonzeros : nonzeros+len(values)]
		m.score(weights, at, values)
		loss += m.softmax(int(s.Label[e]))
		d := m.scores // now the derivatives of the loss by the scores
		if m.dim == 1 {
			d = d[1:]
		}
		for k, v := range d {
			g[k] += v
		}
		if m.dim == 1 {
			v := d[0]
			for i, to := range at {
				g[to] += float32(v * values[i])
			}
		} else {
			for i, place := range at {
				x := values[i]
				for k, to := 0, m.row(g, place); k < len(to); k++ {
					to[k] += float32(x * d[k])
				}
			}
		}
		nonzeros += len(values)
	}
	return loss, nonzeros
}

// softmax returns the loss of an example with the given class and replaces the scores by the derivatives of the loss.
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

// setSlots distributes the examples among the given number of slots.
func (m *model) setSlots(slots int) error {
	if err := m.order.SetSlots(slots); err != nil {
		return fmt.Errorf("logreg: %w", err)
	}
	return nil
}
