// Package lda finds the topics of documents by latent Dirichlet allocation (Blei, Ng, Jordan 2003): each document is a
// mixture of topics, each topic a distribution over words. Every token of every document has a topic, which is drawn
// anew in each pass by collapsed Gibbs sampling (Griffiths, Steyvers 2004), as sampler says.
//
// A slot has the documents of its share and goes through them pass by pass; a clock does 1/round(1/ClockFraction) of a
// pass. In the first pass a token has no topic yet: it is given one by the weights of what has come before it.
//
// [Open] makes it a workload over three tables. Those of counts have the rule add, so that slots' steps commute:
//
//	word_topic   a row for each word: how many of its tokens have each topic
//	topics       one row: how many tokens in all have each topic
//	assignments  the topic of each token, + 1; 0: none yet. Rule set: a row is one slot's
//
// A process remembers the topics of the tokens that it has drawn. It reads rows of assignments when it does not know
// them: when it has begun, when the job has gone back, or when other documents are its own. So what a slot has done is
// where all the rest of the model is, under every recovery strategy, and nothing of it is sent twice. Under strategies
// that lose no update, the counts are those of the assignments at every end of a clock under bsp, and at the end of
// the job under the others.
//
// With OnTable a process remembers nothing and reads the assignments of each clock's documents: then they are on
// servers alone, as SCAR's paper has them, and a row of them that is lost is lost. A document's counts of topics are
// those of its assignments: there is no second table of them, which could only contradict these. The distance between
// two states of a row is the scaled total variation of its counts.
//
// Where a strategy loses rows, the counts no longer fit the assignments. What is below 0 then counts as 0 here, in
// training and in judging. With Rebuild they are made right again: see recount, and rebuild for models other than bsp.
//
// The loss is the mean of -log p(word) in nats, of each token given all others; of held-out documents, of one half of
// a document's tokens given the other half. [Perplexity] is its exponential.
//
// [Plain] is the same computation without tables, on one thread. Each gives the same bits on every run.
package lda

import (
	"fmt"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/contract"
)

// Options of a model.
type Options struct {
	Seed uint64 // of the order of the documents, and of what is drawn
	contract.TopicModel
}

// Defaults are good choices where the user makes none.
var Defaults = contract.TopicModel{Topics: 100, Alpha: 0.1, Beta: 0.01, ClockFraction: 1}

// MaxTopics bounds the number of topics: far beyond use, and small enough for 16 bits.
const MaxTopics = 8192

// maxClocksPerPass is what the least ClockFraction comes to.
const maxClocksPerPass = 10_000

// model is the data, in the order in which slots go through them.
type model struct {
	data *dataset.Corpus
	Options
	*order
	held *held
}

func newModel(data *dataset.Corpus, o Options) (*model, error) {
	switch {
	case o.Topics < 2 || o.Topics > MaxTopics:
		return nil, fmt.Errorf("%w: lda: %d topics; choose 2 to %d", perdure.ErrUsage, o.Topics, MaxTopics)
	case !(o.Alpha > 0) || o.Alpha > 1000:
		return nil, fmt.Errorf("%w: lda: alpha %v; choose a number above 0, up to 1000", perdure.ErrUsage, o.Alpha)
	case !(o.Beta > 0) || o.Beta > 1000:
		return nil, fmt.Errorf("%w: lda: beta %v; choose a number above 0, up to 1000", perdure.ErrUsage, o.Beta)
	case !(o.ClockFraction*maxClocksPerPass >= 1) || o.ClockFraction > 1:
		return nil, fmt.Errorf("%w: lda: clock fraction %v; choose %g to 1", perdure.ErrUsage, o.ClockFraction,
			1.0/maxClocksPerPass)
	}
	clocks := int(math.Round(1 / o.ClockFraction))
	if clocks > data.Train.Len() {
		return nil, fmt.Errorf("%w: lda: %d clocks for %d documents; choose a larger clock fraction", perdure.ErrUsage,
			clocks, data.Train.Len())
	}
	return &model{
		data: data, Options: o, order: newOrder(&data.Train, o.Seed, clocks), held: newHeld(&data.Test, data.Size),
	}, nil
}

// at returns which pass a clock is of, and which clock of it.
func (m *model) at(clock perdure.Clock) (pass int64, part int) {
	n := perdure.Clock(len(m.parts))
	return int64(clock / n), int(clock % n)
}

// stateOf is what the topics of a document are drawn from in a pass.
func (m *model) stateOf(doc int32, pass int64) uint64 {
	return contract.PassState(m.Seed, perdure.Slot(doc), pass)
}

// unassigned are the topics of tokens that have none yet.
func unassigned(n int) []int16 {
	list := make([]int16, n)
	for i := range list {
		list[i] = -1
	}
	return list
}

// newWords returns words without tokens, with room for that number of topics each.
func newWords(room []int) words {
	w := words{starts: make([]int, len(room)+1), used: make([]int32, len(room)), changed: make([]bool, len(room))}
	for i, n := range room {
		w.starts[i+1] = w.starts[i] + n
	}
	w.cells = make([]cell, w.starts[len(room)])
	return w
}
