package itercost

import (
	"math"
	"math/rand/v2"
	"testing"
)

// someDelta returns the perturbation between random rows of two tables.
func someDelta(t *testing.T, r *rand.Rand, rows int) Delta {
	t.Helper()
	table := func(name string, rows, dim int) Table[float64] {
		values := make([]float64, rows*dim)
		for i := range values {
			values[i] = r.NormFloat64()
		}
		return Table[float64]{name, dim, values}
	}
	truth := []Table[float64]{table("users", rows/2, 3), table("items", rows-rows/2, 5)}
	saved := []Table[float64]{table("users", rows/2, 3), table("items", rows-rows/2, 5)}
	d, err := Between(truth, saved)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// square returns ‖δ'‖² if lost selects the lost rows.
func square(d Delta, lost func(row int) bool) float64 {
	norm := d.Partial(func(table string, row int) bool {
		if table == "items" {
			row += len(d[0].Rows)
		}
		return lost(row)
	}).Norm()
	return norm * norm
}

func near(a, b, tolerance float64) bool {
	return math.Abs(a-b) <= tolerance*max(math.Abs(a), math.Abs(b))
}

func TestBetween(t *testing.T) {
	truth := []Table[float32]{{"a", 2, []float32{1, 2, 3, 4}}, {"b", 1, []float32{5}}}
	saved := []Table[float32]{{"a", 2, []float32{4, 6, 3, 4}}, {"b", 1, []float32{-7}}}
	d, err := Between(truth, saved)
	if err != nil || d[0].Name != "a" || d[0].Rows[0] != 5 || d[0].Rows[1] != 0 || d[1].Rows[0] != 12 {
		t.Fatalf("%v, %v", d, err)
	}
	if a, b, all := d[0].Norm(), d[1].Norm(), d.Norm(); a != 5 || b != 12 || all != 13 {
		t.Errorf("norms %v, %v and %v in all; want 5, 12 and 13", a, b, all)
	}
	if p := d.At(7); p != (Perturbation{7, 13}) {
		t.Errorf("at clock 7: %v", p)
	}
	far, zero := Table[float64]{"a", 2, []float64{3e200, 4e200}}, Table[float64]{"a", 2, []float64{0, 0}}
	huge, err := Between([]Table[float64]{far}, []Table[float64]{zero})
	if err != nil || !near(huge.Norm(), 5e200, 1e-12) {
		t.Errorf("a norm whose square is no float64: %v, %v", huge.Norm(), err)
	}
}

// TestPartialIsSmaller checks that restoring only the lost rows never causes a larger perturbation than restoring all
// rows from the same saved values. With other saved values it may.
func TestPartialIsSmaller(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	for range 1000 {
		d := someDelta(t, r, 2+r.IntN(20))
		part := d.Partial(func(string, int) bool { return r.IntN(2) == 0 })
		rest := square(d, func(int) bool { return true }) - square(part, func(int) bool { return true })
		if part.Norm() > d.Norm() || rest < 0 {
			t.Fatalf("‖δ'‖ is %v, ‖δ‖ %v", part.Norm(), d.Norm())
		}
	}
	if d := someDelta(t, r, 10); d.Partial(func(string, int) bool { return true }).Norm() != d.Norm() ||
		d.Partial(func(string, int) bool { return false }).Norm() != 0 {
		t.Error("if all is lost δ' is not δ, or if nothing is, not 0")
	}
	full := Delta{{"a", []float64{1, 1}}}
	older := Delta{{"a", []float64{9, 0}}} // a running checkpoint in which row 0 is old
	if part := older.Partial(func(_ string, row int) bool { return row == 0 }); part.Norm() <= full.Norm() {
		t.Errorf("an old row came back, and ‖δ'‖ is %v beside %v", part.Norm(), full.Norm())
	}
}

// TestExpectedSquareExactly enumerates all sets of rows that can be lost, with their probabilities: independent rows,
// shards of rows, and exactly m rows of n.
func TestExpectedSquareExactly(t *testing.T) {
	const rows, shards = 8, 3
	r := rand.New(rand.NewPCG(4, 0))
	for _, p := range []float64{0, 0.1, 0.25, 0.5, 0.75, 1} {
		d := someDelta(t, r, rows)
		mean := func(parts int, partOf func(row int) int) (sum float64) {
			for set := range 1 << parts {
				chance := 1.0
				for i := range parts {
					chance *= map[bool]float64{true: p, false: 1 - p}[set>>i&1 == 1]
				}
				sum += chance * square(d, func(row int) bool { return set>>partOf(row)&1 == 1 })
			}
			return sum
		}
		byRow := mean(rows, func(row int) int { return row })
		byShard := mean(shards, func(row int) int { return row % shards })
		if want := d.ExpectedSquare(p); !near(byRow, want, 1e-12) || !near(byShard, want, 1e-12) {
			t.Errorf("p %v: rows lost by themselves make %v, shards %v, want %v", p, byRow, byShard, want)
		}
	}
	d := someDelta(t, r, rows)
	sums, sets := [rows + 1]float64{}, [rows + 1]float64{}
	for set := range 1 << rows {
		lost := 0
		for i := range rows {
			lost += set >> i & 1
		}
		sums[lost] += square(d, func(row int) bool { return set>>row&1 == 1 })
		sets[lost]++
	}
	for m := range sums {
		if got, want := sums[m]/sets[m], d.ExpectedSquare(float64(m)/rows); !near(got, want, 1e-12) {
			t.Errorf("%d of %d rows are lost: %v, want %v", m, rows, got, want)
		}
	}
}

// TestExpectedSquareByChance draws which of 200 rows are lost. The mean of 5,000 draws must be within four standard
// errors, which are 0.07% to 0.2% of it.
func TestExpectedSquareByChance(t *testing.T) {
	const rows, draws = 200, 5000
	r := rand.New(rand.NewPCG(5, 0))
	d := someDelta(t, r, rows)
	fourth := 0.0
	for _, table := range d {
		for _, norm := range table.Rows {
			fourth += math.Pow(norm, 4)
		}
	}
	for _, p := range []float64{0.25, 0.5, 0.75} {
		sum := 0.0
		for range draws {
			sum += square(d, func(int) bool { return r.Float64() < p })
		}
		got, want := sum/draws, d.ExpectedSquare(p)
		tolerance := 4 * math.Sqrt(p*(1-p)*fourth/draws)
		if math.Abs(got-want) > tolerance {
			t.Errorf("p %v: mean of ‖δ'‖² is %v, want %v ± %v", p, got, want, tolerance)
		}
	}
}
