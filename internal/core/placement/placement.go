// Package placement decides which rows belong to which shard and which shard to which server. Its functions are pure
// and deterministic: every process computes the same answers from the job's numbers alone.
//
// Invariant: the shards' row ranges of a dense table are disjoint and in order, cover the table, and differ in size by
// at most one row. All rows of a whole table are on the shard that its spec names.
package placement

import (
	"cmp"
	"math/bits"

	"github.com/perdure/perdure"
)

// Range returns the rows of a table on shard s: the first one and their number. It returns 0 rows from row 0 for a
// shard without rows of a whole table, and for any shard of a sparse table, whose row count is unknown. The table must
// be valid, and 0 ≤ s < shards.
func Range(t *perdure.TableSpec, shards int, s perdure.ShardID) (first perdure.RowID, count int) {
	switch {
	case t.Whole && s == t.Shard:
		return 0, int(t.Rows)
	case t.Whole || t.Sparse:
		return 0, 0
	}
	size, larger := t.Rows/int64(shards), t.Rows%int64(shards)
	at := int64(s)*size + min(int64(s), larger)
	if int64(s) < larger {
		size++
	}
	return perdure.RowID(at), int(size)
}

// ShardOf returns the shard that has a row of a table. For a dense table, row must be less than Rows.
func ShardOf(t *perdure.TableSpec, shards int, row perdure.RowID) perdure.ShardID {
	switch {
	case t.Sparse:
		return hashed(row, shards)
	case t.Whole:
		return t.Shard
	}
	return inOrder(t.Rows, shards, row)
}

func inOrder(rows int64, shards int, row perdure.RowID) perdure.ShardID {
	size, larger := rows/int64(shards), rows%int64(shards)
	r := int64(row)
	if wide := larger * (size + 1); r >= wide {
		return perdure.ShardID(larger + (r-wide)/size)
	}
	return perdure.ShardID(r / (size + 1))
}

// hashed returns the shard that has a row of a sparse table. A hash spreads the rows, so that consecutive ids do not
// cluster on one shard.
func hashed(row perdure.RowID, shards int) perdure.ShardID {
	h := uint64(row) * 0x9e3779b97f4a7c15 // the finaliser of SplitMix64, and its constant
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	h ^= h >> 31
	high, _ := bits.Mul64(h, uint64(shards)) // h·shards / 2^64
	return perdure.ShardID(high)
}

// PlaceTable returns the shard for a new whole table, given the existing tables. It chooses the server that initially
// has the fewest bytes of whole tables, and of that server's shards the one with the fewest; ties go to the first.
// Other tables count equally on all shards and are ignored, and so is state other than rows.
func PlaceTable(t *perdure.TableSpec, tables []perdure.TableSpec, shards, servers int) perdure.ShardID {
	if !t.Whole {
		return 0
	}
	owners := Assign(shards, servers)
	here, there := make([]int64, shards), make([]int64, servers)
	for i := range tables {
		if other := &tables[i]; other.Whole {
			bytes := 4 * other.Rows * int64(other.Dim)
			here[other.Shard] += bytes
			there[owners[other.Shard]] += bytes
		}
	}
	at := 0
	for s := range here {
		if cmp.Or(cmp.Compare(there[owners[s]], there[owners[at]]), cmp.Compare(here[s], here[at])) < 0 {
			at = s
		}
	}
	return perdure.ShardID(at)
}

// HomeShard returns the shard that keeps the saved state of a slot's program.
func HomeShard(slot perdure.Slot, shards int) perdure.ShardID {
	return perdure.ShardID(int(slot) % shards)
}

// Assign spreads a job's shards over its servers: result[s] is the server of shard s. All servers get equal numbers of
// shards, within one, and each gets consecutive shards.
func Assign(shards, servers int) []int {
	owners := make([]int, shards)
	for s := range owners {
		owners[s] = s * servers / shards
	}
	return owners
}
