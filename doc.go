// Package perdure defines the types that all parts of Perdure share: jobs, tables, consistency models, recovery
// strategies, clocks and errors.
//
// Model parameters live in tables of float32 rows. The tables are split into shards, and servers hold the shards. Each
// worker computes on its part of the data: it reads rows with Get, adds deltas to them with Inc, and ends each
// iteration with Clock. The table's consistency model ([Consistency]) bounds how stale a Get may be. The job's recovery
// strategy ([Recovery]) decides what happens when a server dies. Training programs use package worker.
//
// Code, documentation, flags and metrics share these terms:
//
//   - A slot is the numbered position of a worker in the job. When its process dies, another process takes the slot,
//     with the next higher [Incarnation].
//   - A clock is a slot's count of finished iterations, never wall time.
//   - An update holds all deltas of one slot to one shard for one clock, or for several successive clocks. It is
//     applied completely or not at all, and is identified by its slot and clocks.
//   - A view records which server holds which shard. Each shard's [Epoch] fences its former holders. The job's
//     [Generation] increases with every rollback of the whole job.
//
// The package does no I/O and imports only the standard library. Its types are plain values: they may be copied, and
// are safe for concurrent use as long as no goroutine writes to them.
package perdure
