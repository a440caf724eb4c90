package placement_test

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
)

func ExampleRange() {
	for s := range perdure.ShardID(3) {
		first, count := placement.Range(10, 3, s)
		fmt.Println("shard", s, "holds", count, "rows from", first)
	}
	// Output:
	// shard 0 holds 4 rows from 0
	// shard 1 holds 3 rows from 4
	// shard 2 holds 3 rows from 7
}

// The ranges are in order, cover every row once, and ShardOf agrees with them.
func TestRangesPartitionTheRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.Int64Range(1, 2000).Draw(t, "rows")
		shards := rapid.IntRange(1, int(min(rows, 64))).Draw(t, "shards")
		next, small, large := perdure.RowID(0), int(rows), 0
		for s := range perdure.ShardID(shards) {
			first, count := placement.Range(rows, shards, s)
			if first != next {
				t.Fatalf("shard %d begins at row %d, want %d", s, first, next)
			}
			for r := first; r < first+perdure.RowID(count); r++ {
				if got := placement.ShardOf(rows, shards, r); got != s {
					t.Fatalf("row %d is said to be on shard %d, want %d", r, got, s)
				}
			}
			next += perdure.RowID(count)
			small, large = min(small, count), max(large, count)
		}
		if next != perdure.RowID(rows) || large-small > 1 {
			t.Fatalf("%d rows covered of %d, sizes %d to %d", next, rows, small, large)
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

// Where a row of a sparse table is never changes, and rows that follow one another
// are spread evenly.
func TestShardOfID(t *testing.T) {
	for row, want := range map[perdure.RowID]perdure.ShardID{0: 0, 1: 14, 2: 6, 1000: 1, math.MaxUint64: 3} {
		if got := placement.ShardOfID(row, 16); got != want {
			t.Errorf("row %d is on shard %d of 16, want %d", row, got, want)
		}
	}
	for _, shards := range []int{1, 2, 7, 16} {
		count := make([]int, shards)
		const rows = 100_000
		for row := range perdure.RowID(rows) {
			count[placement.ShardOfID(row, shards)]++
		}
		for s, n := range count {
			if mean := rows / shards; n < mean*9/10 || n > mean*11/10 {
				t.Errorf("shard %d of %d has %d of %d rows", s, shards, n, rows)
			}
		}
	}
}
