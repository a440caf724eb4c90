// Package placement decides which rows belong to which shard and which shard to
// which server. Its functions are pure and deterministic: every process gets
// the same answers from the job's numbers alone.
//
// Invariant: the shards' row ranges of a dense table are disjoint, in order, cover
// the table, and differ in size by at most one row.
package placement

import (
	"math/bits"

	"github.com/perdure/perdure"
)

// Range returns the rows of shard s of a table of the given number of rows: the
// first one and how many. It needs 1 ≤ shards ≤ rows and 0 ≤ s < shards.
func Range(rows int64, shards int, s perdure.ShardID) (first perdure.RowID, count int) {
	size, larger := rows/int64(shards), rows%int64(shards)
	at := int64(s)*size + min(int64(s), larger)
	if int64(s) < larger {
		size++
	}
	return perdure.RowID(at), int(size)
}

// ShardOf returns the shard that holds a row. It needs row < rows.
func ShardOf(rows int64, shards int, row perdure.RowID) perdure.ShardID {
	size, larger := rows/int64(shards), rows%int64(shards)
	r := int64(row)
	if wide := larger * (size + 1); r >= wide {
		return perdure.ShardID(larger + (r-wide)/size)
	}
	return perdure.ShardID(r / (size + 1))
}

// ShardOfID returns the shard that holds a row of a sparse table: rows are spread
// by a hash, so that ids that follow one another do not meet on one shard.
func ShardOfID(row perdure.RowID, shards int) perdure.ShardID {
	h := uint64(row) * 0x9e3779b97f4a7c15 // the finaliser of SplitMix64, and its constant
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	h ^= h >> 31
	high, _ := bits.Mul64(h, uint64(shards)) // h·shards / 2^64
	return perdure.ShardID(high)
}

// Home returns the shard that keeps what a slot's program saves.
func Home(slot perdure.Slot, shards int) perdure.ShardID {
	return perdure.ShardID(int(slot) % shards)
}

// Assign spreads a job's shards over its servers: result[s] is the number of
// shard s's server. Servers get equal numbers of shards, give or take one, and
// neighbouring shards together.
func Assign(shards, servers int) []int {
	owners := make([]int, shards)
	for s := range owners {
		owners[s] = s * servers / shards
	}
	return owners
}
