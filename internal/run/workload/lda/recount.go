package lda

import (
	"context"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// recounts reports whether every clock recomputes the counts from the assignments.
func (p *program) recounts() bool { return p.Rebuild && p.params.Steps }

// recount makes the counts match the assignments, whichever rows were lost and however old the restored rows are. Under
// bsp all slots read the same rows in a clock. Each slot therefore counts all assignments that it has read, and uses
// these counts instead of the words' rows. Only one slot repairs a row: the one whose rank is the row's number modulo
// the number of slots. It adds the row's difference, which may be negative. In addition, each slot remembers the topics
// that it drew for its own documents. If the table differs, the topics were lost: the slot adds the difference and
// rewrites the assignments.
//
// The result depends only on the rows that were read, not on earlier repairs, so nothing is added twice. If a server
// dies within a clock, slots may read different rows, and the counts may be wrong at its end. The next clock detects
// that.
func (p *program) recount(ctx context.Context, t api.Tables, part int) error {
	n := p.rows[len(p.rows)-1] * rowTokens
	p.all = slices.Grow(p.all[:0], n)[:n]
	if err := t.Get(ctx, Assignments, 0, p.all); err != nil {
		return err
	}
	p.countAll()
	lack := p.countDifferences()
	if err := p.remember(ctx, t, part, lack); err != nil {
		return err
	}
	if slices.ContainsFunc(lack, func(v float32) bool { return v != 0 }) {
		if err := t.Inc(ctx, Totals, 0, lack); err != nil {
			return err
		}
	}
	var rows []perdure.RowID
	var deltas []float32
	for i, row := range p.list {
		by := p.own[i*p.Topics : (i+1)*p.Topics]
		if slices.ContainsFunc(by, func(v float32) bool { return v != 0 }) {
			rows, deltas = append(rows, row), append(deltas, by...)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return t.IncRows(ctx, WordTopic, rows, deltas)
}

// countAll counts the assignments that were read.
func (p *program) countAll() {
	p.own = slices.Grow(p.own[:0], len(p.got))[:len(p.got)]
	clear(p.own)
	for doc := range p.data.Train.Len() {
		values := p.all[p.rows[doc]*rowTokens:]
		for i, w := range p.data.Train.Document(doc) {
			if k := p.topicOf(values[i]); k >= 0 {
				p.own[int(p.place[w])*p.Topics+int(k)]++
			}
		}
	}
}

// countDifferences replaces the rows that were read by the computed counts, and the counts by the differences that this
// slot adds. It returns the slot's addition to the totals, which are row 0 of their table.
func (p *program) countDifferences() (lack []float32) {
	for i, row := range p.list {
		mine := int(row%perdure.RowID(p.share.Of)) == p.share.Rank
		for at := i * p.Topics; at < (i+1)*p.Topics; at++ {
			n := p.own[at]
			p.own[at] = 0
			if mine {
				p.own[at] = n - p.got[at]
			}
			p.got[at] = n
		}
	}
	lack = make([]float32, p.Topics)
	was := slices.Clone(p.total)
	sumRows(p.total, p.got)
	if p.share.Rank == 0 {
		for k, n := range p.total {
			lack[k] = n - was[k]
		}
	}
	return lack
}

// remember learns the topics of this slot's documents, or compares the table with the known topics. It does not write
// rows of the clock's own documents: all of these are written after sampling.
func (p *program) remember(ctx context.Context, t api.Tables, part int, lack []float32) error {
	count := func(w int32, k int16, by float32) {
		if k >= 0 {
			at := int(p.place[w])*p.Topics + int(k)
			p.own[at] += by
			p.got[at] += by
			p.total[k] += by
			lack[k] += by
		}
	}
	p.docs.list, p.docs.values = p.docs.list[:0], p.docs.values[:0]
	for at := range p.parts {
		for _, doc := range p.documents(at, p.share) {
			values, words := p.all[p.rows[doc]*rowTokens:], p.data.Train.Document(int(doc))
			if p.topics[doc] == nil {
				p.topics[doc] = unassigned(len(words))
			}
			topics := p.topics[doc]
			knows := p.known[doc] == p.assignmentVersion
			p.was = p.was[:0]
			for i, w := range words {
				k := p.topicOf(values[i])
				p.was = append(p.was, k)
				if !knows {
					topics[i] = k
				} else if topics[i] != k {
					count(w, k, -1)
					count(w, topics[i], 1)
				}
			}
			p.known[doc] = p.assignmentVersion
			if at != part {
				p.docs.note(p.model, doc, p.was, topics, false)
			}
		}
	}
	if len(p.docs.list) == 0 {
		return nil
	}
	return t.IncRows(ctx, Assignments, p.docs.list, p.docs.values)
}

// topicOf returns the topic for a value in the table of assignments; -1: none.
func (p *program) topicOf(v float32) int16 { return int16(min(max(v, 0), float32(p.Topics))) - 1 }
