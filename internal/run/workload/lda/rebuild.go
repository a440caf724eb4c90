package lda

import (
	"context"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// rebuild restores this slot's contribution to lost rows. A row cannot have fewer tokens of a topic than the documents
// of one slot have. If it does, the slot adds the difference. rebuild is for consistency models in which slots read
// rows of different times; recount is for bsp. If rows return with earlier values, each slot adds only what is missing
// for its own documents. This may be less than what was lost, and it does not remove surplus counts.
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
	// Rows read from now on include the added values for this slot, because it reads its own writes.
	for i := range p.got {
		p.got[i] += p.own[i]
	}
	p.markCounts()
	sumRows(p.total, p.got)
	return t.IncRows(ctx, WordTopic, rows, deltas)
}

// clampNegatives sets negative counts in the rows that were read to 0. Counts become negative when slots remove tokens
// that a row has lost. Only one slot changes a row: the slot whose rank is the row's number modulo the number of slots.
// All slots read all rows, and a slot reads its own writes, so nothing is added twice while the shares are the same.
//
// In a clock, no slot removes tokens from a count that is 0 or negative, because none sees a token there. Under bsp the
// count is therefore 0 or more after the clock. Each pass repairs one token that was counted too few, and only losses
// create more of them, so the repair terminates.
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
		p.share.Rank == 0 { // the totals are a single row, number 0; it is set to the sums of the words' counts
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

// clampedBy sets negative values to 0 and returns the differences, or nil if there are none.
func clampedBy(values []float32) (by []float32) {
	var m bitset
	m.setNonzero(values)
	return m.clampedBy(values, 0, len(values))
}

// clampedBy is the same for the values with indexes from ≤ i < end.
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

// Repair implements api.Repairer. It sets negative counts to 0. If rows may be lost, it recomputes n(k) from the words'
// counts.
func (p *program) Repair(tables map[string][]float32) {
	clampedBy(tables[WordTopic])
	clampedBy(tables[Totals])
	if p.params.Lossy && len(tables[Totals]) == p.Topics {
		sumRows(tables[Totals], tables[WordTopic])
	}
}
