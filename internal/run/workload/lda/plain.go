package lda

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// Plain trains on one thread without tables. Data, order and sampler are those of a workload with one slot. It is the
// baseline for speed and for the reachable loss, and is not safe for concurrent use.
type Plain struct {
	// Sorted makes each clock start with a word's topics in the order that rows give. A job with one slot then computes
	// the same bits.
	Sorted bool

	*model
	s      *sampler
	topics [][]int16 // by document
	now    perdure.Clock
}

// NewPlain returns a trainer at clock 0.
func NewPlain(data *dataset.Corpus, o Options) (*Plain, error) {
	m, err := newModel(data, o)
	if err != nil {
		return nil, err
	}
	p := &Plain{model: m, s: newSampler(&m.Options, data.Size), topics: make([][]int16, data.Train.Len())}
	room := make([]int, data.Size)
	for _, w := range data.Train.Tokens {
		room[w] = min(room[w]+1, o.Topics)
	}
	p.s.wordCounts = newWordCounts(room)
	for i := range p.topics {
		p.topics[i] = unassigned(len(data.Train.Document(i)))
	}
	return p, nil
}

// Run trains for a number of clocks. It returns the number of tokens processed and their mean loss.
func (p *Plain) Run(clocks perdure.Clock) (tokens int, loss float64) {
	sum := 0.0
	for range clocks {
		if p.Sorted {
			for w := range p.s.used {
				inOrder(p.s.of(int32(w)))
			}
		}
		p.s.start()
		pass, part := p.passOf(p.now)
		for _, doc := range p.documents(part, api.Share{Of: 1}) {
			words := p.data.Train.Document(int(doc))
			p.s.document(words, p.topics[doc], p.stateOf(doc, pass))
			tokens += len(words)
		}
		sum -= p.s.logs.value()
		p.now++
	}
	return tokens, sum / float64(max(tokens, 1))
}

// Perplexity converts a loss per word to the number of equally likely words that would be as hard to predict.
func Perplexity(loss float64) float64 { return math.Exp(loss) }
