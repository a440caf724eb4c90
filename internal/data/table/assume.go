package table

import "github.com/perdure/perdure"

// Assume makes a part with these rows, of a sparse one those of ids, as if training began with them; values has Dim
// values for each. The rule's state is empty, as that of a row that was never updated. Only of ftrl, which computes a
// row from its state alone, it is the sum of gradients from which the row follows at the rate of clock 0, with no
// square seen yet: the next update moves the row from there.
func Assume(spec perdure.TableSpec, id perdure.TableID, seed uint64, first perdure.RowID, ids []perdure.RowID,
	values []float32,
) *Part {
	rows := len(values) / spec.Dim
	p := Blank(spec, id, seed, first, rows)
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

// ftrlSums sets z of rows of ftrl to what gives their values w, where n is 0: the inverse of what ftrl computes. A
// value of 0 is anywhere within λ1 of 0, and is given the middle.
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
