package scar_test

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/scar"
	"github.com/perdure/perdure/internal/data/table"
)

func dense(id perdure.TableID, rows, dim int, init perdure.InitKind) *table.Part {
	spec := perdure.TableSpec{
		Name: "d", Rows: int64(rows), Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd},
		Init: perdure.Init{Kind: init, Scale: 1},
	}
	return table.New(spec, id, 7, 100, rows)
}

// add adds a value to the first value of a row.
func add(t testing.TB, p *table.Part, id perdure.RowID, value float32) {
	t.Helper()
	delta := make([]float32, p.Spec.Dim)
	delta[0] = value
	if err := p.ApplyRows(0, []perdure.RowID{id}, 1, delta, 1); err != nil {
		t.Fatal(err)
	}
}

func runs(of ...table.Run) [][]table.Run { return [][]table.Run{of} }

// The rows that have moved farthest come first, and unused budget is carried over.
func TestPriority(t *testing.T) {
	p := dense(0, 8, 2, perdure.InitNormal)
	l := scar.New(scar.Settings{Selector: perdure.SelectPriority, Share: 1.0 / 4})
	for i, v := range []float32{0, 3, -5, 0, 1, 4, 0, 0} {
		add(t, p, 100+perdure.RowID(i), v)
	}
	for i, want := range [][][]table.Run{
		runs(table.Run{First: 2, Rows: 1}, table.Run{First: 5, Rows: 1}),
		runs(table.Run{First: 1, Rows: 1}, table.Run{First: 4, Rows: 1}),
		{nil},
	} {
		c := l.Choose([]*table.Part{p}, 1)
		if !reflect.DeepEqual(c.Runs, want) {
			t.Fatalf("choice %d is %v, want %v", i, c.Runs, want)
		}
		l.Written(c, protocol.SegmentFile{File: string(rune('a' + i)), Bytes: c.Bytes})
	}
	for i := range 8 {
		add(t, p, 100+perdure.RowID(i), 1)
	}
	c := l.Choose([]*table.Part{p}, 1)
	if want := runs(table.Run{First: 0, Rows: 4}); !reflect.DeepEqual(c.Runs, want) {
		t.Fatalf("after an empty choice: %v, want %v", c.Runs, want)
	}
	if got := len(l.Files()); got != 3 { // the third has no rows, but is the newest
		t.Fatalf("%d files", got)
	}
}

func TestRound(t *testing.T) {
	p, q := dense(0, 5, 2, ""), dense(1, 3, 2, "")
	l := scar.New(scar.Settings{Selector: perdure.SelectRound, Share: 3.0 / 8})
	var got []int
	for range 4 {
		c := l.Choose([]*table.Part{p, q}, 1)
		for _, r := range c.Runs[0] {
			got = append(got, r.First, r.Rows)
		}
		for _, r := range c.Runs[1] {
			got = append(got, 10+r.First, r.Rows)
		}
		l.Written(c, protocol.SegmentFile{File: "f"})
	}
	if want := []int{0, 3, 3, 2, 10, 1, 0, 1, 11, 2, 1, 3}; !reflect.DeepEqual(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
}

var selectors = []perdure.Selector{
	perdure.SelectPriority, perdure.SelectRound, perdure.SelectRandom, perdure.SelectUsed,
}

// A shard whose rows are trained already is first saved completely. The next saves are empty until that is paid for,
// but evicted rows leave no debt.
func TestFull(t *testing.T) {
	for _, by := range selectors {
		for _, gone := range []bool{false, true} {
			spec := perdure.TableSpec{
				Name: "s", Sparse: true, Dim: 4, Evict: 4, Rule: perdure.Rule{Kind: perdure.RuleAdd},
			}
			p := table.New(spec, 0, 7, 0, 0)
			touch := func(from, n int, clock perdure.Clock) {
				for i := from; i < from+n; i++ {
					ids := []perdure.RowID{perdure.RowID(i)}
					if err := p.ApplyRows(0, ids, 1, []float32{1, 0, 0, 0}, clock); err != nil {
						t.Fatal(err)
					}
				}
			}
			touch(0, 400, 1)
			l := scar.New(scar.Settings{Selector: by, Share: 1.0 / 8, Full: true})
			choose := func() (rows int) {
				c := l.Choose([]*table.Part{p}, 1)
				for _, r := range c.Runs[0] {
					rows += r.Rows
				}
				l.Written(c, protocol.SegmentFile{File: "f"})
				return rows
			}
			if got := choose(); got != 400 {
				t.Fatalf("%s: the first choice has %d of 400 rows", by, got)
			}
			want := 8
			if gone {
				touch(0, 8, 20)
				forgets := l.EvictionHook(0, p)
				p.Evict(20, func(_ perdure.RowID, at int) { forgets(at) })
				if got := choose(); got != 8 { // the file of 400 rows is emptied despite the debt
					t.Fatalf("%s: %d rows, want the 8 remaining ones", by, got)
				}
				want = 10 // all 8 rows at one row per save, starting with a debt
			}
			touch(0, p.Stored(), 20)
			l.Changed(0, p, 0, p.IDs(0, p.Stored()), p.Stored())
			saves := 1
			for choose() == 0 {
				saves++
			}
			if saves != want {
				t.Errorf("%s, gone %v: %d saves have paid, want %d", by, gone, saves, want)
			}
		}
	}
}

// A ledger resumed from files whose rows have changed since makes the same choices as one that has observed the
// changes.
func TestPastOfChangedRows(t *testing.T) {
	const n = 64
	for _, by := range []perdure.Selector{perdure.SelectPriority, perdure.SelectRound, perdure.SelectRandom} {
		p, saved := dense(0, n, 2, perdure.InitNormal), dense(0, n, 2, perdure.InitNormal)
		set := scar.Settings{Selector: by, Share: 1.0 / 4}
		l := scar.New(set)
		l.Added(0, p)
		layer := [][]int32{make([]int32, n)}
		for at := range layer[0] {
			layer[0][at] = -1
		}
		change := func(times int) {
			for i := range n {
				add(t, p, 100+perdure.RowID(i), float32((i*37+times*11)%23))
			}
		}
		for file := range int32(3) {
			change(int(file))
			c := l.Choose([]*table.Part{p}, 1)
			for _, r := range c.Runs[0] {
				for at := r.First; at < r.First+r.Rows; at++ {
					layer[0][at] = file
					copy(saved.Values(at, 1)[:2], p.Values(at, 1)[:2])
				}
			}
			l.Written(c, protocol.SegmentFile{File: string(rune('a' + file)), Bytes: c.Bytes})
		}
		change(3)
		set.Saves = 3
		of := []protocol.SegmentFile{{File: "a"}, {File: "b"}, {File: "c"}}
		again := scar.Resume(set, []*table.Part{p}, of, layer)
		again.SetSavedValues([]*table.Part{saved})
		for i := range 3 {
			one, two := l.Choose([]*table.Part{p}, 1), again.Choose([]*table.Part{p}, 1)
			if !reflect.DeepEqual(one.Runs, two.Runs) || one.Bytes == 0 {
				t.Errorf("%s: choice %d is %v, but the observing ledger's is %v", by, i, two.Runs, one.Runs)
			}
			f := protocol.SegmentFile{File: string(rune('d' + i)), Bytes: one.Bytes}
			l.Written(one, f)
			again.Written(two, f)
			change(4 + i)
		}
	}
}
