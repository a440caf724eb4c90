package lda

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// maxHeldOutTokens is the max number of tokens of held-out documents used to evaluate a model. It gives a perplexity
// accurate to three digits within a tenth of a second.
const maxHeldOutTokens = 50_000

// foldInRounds is the number of iterations that compute a document's mixture from its first half.
const foldInRounds = 20

// heldOut holds documents to evaluate a model on. A token's word is an index in list.
type heldOut struct {
	list []perdure.RowID // the words, increasing
	docs []splitDocument
	n    int // number of tokens in the second halves
}

// splitDocument holds the tokens that determine a document's mixture, and the tokens that are then predicted.
type splitDocument struct{ first, second []int32 }

// newHeldOut selects documents evenly from the split.
func newHeldOut(d *dataset.Documents, size int) *heldOut {
	step := max(1, len(d.Tokens)/maxHeldOutTokens)
	place := make([]int32, size)
	var docs [][]int32
	for i := 0; i < d.Len(); i += step {
		if doc := d.Document(i); len(doc) >= 2 {
			docs = append(docs, doc)
			for _, w := range doc {
				place[w] = 1
			}
		}
	}
	h := &heldOut{}
	for w := range place {
		if place[w] > 0 {
			place[w] = int32(len(h.list))
			h.list = append(h.list, perdure.RowID(w))
		}
	}
	for i, doc := range docs {
		var half splitDocument
		for at, w := range doc {
			if to := &half.first; api.Mix(uint64(i)<<32+uint64(at))&1 == 0 && at > 0 || at == len(doc)-1 {
				half.second = append(half.second, place[w])
			} else {
				*to = append(*to, place[w])
			}
		}
		h.n += len(half.second)
		h.docs = append(h.docs, half)
	}
	return h
}

// loss returns the mean of -log p(token) over the second halves, each under the most likely mixture given the first
// half of its document. This is document completion (Wallach et al., "Evaluation methods for topic models", 2009). rows
// holds the counts of the listed words, and total the counts of the topics.
func (h *heldOut) loss(m *model, rows, total []float32) float64 {
	k := m.Topics
	share := make([]float64, len(rows)) // of a word within a topic
	for i := range rows {
		share[i] = (m.Beta + math.Max(float64(rows[i]), 0)) /
			(float64(m.Beta*float64(m.data.Size)) + math.Max(float64(total[i%k]), 0))
	}
	mixture, next := make([]float64, k), make([]float64, k)
	var sum logs
	for _, doc := range h.docs {
		for i := range mixture {
			mixture[i] = 1 / float64(k)
		}
		all := float64(k)*m.Alpha + float64(len(doc.first))
		for range foldInRounds {
			for i := range next {
				next[i] = m.Alpha
			}
			for _, w := range doc.first {
				row := share[int(w)*k:][:k]
				by := 1 / dot(mixture, row)
				for i, s := range row {
					next[i] += float64(float64(mixture[i]*s) * by)
				}
			}
			for i := range mixture {
				mixture[i] = next[i] / all
			}
		}
		for _, w := range doc.second {
			sum.add(dot(mixture, share[int(w)*k:][:k]))
		}
	}
	return -sum.value() / float64(max(h.n, 1))
}

func dot(a, b []float64) (sum float64) {
	for i, x := range a {
		sum += float64(x * b[i])
	}
	return sum
}
