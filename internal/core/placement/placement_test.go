package placement_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
)

func ExampleRange() {
	t := perdure.TableSpec{Rows: 10}
	for s := range perdure.ShardID(3) {
		first, count := placement.Range(&t, 3, s)
		fmt.Println("shard", s, "holds", count, "rows from", first)
	}
	// Output:
	// shard 0 holds 4 rows from 0
	// shard 1 holds 3 rows from 4
	// shard 2 holds 3 rows from 7
}

// TestRangesPartitionTheRows checks that the ranges are in order and cover every row once, and that ShardOf agrees with
// them. They are as equal as possible, or one shard has all rows of a whole table.
func TestRangesPartitionTheRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := perdure.TableSpec{Rows: rapid.Int64Range(1, 2000).Draw(t, "rows"), Whole: rapid.Bool().Draw(t, "whole")}
		most := 64
		if !spec.Whole {
			most = int(min(spec.Rows, 64))
		}
		shards := rapid.IntRange(1, most).Draw(t, "shards")
		if spec.Whole {
			spec.Shard = perdure.ShardID(rapid.IntRange(0, shards-1).Draw(t, "shard"))
		}
		next, small, large := perdure.RowID(0), int(spec.Rows), 0
		for s := range perdure.ShardID(shards) {
			first, count := placement.Range(&spec, shards, s)
			if count == 0 && first == 0 && s != spec.Shard && spec.Whole {
				continue
			}
			if first != next || count == 0 {
				t.Fatalf("shard %d has %d rows from row %d, want some from row %d", s, count, first, next)
			}
			for r := first; r < first+perdure.RowID(count); r++ {
				if got := placement.ShardOf(&spec, shards, r); got != s {
					t.Fatalf("row %d is reported on shard %d, want %d", r, got, s)
				}
			}
			next += perdure.RowID(count)
			small, large = min(small, count), max(large, count)
		}
		if next != perdure.RowID(spec.Rows) || large-small > 1 {
			t.Fatalf("%d rows covered of %d, sizes %d to %d", next, spec.Rows, small, large)
		}
	})
}

// A sparse table has no known number of rows.
func TestRangeOfSparse(t *testing.T) {
	if first, n := placement.Range(&perdure.TableSpec{Sparse: true}, 3, 1); first != 0 || n != 0 {
		t.Errorf("%d rows from row %d", n, first)
	}
}

func ExamplePlaceTable() {
	var tables []perdure.TableSpec
	for _, rows := range []int64{10, 200, 30, 5, 1, 3} {
		t := perdure.TableSpec{Rows: rows, Dim: 2, Whole: true}
		t.Shard = placement.PlaceTable(&t, tables, 4, 2)
		tables = append(tables, t)
		fmt.Println("a table of", rows, "rows is on shard", t.Shard)
	}
	rows := perdure.TableSpec{Rows: 1000, Dim: 2}
	fmt.Println("a table that is not whole is on shard", placement.PlaceTable(&rows, tables, 4, 2))
	// Output:
	// a table of 10 rows is on shard 0
	// a table of 200 rows is on shard 2
	// a table of 30 rows is on shard 1
	// a table of 5 rows is on shard 0
	// a table of 1 rows is on shard 0
	// a table of 3 rows is on shard 0
	// a table that is not whole is on shard 0
}

// TestPlaceSpreads checks that tables of equal size are spread over all servers, and then over all shards.
func TestPlaceSpreads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.IntRange(1, 8).Draw(t, "servers")
		shards := rapid.IntRange(servers, 20).Draw(t, "shards")
		n := rapid.IntRange(1, 40).Draw(t, "tables")
		owners := placement.Assign(shards, servers)
		var tables []perdure.TableSpec
		on, at := make([]int, servers), make([]int, shards)
		for range n {
			spec := perdure.TableSpec{Rows: 7, Dim: 3, Whole: true}
			spec.Shard = placement.PlaceTable(&spec, tables, shards, servers)
			tables = append(tables, spec)
			on[owners[spec.Shard]]++
			at[spec.Shard]++
		}
		if slices.Max(on)-slices.Min(on) > 1 {
			t.Fatalf("servers have %v of %d tables", on, n)
		}
		for s := 1; s < shards; s++ {
			if owners[s] == owners[s-1] && (at[s] > at[s-1] || at[s] < at[s-1]-1) {
				t.Fatalf("shards have %v, of servers %v", at, owners)
			}
		}
	})
}

func TestAssignIsBalanced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.IntRange(1, 40).Draw(t, "servers")
		shards := rapid.IntRange(servers, 300).Draw(t, "shards")
		held := make([]int, servers)
		for _, o := range placement.Assign(shards, servers) {
			held[o]++
		}
		for i, n := range held {
			if n < shards/servers || n > shards/servers+1 {
				t.Fatalf("server %d holds %d of %d shards on %d servers", i, n, shards, servers)
			}
		}
	})
}

// TestShardOfSparse checks that the shard of a sparse table's row never changes, and that consecutive rows are spread
// evenly.
func TestShardOfSparse(t *testing.T) {
	sparse := &perdure.TableSpec{Sparse: true}
	for row, want := range map[perdure.RowID]perdure.ShardID{0: 0, 1: 14, 2: 6, 1000: 1, math.MaxUint64: 3} {
		if got := placement.ShardOf(sparse, 16, row); got != want {
			t.Errorf("row %d is on shard %d of 16, want %d", row, got, want)
		}
	}
	for _, shards := range []int{1, 2, 7, 16} {
		count := make([]int, shards)
		const rows = 100_000
		for row := range perdure.RowID(rows) {
			count[placement.ShardOf(sparse, shards, row)]++
		}
		for s, n := range count {
			if mean := rows / shards; n < mean*9/10 || n > mean*11/10 {
				t.Errorf("shard %d of %d has %d of %d rows", s, shards, n, rows)
			}
		}
	}
}
