package lda

import (
	"context"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// rebuild adds to rows that were lost what this slot's own documents had in them. A row cannot have fewer tokens of a
// topic than the documents of one slot have; where it has, the difference is added. It is for the models under which
// slots read rows of different times; under bsp there is recount. Of rows that came back as they were once, what each
// slot lacks there is added, which may be less than what is gone, and what they had too much they keep.
func (p *program) rebuild(ctx context.Context, t api.Tables) error {
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
	p.markCounts()
	sumRows(p.total, p.got)
	return t.IncRows(ctx, WordTopic, rows, deltas)
}

// clampNegatives makes 0 of what is below 0 in the rows that were read: slots took tokens away that a row had lost. A
// row is lifted by one slot only, that whose rank is the row's number modulo the number of slots: all read all rows,
// and it reads what it has added itself, so that nothing is lifted twice while the shares are the same. In a count that
// is not above 0 no slot takes anything away in that clock, as none sees a token there: under bsp it is 0 or more after
// it. Each pass repairs a token that was counted too few, and nothing makes more of those but a loss. So there is an
// end.
func (p *program) clampNegatives(ctx context.Context, t api.Tables) error {
	var rows []perdure.RowID
	var deltas []float32
	was := slices.Clone(p.total)
	if p.fillWords() {
		for i, row := range p.list {
			by := p.marks.clampedBy(p.got, i*p.Topics, (i+1)*p.Topics)
			if by != nil && int(row%perdure.RowID(p.share.Of)) == p.share.Rank {
				rows, deltas = append(rows, row), append(deltas, by...)
			}
		}
	}
	copy(p.total, p.sum)
	if by := clampedBy(
		was,
	); by != nil &&
		p.share.Rank == 0 { // the totals are one row, number 0: they become those counted
		for k := range by {
			if by[k] > 0 {
				by[k] += p.total[k]
			}
		}
		if err := t.Inc(ctx, Totals, 0, by); err != nil {
			return err
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return t.IncRows(ctx, WordTopic, rows, deltas)
}

// clampedBy makes 0 of values below 0, and returns what that adds; nil: nothing.
func clampedBy(values []float32) (by []float32) {
	var m bitset
	m.setNonzero(values)
	return m.clampedBy(values, 0, len(values))
}

// clampedBy is that of the values from ≤ i < end.
func (m bitset) clampedBy(values []float32, from, end int) (by []float32) {
	for at := m.next(from, end); at < end; at = m.next(at+1, end) {
		if v := values[at]; v < 0 {
			if by == nil {
				by = make([]float32, end-from)
			}
			by[at-from], values[at] = -v, 0
		}
	}
	return by
}

// Repair implements api.Repairer: no count is below 0, and where rows may be lost n(k) is counted by the words.
func (p *program) Repair(tables map[string][]float32) {
	clampedBy(tables[WordTopic])
	clampedBy(tables[Totals])
	if p.params.Lossy && len(tables[Totals]) == p.Topics {
		sumRows(tables[Totals], tables[WordTopic])
	}
}
