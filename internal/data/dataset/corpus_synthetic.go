package dataset

import (
	"fmt"
	"slices"
)

// DefaultCorpus is the corpus that is used where none is named.
const DefaultCorpus = "synthetic:2000"

// How many documents may be made up.
const minMadeUpDocuments, maxMadeUpDocuments = 20, 1_000_000

// The shape of what is made up.
const (
	madeUpTopics = 20
	madeUpWords  = 4000 // of the vocabulary
)

// SyntheticCorpus makes documents up: always the same ones, of a number. Each is about one to three of 20 topics, and
// has 40 to 160 words. Of these, one in eight is any word; the others are words of its topics, of which each has 200
// of its own, the k-th with a share that falls with k^⅔.
func SyntheticCorpus(documents int) *Corpus {
	c := &Corpus{
		Name: fmt.Sprintf("synthetic documents, %d", documents), Size: madeUpWords, synthetic: true,
	}
	for i := range documents {
		to := part(i, &c.Train, &c.Test)
		state := mix(uint64(i) + 1<<40)
		draw := func(n int) int { state++; return int(mix(state) >> 11 % uint64(n)) }
		topics := make([]int, 1+draw(3))
		for k := range topics {
			topics[k] = draw(madeUpTopics)
		}
		begin := len(to.Tokens)
		for range 40 + draw(121) {
			if draw(8) == 0 {
				to.Tokens = append(to.Tokens, int32(draw(madeUpWords)))
				continue
			}
			x := float64(draw(1<<20)) / (1 << 20)
			rank := int(float64(float64(x*x)*x) * (madeUpWords / madeUpTopics))
			to.Tokens = append(to.Tokens, int32(rank*madeUpTopics+topics[draw(len(topics))]))
		}
		slices.Sort(to.Tokens[begin:])
		to.end()
	}
	return c
}
