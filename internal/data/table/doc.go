// Package table holds the rows of one shard: for each table the values in large
// pieces of float32, with the state of the table's update rule beside them.
//
// A dense table's part is a run of rows, which are all there from the beginning.
// A sparse table's part has no rows at first: a row is stored at its first
// update, at the next position, and an Index finds the position of an id. Beside
// its values and state it takes at most 24 bytes, while rows are added: 8 for the
// id, 4 for the clock of its last update, 10 to find it, and what is made ahead.
//
// The numerics are fixed: a row's value is a function of its initial value and
// of the deltas applied, in order. No operation is fused or reordered, so every
// machine computes the same bits from the same initial rows and rates.
//
// A Part is not safe for concurrent use; its shard's owner guards it. Calls that
// only read (all but ApplyRows, Evict and Restored, and those of a Snapshot) may run at
// the same time.
package table
