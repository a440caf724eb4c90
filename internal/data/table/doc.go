// Package table stores the rows of one shard: for each table the values in large pieces of float32, and the state of
// the table's update rule.
//
// A dense table's part is a run of rows, all of which exist from the start. A sparse table's part is empty at first: a
// row is stored at its first update, at the next position, and an Index maps its id to the position. In addition to
// values and state, a sparse row takes at most 24 bytes while rows are added: 8 for the id, 4 for the clock of its last
// update, 10 in the index, and memory allocated in advance.
//
// The numerics are fixed: a row's value is a function of its initial value and of the deltas applied, in order.
// Operations are neither fused nor reordered, so every machine computes the same bits from the same initial rows and
// rates.
//
// A Part is not safe for concurrent use; the owner of the shard must serialise access. Calls that only read may run
// concurrently: all except ApplyRows, Evict and FinishRestore, and the methods of a Snapshot.
package table
