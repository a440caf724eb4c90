package lda

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/run/workload/api"
)

// topWords is the number of words that describe a topic.
const topWords = 10

// Findings implements api.FindingsReporter. It reports the perplexity, and the topics, largest first, with their most
// frequent words.
func (p *program) Findings(ctx context.Context, t api.Tables) ([]string, error) {
	e, err := p.Evaluate(ctx, t)
	if err != nil {
		return nil, err
	}
	rows := make([]float32, p.data.Size*p.Topics)
	if err := t.Get(ctx, WordTopic, 0, rows); err != nil {
		return nil, err
	}
	total := make([]float32, p.Topics)
	sumRows(total, rows)
	all := float32(0)
	topics := make([]int, p.Topics)
	for k, n := range total {
		topics[k] = k
		all += n
	}
	slices.SortStableFunc(topics, func(a, b int) int { return cmp.Compare(total[b], total[a]) })
	lines := []string{fmt.Sprintf("held-out perplexity %.0f, of %d words", Perplexity(e.Loss), p.data.Size)}
	for _, k := range topics {
		lines = append(lines, fmt.Sprintf("topic %d (%.1f %%): %s", k, 100*total[k]/max(all, 1), p.top(rows, k)))
	}
	return lines, nil
}

// top lists the most frequent words of a topic.
func (p *program) top(rows []float32, topic int) string {
	count := func(w int) float32 { return rows[w*p.Topics+topic] }
	var most []int
	for w := range p.data.Size {
		if n := count(w); n < 1 || len(most) == topWords && n <= count(most[topWords-1]) {
			continue
		}
		at, _ := slices.BinarySearchFunc(most, w, func(a, b int) int {
			return cmp.Or(cmp.Compare(count(b), count(a)), -1) // after words with the same count
		})
		most = slices.Insert(most, at, w)
		most = most[:min(len(most), topWords)]
	}
	words := make([]string, len(most))
	for i, w := range most {
		words[i] = p.data.Word(w)
	}
	return strings.Join(words, " ")
}
