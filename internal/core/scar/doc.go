// Package scar decides which rows the next partial checkpoint of a shard saves (SCAR, Qiao et al., ICML 2019), and
// which files the running checkpoint consists of. The running checkpoint has the newest saved value of each row, with
// the state of its update rule. Before a row's first save, it has the initial value.
//
// A Ledger belongs to one shard. When a save is due, the shard's owner calls Choose, writes the chosen rows, and
// reports the result with Written or Unwritten. At most one choice may be in progress. A selector is a function that
// assigns a key to each row; Choose takes the rows with the highest keys until the budget is full. Rows with equal keys
// are ordered by table, then by ID.
//
// The choice is a function of the rows, the settings, and the earlier choices and their results. It depends on no clock
// and on no map order. So under bsp it does not depend on timing.
//
// Memory, in addition to the rows: 4 bytes per row for the file of its newest save; with the selector priority, the
// last saved values of those blocks of rows that have changed since they were restored or created; with the selector
// used, 4 bytes per row. While a choice is made, it takes another 4 bytes and one bit per row, which are reused, and 8
// bytes for each row of a sparse table that has the last key taken, if not all of them fit.
//
// Rows are identified by their positions in the part. In a sparse table, evicting rows moves others, so evictions must
// be reported with EvictionHook.
//
// A Ledger is not safe for concurrent use: the lock that guards the shard's rows also guards it.
package scar
