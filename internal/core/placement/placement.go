// Package placement decides which rows belong to which shard and which shard to
// which server. Its functions are pure and deterministic: every process gets
// the same answers from the job's numbers alone.
//
// Invariant: the shards' row ranges of a dense table are disjoint, in order, cover
// the table, and differ in size by at most one row. A whole table's rows are all on the
// shard that its spec names; the other shards have none of it.
package placement

import (
	"cmp"
	"math/bits"

	"github.com/perdure/perdure"
)

// Range returns the rows of a table that shard s has: the first one and how many. A shard that
// has none of a whole table, and any shard of a sparse one, whose rows nobody can count, has 0
// rows from row 0 on. It needs a valid table and 0 ≤ s < shards.
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

// ShardOf returns the shard that has a row of a table. Of a dense table it needs row < Rows.
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

// hashed returns the shard that has a row of a sparse table: rows are spread by a hash, so that
// ids that follow one another do not meet on one shard.
func hashed(row perdure.RowID, shards int) perdure.ShardID {
	h := uint64(row) * 0x9e3779b97f4a7c15 // the finaliser of SplitMix64, and its constant
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	h ^= h >> 31
	high, _ := bits.Mul64(h, uint64(shards)) // h·shards / 2^64
	return perdure.ShardID(high)
}

// Place returns the shard that a table is to be on if it is whole, beside those that there are: one
// of the server that has the fewest bytes of whole tables as the job begins; of that server's
// shards the one with the fewest, of equal ones the first. Of other tables each has as much. State
// beside the rows does not count.
func Place(t *perdure.TableSpec, tables []perdure.TableSpec, shards, servers int) perdure.ShardID {
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
