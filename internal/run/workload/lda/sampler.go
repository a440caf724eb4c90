package lda

import (
	"math"
	"slices"

	"github.com/perdure/perdure/internal/run/workload/api"
)

// cell is the number of a word's tokens that have a topic.
type cell struct{ topic, count int32 }

// wordCounts holds the topic counts of the words that a clock needs. A word's cells are adjacent, those with the most
// tokens first, so that most searches end early. Free cells follow them.
type wordCounts struct {
	cells  []cell
	starts []int // by word; one more than words
	used   []int32

	changed []bool // by word: a token's topic changed
}

// of returns a word's cells.
func (w *wordCounts) of(word int32) []cell {
	at := w.starts[word]
	return w.cells[at : at+int(w.used[word])]
}

// add increments a word's i-th cell and returns the cell's new index.
func (w *wordCounts) add(word int32, i int) {
	cells := w.of(word)
	j := i
	for j > 0 && cells[j-1].count == cells[i].count {
		j--
	}
	cells[i].count++
	cells[i], cells[j] = cells[j], cells[i]
}

// addFirst adds the first token of a topic to a word.
func (w *wordCounts) addFirst(word, topic int32) {
	w.cells[w.starts[word]+int(w.used[word])] = cell{topic, 1}
	w.used[word]++
}

// remove removes one token of a topic from a word. It returns false if the word has none, because rows were lost.
func (w *wordCounts) remove(word, topic int32) bool {
	cells := w.of(word)
	for i := range cells {
		if cells[i].topic != topic {
			continue
		}
		j := i
		for j+1 < len(cells) && cells[j+1].count == cells[i].count {
			j++
		}
		cells[i].count--
		cells[i], cells[j] = cells[j], cells[i]
		if cells[j].count == 0 { // cells are sorted, so this is the last one
			w.used[word]--
		}
		return true
	}
	return false
}

// sampler draws topics for tokens by collapsed Gibbs sampling, as SparseLDA does (Yao, Mimno, McCallum: "Efficient
// methods for topic model inference on streaming document collections", 2009). Let n(d,k) be the count of topic k in a
// document, n(w,k) in a word's tokens, and n(k) in all tokens, each without the token itself. Topic k then has the
// weight
//
//	(α + n(d,k))·(β + n(w,k)) / (V·β + n(k))
//	  = α·β/(V·β + n(k))  +  n(d,k)·β/(V·β + n(k))  +  (α + n(d,k))/(V·β + n(k))·n(w,k)
//
// The first terms are equal for all words, except for topics that change. The second ones are nonzero only for topics
// of the document, the third ones only for topics of the word. The time per token is therefore proportional to the
// number of topics of its word and document. The weights are exact: no proposal is rejected, and no count is stale
// within a clock.
type sampler struct {
	alpha, beta float64
	all         float64 // V·β
	wordCounts

	total   []int32   // n(k)
	inverse []float64 // 1/(V·β + n(k))
	factor  []float64 // (α + n(d,k))/(V·β + n(k)), of the current document
	own     []int32   // n(d,k) of the current document
	topics  []int32   // those with n(d,k) > 0
	place   []int32   // index in topics, by topic
	smooth  float64   // sum of the first terms
	local   float64   // sum of the second terms

	missing []move // tokens that could not be removed from their words
	logs    logs
}

// move is one token of a word that has left a topic.
type move struct{ word, topic int32 }

func newSampler(o *Options, size int) *sampler {
	k := o.Topics
	return &sampler{
		alpha: o.Alpha, beta: o.Beta, all: o.Beta * float64(size), total: make([]int32, k),
		inverse: make([]float64, k), factor: make([]float64, k), own: make([]int32, k), place: make([]int32, k),
	}
}

// start sets n(k) to the values in total.
func (s *sampler) start() {
	s.missing, s.logs = s.missing[:0], logs{}
	for k := range s.total {
		s.weigh(int32(k))
	}
}

// weigh updates the values derived from the counts of a topic.
func (s *sampler) weigh(k int32) {
	s.inverse[k] = 1 / (s.all + float64(max(s.total[k], 0)))
	s.factor[k] = (s.alpha + float64(s.own[k])) * s.inverse[k]
}

// enter starts a document with the topics of its tokens; -1: none yet.
func (s *sampler) enter(topics []int16) {
	for _, k := range topics {
		if k >= 0 {
			s.own[k]++
			if s.own[k] == 1 {
				s.place[k] = int32(len(s.topics))
				s.topics = append(s.topics, int32(k))
			}
		}
	}
	s.smooth, s.local = 0, 0 // recomputed, so that rounding errors do not accumulate
	for _, inverse := range s.inverse {
		s.smooth += inverse
	}
	s.smooth *= s.alpha * s.beta
	for _, k := range s.topics {
		s.local += float64(float64(s.own[k]) * s.inverse[k])
		s.weigh(k)
	}
	s.local *= s.beta
}

// leave ends a document.
func (s *sampler) leave() {
	for _, k := range s.topics {
		s.own[k] = 0
		s.weigh(k)
	}
	s.topics = s.topics[:0]
}

// count adds n tokens, possibly negative, to a topic of the document.
func (s *sampler) count(k, by int32) {
	s.smooth -= float64(s.alpha * s.beta * s.inverse[k])
	s.local -= float64(s.beta * float64(s.own[k]) * s.inverse[k])
	s.own[k] += by
	s.total[k] += by
	s.weigh(k)
	s.smooth += float64(s.alpha * s.beta * s.inverse[k])
	s.local += float64(s.beta * float64(s.own[k]) * s.inverse[k])
	switch {
	case by > 0 && s.own[k] == by:
		s.place[k] = int32(len(s.topics))
		s.topics = append(s.topics, k)
	case s.own[k] == 0:
		last := s.topics[len(s.topics)-1]
		s.topics[s.place[k]], s.place[last] = last, s.place[k]
		s.topics = s.topics[:len(s.topics)-1]
	}
}

// document draws a topic for each token of a document, given the tokens' words, and replaces their topics; -1: none
// yet. The random numbers follow from a state.
func (s *sampler) document(tokens []int32, topics []int16, state uint64) {
	s.enter(topics)
	known := 0
	for _, k := range topics {
		if k >= 0 {
			known++
		}
	}
	rest := s.alpha * float64(len(s.own))
	for i, word := range tokens {
		old := int32(topics[i])
		if old >= 0 {
			s.count(old, -1)
			if !s.remove(word, old) {
				s.missing = append(s.missing, move{word, old})
			}
			known--
		}
		cells, sum := s.of(word), 0.0
		for _, c := range cells {
			sum += float64(s.factor[c.topic] * float64(c.count))
		}
		smooth, local := max(s.smooth, 0), max(s.local, 0)
		whole := sum + local + smooth
		s.logs.add(whole / (rest + float64(known)))
		state += 0x9e3779b97f4a7c15
		k := s.draw(word, cells, float64(api.Mix(state)>>11)*(1.0/(1<<53))*whole, sum, local)
		s.count(k, 1)
		if k != old {
			topics[i], s.changed[word] = int16(k), true
		}
		known++
	}
	s.leave()
}

// draw returns the topic at x in the cumulative weights, which start with the word's topics, and adds the token to its
// word.
func (s *sampler) draw(word int32, cells []cell, x, sum, local float64) int32 {
	if x < sum {
		last := len(cells) - 1
		for i, c := range cells {
			if x -= float64(s.factor[c.topic] * float64(c.count)); x < 0 || i == last {
				s.add(word, i)
				return c.topic
			}
		}
	}
	k := s.drawOther((x-sum)/s.beta, local/s.beta)
	if i := slices.IndexFunc(cells, func(c cell) bool { return c.topic == k }); i >= 0 {
		s.add(word, i)
	} else {
		s.addFirst(word, k)
	}
	return k
}

// drawOther returns the topic at x in the cumulative weights of the document's topics, then of all topics.
func (s *sampler) drawOther(x, local float64) int32 {
	if x < local && len(s.topics) > 0 {
		for _, k := range s.topics {
			if x -= float64(float64(s.own[k]) * s.inverse[k]); x < 0 {
				return k
			}
		}
		return s.topics[len(s.topics)-1]
	}
	x = (x - local) / s.alpha
	for k, inverse := range s.inverse {
		if x -= inverse; x < 0 {
			return int32(k)
		}
	}
	return int32(len(s.inverse) - 1)
}

// logs sums logarithms of many factors at once: one logarithm takes as long as sampling ten tokens.
type logs struct {
	product, sum float64 // a product of 0 means no factors
}

func (l *logs) add(x float64) {
	if l.product == 0 {
		l.product = 1
	}
	if l.product *= x; l.product < 1e-200 || l.product > 1e200 {
		l.sum += math.Log(l.product)
		l.product = 1
	}
}

func (l *logs) value() float64 {
	if l.product == 0 {
		return 0
	}
	return l.sum + math.Log(l.product)
}
