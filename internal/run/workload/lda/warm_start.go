package lda

import (
	"context"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// CheckWarmStart implements api.WarmStartChecker. The assignments must belong to these documents, and the counts must
// match the assignments. Otherwise each pass would remove tokens that no count includes.
func (p *program) CheckWarmStart(ctx context.Context, t api.Tables, _ map[string]string) error {
	rows := make([]float32, p.rows[len(p.rows)-1]*rowTokens)
	if err := t.Get(ctx, Assignments, 0, rows); err != nil {
		return err
	}
	counts, total := make([]float32, p.data.Size*p.Topics), make([]float32, p.Topics)
	for doc := range p.data.Train.Len() {
		of := rows[p.rows[doc]*rowTokens : p.rows[doc+1]*rowTokens]
		words := p.data.Train.Document(doc)
		for i, v := range of {
			switch k := int(min(max(v, -1), MaxTopics+1)); {
			case v != float32(k) || k < 0 || k > p.Topics || i >= len(words) && k > 0:
				return fmt.Errorf("its table %s has %v for token %d of document %d, but the document has %d tokens "+
					"and there are %d topics",
					Assignments, v, i, doc, len(words), p.Topics)
			case k > 0:
				counts[int(words[i])*p.Topics+k-1]++
				total[k-1]++
			}
		}
	}
	return p.sameCounts(ctx, t, counts, total)
}

// sameCounts returns an error that names a count that does not match the model's assignments.
func (p *program) sameCounts(ctx context.Context, t api.Tables, counts, total []float32) error {
	for _, of := range []struct {
		table string
		want  []float32
	}{{WordTopic, counts}, {Totals, total}} {
		has := make([]float32, len(of.want))
		if err := t.Get(ctx, of.table, 0, has); err != nil {
			return err
		}
		for i, v := range has {
			if v != of.want[i] {
				return fmt.Errorf("row %d of its table %s has %v tokens of topic %d, but its table %s has %v for "+
					"these documents; it was trained on other documents, or its run lost rows",
					perdure.RowID(i/p.Topics), of.table, v,
					i%p.Topics, Assignments, of.want[i])
			}
		}
	}
	return nil
}
