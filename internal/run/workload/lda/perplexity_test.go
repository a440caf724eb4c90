package lda

import (
	"cmp"
	"flag"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload/api"
)

var (
	corpusOf = flag.String("lda.data", "", "a corpus to compare perplexities on; else a small made up one")
	passesOf = flag.Int("lda.passes", 40, "how many passes")
	topicsOf = flag.Int("lda.topics", 20, "how many topics")
)

// TestPerplexity checks that slots that see each other's counts one clock late find as good a model, in the same number
// of passes, as a single process that sees every token immediately. On 20 Newsgroups: go test
// ./internal/run/workload/lda -run TestPerplexity -v -lda.data FOLDER -lda.topics 100 -lda.passes 100.
func TestPerplexity(t *testing.T) {
	data := cmp.Or(*corpusOf, "synthetic:600")
	var plain float64
	for _, slots := range []int{1, 4} {
		all := make([]*program, slots)
		for rank := range all {
			all[rank] = open(t, slots, func(p *api.Params) {
				p.Data, p.Topics = data, options(*topicsOf, 1).TopicModel
			})
		}
		if slots == 1 {
			p := newPlain(t, all[0].data, all[0].Options)
			p.Run(perdure.Clock(*passesOf) * p.ClocksPerPass())
			plain = Perplexity(p.HeldOut())
			t.Logf("%s, %d topics, %d passes: a plain process comes to %.1f", data, *topicsOf, *passesOf, plain)
		}
		m := newMemory(all[0].Tables())
		for clock := range perdure.Clock(*passesOf) {
			for rank, w := range all {
				step(t, w, m, api.Share{Rank: rank, Of: slots}, clock)
			}
			m.tick()
		}
		e, err := all[0].Evaluate(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		got := Perplexity(e.Loss)
		t.Logf("%d slots come to %.1f", slots, got)
		if got > 1.02*plain {
			t.Errorf("%d slots: a perplexity of %.1f, more than 2%% above that of a plain process", slots, got)
		}
	}
}
