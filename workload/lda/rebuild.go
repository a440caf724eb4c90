package lda

import (
	"context"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/workload/contract"
)

// rebuild adds to rows that were lost what this slot's own documents had in them. A row cannot have fewer tokens of a
// topic than the documents of one slot have; where it has, the difference is added. Under bsp all slots see a loss in
// the same clock: of rows that began again each adds all of its own, so that they have what they had. Of rows that
// came back as they were once, what each slot lacks there is added, which may be less than what is gone.
func (p *program) rebuild(ctx context.Context, t contract.Tables) error {
	p.own = slices.Grow(p.own[:0], len(p.got))[:len(p.got)]
	clear(p.own)
	var mine []int32
	for part := range p.parts {
		mine = append(mine, p.documents(part, p.share)...)
	}
	if err := p.learn(ctx, t, mine); err != nil {
		return err
	}
	for _, doc := range mine {
		for i, w := range p.data.Train.Document(int(doc)) {
			if k := p.topics[doc][i]; k >= 0 {
				p.own[int(p.place[w])*p.Topics+int(k)]++
			}
		}
	}
	var rows []perdure.RowID
	var deltas []float32
	for i, row := range p.list {
		lost := false
		here := p.own[i*p.Topics : (i+1)*p.Topics]
		for k, v := range p.got[i*p.Topics : (i+1)*p.Topics] {
			here[k] = max(here[k]-v, 0)
			lost = lost || here[k] > 0
		}
		if lost {
			rows, deltas = append(rows, row), append(deltas, here...)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	// The rows that are read from now on have what is added: of this slot's, as it reads its own writes.
	for i := range p.got {
		p.got[i] += p.own[i]
	}
	sumRows(p.total, p.got)
	return t.IncRows(ctx, WordTopic, rows, deltas)
}
