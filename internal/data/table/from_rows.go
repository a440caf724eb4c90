package table

import "github.com/perdure/perdure"

// NewFromRows returns a part with the given rows, for a sparse table those of ids, as if training started with them.
// values has Dim values per row. The rule's state is empty, like that of a row without updates. The exception is ftrl,
// which computes a row from its state alone: its sums of gradients are set so that the rows follow from them at the
// rate of clock 0, with no squares accumulated. The next update moves a row from there.
func NewFromRows(spec perdure.TableSpec, id perdure.TableID, seed uint64, first perdure.RowID, ids []perdure.RowID,
	values []float32,
) *Part {
	rows := len(values) / spec.Dim
	p := NewUninitialized(spec, id, seed, first, rows)
	img := p.Image()
	for _, piece := range img.IDs {
		ids = ids[copy(piece, ids):]
	}
	for i, piece := range img.Planes[0] {
		values = values[copy(piece, values):]
		if p.Spec.Rule.Kind == perdure.RuleFTRL {
			ftrlSums(p.Spec.Rule, img.Planes[1][i], piece)
		}
	}
	return p
}

// ftrlSums sets z of ftrl rows so that it yields their values w while n is 0; it inverts the formula of ftrl. For a
// value of 0, any z within λ1 of 0 will do; z is then 0.
func ftrlSums(rule perdure.Rule, z, w []float32) {
	by := rule.Beta/float64(rule.RateAt(0)) + rule.L2
	for i, v := range w {
		switch d := float64(v); {
		case v > 0:
			z[i] = float32(-float64(d*by) - rule.L1)
		case v < 0:
			z[i] = float32(-float64(d*by) + rule.L1)
		}
	}
}
