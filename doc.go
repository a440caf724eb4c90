// Package perdure defines the types that all parts of Perdure share: jobs, tables, consistency models, recovery
// strategies, clocks and errors.
//
// Workers compute on their parts of the data. Model parameters live in tables
// of float32 rows, split into shards, held by servers. A worker Gets rows,
// computes, Incs them, and ends each iteration with Clock. How stale a Get may
// be is the table's consistency model ([Consistency]). What happens when a
// server dies is the job's recovery strategy ([Recovery]).
//
// One word means one thing everywhere (code, docs, flags, metrics):
//
//   - a slot is a worker's numbered place in the job; a process dies and its
//     slot is taken by another, one [Incarnation] higher;
//   - a clock is a slot's count of finished iterations, never wall time;
//   - an update is all of one slot's deltas to one shard for one clock, or for
//     several that follow one another, applied whole or not at all, and its
//     identity is (slot, clocks);
//   - a view says who holds which shard; each shard's [Epoch] fences older
//     holders, and the job's [Generation] counts roll-backs of the whole job.
//
// The package does no I/O and imports only the standard library. Its types are
// plain values: safe to copy, and safe for concurrent use as long as nobody
// writes to them.
package perdure
