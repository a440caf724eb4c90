package scar_test

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/scar"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/table"
)

func dense(id perdure.TableID, rows, dim int, init perdure.InitKind) *table.Part {
	spec := perdure.TableSpec{
		Name: "d", Rows: int64(rows), Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd},
		Init: perdure.Init{Kind: init, Scale: 1},
	}
	return table.New(spec, id, 7, 100, rows)
}

// add adds a value to the first of a row's.
func add(t testing.TB, p *table.Part, id perdure.RowID, value float32) {
	t.Helper()
	delta := make([]float32, p.Spec.Dim)
	delta[0] = value
	if err := p.ApplyRows(0, []perdure.RowID{id}, 1, delta, 1); err != nil {
		t.Fatal(err)
	}
}

func runs(of ...table.Run) [][]table.Run { return [][]table.Run{of} }

// What has moved the farthest comes first, and what is left of the budget is carried over.
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
		c := l.Choose([]*table.Part{p})
		if !reflect.DeepEqual(c.Runs, want) {
			t.Fatalf("choice %d is %v, want %v", i, c.Runs, want)
		}
		l.Written(c, words.SegmentFile{File: string(rune('a' + i)), Bytes: c.Bytes})
	}
	for i := range 8 {
		add(t, p, 100+perdure.RowID(i), 1)
	}
	c := l.Choose([]*table.Part{p})
	if want := runs(table.Run{First: 0, Rows: 4}); !reflect.DeepEqual(c.Runs, want) {
		t.Fatalf("after a choice of nothing: %v, want %v", c.Runs, want)
	}
	if got := len(l.Files()); got != 3 { // the third has no rows, and is the newest
		t.Fatalf("%d files", got)
	}
}

func TestRound(t *testing.T) {
	p, q := dense(0, 5, 2, ""), dense(1, 3, 2, "")
	l := scar.New(scar.Settings{Selector: perdure.SelectRound, Share: 3.0 / 8})
	var got []int
	for range 4 {
		c := l.Choose([]*table.Part{p, q})
		for _, r := range c.Runs[0] {
			got = append(got, r.First, r.Rows)
		}
		for _, r := range c.Runs[1] {
			got = append(got, 10+r.First, r.Rows)
		}
		l.Written(c, words.SegmentFile{File: "f"})
	}
	if want := []int{0, 3, 3, 2, 10, 1, 0, 1, 11, 2, 1, 3}; !reflect.DeepEqual(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
}

var selectors = []perdure.Selector{
	perdure.SelectPriority, perdure.SelectRound, perdure.SelectRandom, perdure.SelectUsed,
}
