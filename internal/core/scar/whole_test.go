package scar

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/table"
)

func someTable(id perdure.TableID, rows int, whole bool) *table.Part {
	spec := perdure.TableSpec{
		Name: "t", Rows: int64(rows), Dim: 1, Whole: whole, Rule: perdure.Rule{Kind: perdure.RuleAdd},
	}
	return table.New(spec, id, 7, 0, rows)
}

// move changes each value of some parts by the same amount.
func move(t *testing.T, l *Ledger, parts []*table.Part, by float32) {
	for i, p := range parts {
		if err := p.ApplyRows(0, nil, p.Rows, slices.Repeat([]float32{by}, p.Rows), 1); err != nil {
			t.Fatal(err)
		}
		l.Changed(perdure.TableID(i), p, 0, nil, p.Rows)
	}
}

// TestWholeTable: a table with half of all bytes is one unit of five times a round's budget. It is saved when its turn
// comes, and the following rounds pay for it. So ten rounds save as many bytes as without it.
func TestWholeTable(t *testing.T) {
	for _, by := range allSelectors {
		parts := []*table.Part{someTable(0, 50, true), someTable(1, 50, false), someTable(2, 0, true)}
		l := New(Settings{Selector: by, Share: 1.0 / 10, Seed: 1})
		for i, p := range parts {
			l.Added(perdure.TableID(i), p)
		}
		var rows []int
		bytes := int64(0)
		for n := range 20 {
			move(t, l, parts, 1)
			c := l.Choose(parts, 1)
			if n := len(c.Runs[0]); n > 0 && !reflect.DeepEqual(c.Runs[0], []table.Run{{Rows: 50}}) {
				t.Fatalf("%s: rows %v of a whole table", by, c.Runs[0])
			}
			of := 0
			for _, run := range slices.Concat(c.Runs...) {
				of += run.Rows
			}
			if c.Bytes != int64(of*4) {
				t.Fatalf("%s: %d bytes of %d rows", by, c.Bytes, of)
			}
			rows, bytes = append(rows, of), bytes+c.Bytes
			if most := int64((n+1)*40 + 200); bytes > most {
				t.Fatalf("%s: %d bytes in %d rounds, more than %d", by, bytes, n+1, most)
			}
			l.Written(c, protocol.SegmentFile{File: fmt.Sprint(n), Bytes: c.Bytes})
		}
		if by == perdure.SelectRound {
			want := []int{50, 0, 0, 0, 0, 10, 10, 10, 10, 10}
			if want = append(want, want...); !slices.Equal(rows, want) {
				t.Errorf("%s: rows %v, want %v", by, rows, want)
			}
		}
	}
}

// TestNobodyStarves: whatever sizes whole tables have, each unit is saved repeatedly, and so are individual rows. If
// all units are equally due, none waits much longer than twice the rounds in which all bytes are saved. priority uses
// the distance per byte, which is smaller for a larger unit whose values move by the same amount. Such a unit waits
// until it has made up for that.
func TestNobodyStarves(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		by := allSelectors[seed%4]
		if by == perdure.SelectRandom {
			continue // there is no bound
		}
		share := []float64{1, 1.0 / 2, 1.0 / 8, 1.0 / 20}[r.IntN(4)]
		parts := []*table.Part{someTable(0, 1+r.IntN(30), false)}
		largest := 1
		for range 1 + r.IntN(6) {
			n := 1 + r.IntN(1+r.IntN(200))
			largest = max(largest, n)
			parts = append(parts, someTable(perdure.TableID(len(parts)), n, true))
		}
		l := New(Settings{Selector: by, Share: share, Seed: seed})
		for i, p := range parts {
			l.Added(perdure.TableID(i), p)
		}
		wait := 2/share + 2
		if by == perdure.SelectPriority {
			wait *= math.Sqrt(float64(largest))
		}
		last := make([][]int, len(parts)) // by table and row
		for t, p := range parts {
			last[t] = slices.Repeat([]int{-1}, p.Rows)
		}
		saved := int64(0)
		for n := range int(4*wait) + 4 {
			move(t, l, parts, 1)
			c := l.Choose(parts, 1)
			l.Written(c, protocol.SegmentFile{File: fmt.Sprint(n), Bytes: c.Bytes})
			saved += c.Bytes
			for i, runs := range c.Runs {
				for _, run := range runs {
					for at := run.First; at < run.First+run.Rows; at++ {
						last[i][at] = n
					}
				}
				for at, was := range last[i] {
					if float64(n-was) > wait {
						t.Fatalf("seed %d, %s, %v: row %d of table %d of %d saved in round %d, but not again up to %d",
							seed, by, share, at, i, len(parts), was, n)
					}
				}
			}
		}
		if saved == 0 {
			t.Fatal("no row was saved")
		}
	}
}

// TestWholeKeys: the key of a whole table is that of all its rows together, wherever they are. Among tables with the
// same number of values, the one that has moved farther comes first.
func TestWholeKeys(t *testing.T) {
	const rows = 3000 // in several blocks, most of them unchanged
	parts := []*table.Part{someTable(0, rows, true), someTable(1, rows, true), someTable(2, rows, true)}
	l := New(Settings{Selector: perdure.SelectPriority, Share: 1.0 / 3})
	for i, p := range parts {
		l.Added(perdure.TableID(i), p)
	}
	add := func(i int, at perdure.RowID, by float32) {
		if err := parts[i].ApplyRows(at, nil, 1, []float32{by}, 1); err != nil {
			t.Fatal(err)
		}
	}
	add(0, 7, 4) // 4
	add(1, 0, 3)
	add(1, rows-1, -4)                 // 5
	for at := range perdure.RowID(9) { // 3
		add(2, 1000+at, 1)
	}
	for i, want := range []int{1, 0, 2} {
		c := l.Choose(parts, 1)
		for t2, runs := range c.Runs {
			if has := len(runs) > 0; has != (t2 == want) {
				t.Fatalf("choice %d is %v, want table %d", i, c.Runs, want)
			}
		}
		l.Written(c, protocol.SegmentFile{File: fmt.Sprint(i), Bytes: c.Bytes})
	}
}

// TestSampleMeetsWholeTables: if the number of rows requires a sample, a whole table with most of the bytes
// has its full weight in the sample.
func TestSampleMeetsWholeTables(t *testing.T) {
	parts := []*table.Part{someTable(0, 32*samples, false), someTable(1, 300*samples, true)}
	l := New(Settings{Selector: perdure.SelectRandom, Share: 1.0 / 10})
	for i, p := range parts {
		l.Added(perdure.TableID(i), p)
	}
	l.meet(parts)
	l.score(parts, nil)
	l.scratch.keys[1][0] = keyMax / 2
	bytes := []int64{4, 4 * 300 * samples}
	low, high, ok := l.scratch.between(2, bytes, 4*100*samples)
	at, above := l.scratch.last(2, bytes, 4*100*samples)
	if want, _ := threshold(l.scratch.keys[:2], bytes, 4*100*samples); !ok || at != want || at != keyMax/2 ||
		low > at || high <= at {
		t.Errorf("the last key is %d (%d bytes above it), want %d, between %d and %d: %v", at, above, want, low, high,
			ok)
	}
}
