// Package lda trains topic models of documents by latent Dirichlet allocation (Blei, Ng, Jordan 2003). Each document is
// a mixture of topics, and each topic is a distribution over words. Every token of every document has a topic, which
// each pass resamples by collapsed Gibbs sampling (Griffiths, Steyvers 2004); see sampler.
//
// A slot processes the documents of its share pass by pass; a clock does 1/round(1/ClockFraction) of a pass. In the
// first pass tokens have no topic yet: a token's topic is drawn from the weights of the tokens before it.
//
// [Open] returns a workload with three tables. The count tables use the rule add, so that slots' updates commute:
//
//	word_topic   a row for each word: how many of its tokens have each topic
//	topics       one row: how many tokens in all have each topic
//	assignments  the topic of each token, + 1; 0: none yet. Rule set: only one slot writes a row
//
// A process remembers the topics of the tokens that it has drawn. It reads rows of assignments only if it does not know
// them: after it starts, after a rollback, or after its share of the documents changes. A slot's results are therefore
// stored with the rest of the model under every recovery strategy, and none are sent twice. Under strategies that lose
// no update, the counts match the assignments at the end of every clock under bsp, and at the end of the job otherwise.
//
// With OnTable a process remembers nothing and reads the assignments of each clock's documents. Only servers then have
// them, as in the SCAR paper, and a lost row of assignments stays lost. A document's topic counts are computed from its
// assignments: a second table of them could only be inconsistent. The distance between two states of a row is the
// scaled total variation of its counts.
//
// After a strategy loses rows, the counts no longer match the assignments. Negative counts are then treated as 0 in
// training and evaluation. With Rebuild they are repaired: see recount, and rebuild for models other than bsp.
//
// The loss is the mean of -log p(word) in nats: of each token given all others, or, for held-out documents, of one half
// of a document's tokens given the other half. [Perplexity] is its exponential.
//
// [Plain] is the same computation without tables, on one thread. Both give the same bits on every run.
package lda

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// Options configures a model.
type Options struct {
	Seed uint64 // of the document order and of all draws
	api.TopicModel
}

// Defaults are the default options.
var Defaults = api.TopicModel{Topics: 100, Alpha: 0.1, Beta: 0.01, ClockFraction: 1}

// MaxTopics is the max number of topics: far above practical numbers, and small enough for 16 bits.
const MaxTopics = 8192

// maxClocksPerPass is the number of clocks per pass at the smallest ClockFraction.
const maxClocksPerPass = 10_000

// model holds the data, in the order in which slots process them.
type model struct {
	data *dataset.Corpus
	Options
	*order
	held *heldOut
}

func newModel(data *dataset.Corpus, o Options) (*model, error) {
	switch {
	case o.Topics < 2 || o.Topics > MaxTopics:
		return nil, perdure.Usagef("lda: invalid number of topics %d; choose 2 to %d", o.Topics, MaxTopics)
	case !(o.Alpha > 0) || o.Alpha > 1000:
		return nil, perdure.Usagef("lda: invalid alpha %v; choose a number above 0, up to 1000", o.Alpha)
	case !(o.Beta > 0) || o.Beta > 1000:
		return nil, perdure.Usagef("lda: invalid beta %v; choose a number above 0, up to 1000", o.Beta)
	case !(o.ClockFraction*maxClocksPerPass >= 1) || o.ClockFraction > 1:
		return nil, perdure.Usagef("lda: invalid clock fraction %v; choose %g to 1", o.ClockFraction,
			1.0/maxClocksPerPass)
	}
	clocks := int(math.Round(1 / o.ClockFraction))
	if clocks > data.Train.Len() {
		return nil, perdure.Usagef("lda: a pass of %d clocks is too long for %d documents; choose a larger clock "+
			"fraction", clocks, data.Train.Len())
	}
	return &model{
		data: data, Options: o, order: newOrder(&data.Train, o.Seed, clocks), held: newHeldOut(&data.Test, data.Size),
	}, nil
}

// passOf returns the pass of a clock, and its index within the pass.
func (m *model) passOf(clock perdure.Clock) (pass int64, part int) {
	n := perdure.Clock(len(m.parts))
	return int64(clock / n), int(clock % n)
}

// stateOf returns the random state for the topics of a document in a pass.
func (m *model) stateOf(doc int32, pass int64) uint64 {
	return api.PassState(m.Seed, perdure.Slot(doc), pass)
}

// unassigned returns topics of tokens that have none yet.
func unassigned(n int) []int16 {
	list := make([]int16, n)
	for i := range list {
		list[i] = -1
	}
	return list
}

// newWordCounts returns words without tokens, each with capacity for that number of topics.
func newWordCounts(room []int) wordCounts {
	w := wordCounts{starts: make([]int, len(room)+1), used: make([]int32, len(room)), changed: make([]bool, len(room))}
	for i, n := range room {
		w.starts[i+1] = w.starts[i] + n
	}
	w.cells = make([]cell, w.starts[len(room)])
	return w
}
