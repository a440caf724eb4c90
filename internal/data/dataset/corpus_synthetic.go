package dataset

import (
	"fmt"
	"slices"
)

// DefaultCorpus is the corpus for an empty name.
const DefaultCorpus = "synthetic:2000"

// The limits of the number of synthetic documents.
const minSyntheticDocuments, maxSyntheticDocuments = 20, 1_000_000

// The shape of synthetic corpora.
const (
	syntheticTopics = 20
	syntheticWords  = 4000 // size of the vocabulary
)

// SyntheticCorpus generates the given number of documents; they are the same in every call. Each has one to three of 20
// topics, and 40 to 160 words. One word in eight is any word; the others belong to its topics. Each topic has 200 words
// of its own, the k-th with a share that falls with k^⅔.
func SyntheticCorpus(documents int) *Corpus {
	c := &Corpus{
		Name: fmt.Sprintf("synthetic documents, %d", documents), Size: syntheticWords, synthetic: true,
	}
	for i := range documents {
		to := partOf(i, &c.Train, &c.Test)
		state := mix(uint64(i) + 1<<40)
		draw := func(n int) int { state++; return int(mix(state) >> 11 % uint64(n)) }
		topics := make([]int, 1+draw(3))
		for k := range topics {
			topics[k] = draw(syntheticTopics)
		}
		start := len(to.Tokens)
		for range 40 + draw(121) {
			if draw(8) == 0 {
				to.Tokens = append(to.Tokens, int32(draw(syntheticWords)))
				continue
			}
			x := float64(draw(1<<20)) / (1 << 20)
			rank := int(float64(float64(x*x)*x) * (syntheticWords / syntheticTopics))
			to.Tokens = append(to.Tokens, int32(rank*syntheticTopics+topics[draw(len(topics))]))
		}
		slices.Sort(to.Tokens[start:])
		to.endDocument()
	}
	return c
}
