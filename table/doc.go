// Package table holds the rows of one shard: for each table a contiguous slab
// of float32, changed by the table's update rule.
//
// The numerics are fixed: a row's value is a function of its initial value and
// of the deltas applied, in order. No operation is fused or reordered, so every
// machine computes the same bits.
//
// A Part is not safe for concurrent use; its shard's owner guards it.
package table
