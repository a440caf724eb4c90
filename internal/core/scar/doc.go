// Package scar decides which rows the next partial checkpoint of a shard saves (SCAR, Qiao et al., ICML 2019), and
// which files the running checkpoint consists of: for each row its newest saved value with the state of its update
// rule, and before its first save its initial value.
//
// A Ledger is of one shard. The shard's owner says when a save is due, calls Choose, writes
// the rows that it names, and says with Written or Unwritten what became of them. Between
// these there is one choice under way at most. A selector is a function that gives each row
// a key; Choose takes the rows with the highest keys until the budget is full, those with
// equal keys by table and then by id.
//
// What is chosen is a function of the rows, the settings and what was chosen and written
// before: of no time, and of no order of a map. So under bsp it does not depend on timing.
//
// Memory, beside the rows: 4 bytes a row for the file that its newest save is in; under
// priority the values last saved of blocks of rows that have changed since they were restored, or
// made; under used 4 bytes. While a choice is made it takes 4 bytes
// and a bit a row more, which are used again, and 8 for each row of a sparse table of whose key
// only some rows are taken.
//
// Rows are known by their positions in the part. A sparse table's move when others are evicted:
// so whoever evicts rows tells by Evicting.
//
// A Ledger is not safe for concurrent use: the lock that guards the shard's rows guards it.
package scar
