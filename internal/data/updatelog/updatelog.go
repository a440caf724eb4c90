// Package updatelog provides the durable update log of a job: one stream of entries per shard, which outlives every
// process of the job. It is stored in NATS JetStream ([Dial], [Create]) or, for simulations, in memory ([NewMemory]).
//
// The log does not interpret or compare entries. Entries that one [Log] value appends to one shard keep their order. An
// entry may appear twice: if an acknowledgement is lost, the log appends the entry again. Readers must detect
// duplicates by the entries' contents.
//
// # Records, groups, positions
//
// Entries that wait at the same time are combined into a group. A group is split into records of at most 1 MiB. A
// position is the number of a record in its shard's stream, from 1. Records of other producers may lie between those of
// a group. The entries of a group take the position of its last record, and are delivered when that record is read.
//
// A group with a missing record is ignored: its producer died, or sent it again as a new group. A group is also ignored
// if its first and last record were stored [MaxSpan] or more apart. So the incomplete group of a dead producer delays
// readers for at most that long.
package updatelog

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Position is the number of a record in its shard's stream, from 1.
type Position uint64

// Oldest, as the position to read from, means the oldest entry that is kept.
const Oldest Position = 0

// Entry is the payload of one Append, with its position.
type Entry struct {
	// Position is that of the last record of the entry's group. It grows from group to group; entries of one group
	// share it.
	Position Position
	// Resume is the position to read from to get every entry after this one. Some earlier entries may be delivered
	// again. A snapshot that includes this entry and all earlier ones stores Resume; records before Resume can be
	// trimmed.
	Resume Position
	// Payload may be kept by the receiver, but not changed.
	Payload []byte
}

// Log is a client of a job's update log. It is safe for concurrent use.
//
// While the log is unavailable or full, calls wait until their context is done. Permanent errors wrap ErrRefused,
// ErrDamaged, ErrTrimmed or ErrClosed.
type Log interface {
	// Append appends an entry, the concatenation of the given buffers, to the shard's stream.
	//
	// done is called once for each Append that returned nil, from another goroutine. Calls for one shard come in the
	// order of the Appends. The error is nil when the entry is durable, at or before the given position. A non-nil
	// error means that the outcome is unknown and that there are no more retries. done must not wait for another
	// Append. The buffers must not change until done is called.
	//
	// Append blocks while more than Options.MaxInFlight bytes are in flight. Waiting calls proceed in order, and return
	// ctx's error if ctx is done first.
	Append(ctx context.Context, shard int, entry [][]byte, done func(Position, error)) error

	// Read delivers the shard's entries from a position on, complete and in order, and then follows new ones. It
	// returns ctx's error when ctx is done, and the error that deliver returns. It returns ErrTrimmed if the entries at
	// from are gone or never existed, and a *DamageError if a record is damaged. It never continues after damage.
	//
	// caughtUp, if not nil, is called when all entries that existed when Read started have been delivered, with the
	// position to resume from. It is called again whenever that position has grown while no records arrive for a long
	// time. deliver and caughtUp are called by one goroutine.
	Read(ctx context.Context, shard int, from Position, deliver func(Entry) error, caughtUp func(resume Position)) error

	// Extent returns the position of the shard's first record and the position that its next record will get. The two
	// are equal if the stream is empty.
	Extent(ctx context.Context, shard int) (first, next Position, err error)

	// Trim permanently removes the shard's records before a position.
	Trim(ctx context.Context, shard int, before Position) error

	// Close closes the client. Entries in flight may or may not be stored; their done functions are called with
	// ErrClosed before Close returns. Reads end with ErrClosed.
	Close() error
}

// Options selects a job's log and configures the client.
type Options struct {
	Job    string // the job's ID: 1 to 64 letters, digits, "_" and "-"
	Shards int    // number of shards of the job
	// MaxInFlight is the maximum number of bytes in flight before Append blocks; 0: 64 MiB. A single entry may always
	// be sent.
	MaxInFlight int
	// Status, if not nil, is called with the reason when a shard's entries wait (ErrAway, ErrFull, ErrDisk), and with
	// nil when they continue. For shard -1, it reports the same while the log is being opened. It must not block.
	Status func(shard int, why error)
	// OnLost, if not nil, is called when the log is available again but lost records that it had acknowledged to this
	// process. The error wraps ErrDamaged or ErrRefused. Further appends to that shard fail. It must not block.
	OnLost func(shard int, err error)
}

// Limits of the format and the protocol.
const (
	// MaxRecord is the maximum size of a record in bytes, including its header.
	MaxRecord = 1 << 20
	// MaxSpan is the maximum time between storing the first and the last record of a group.
	MaxSpan = 2 * time.Minute

	defaultMaxInFlight = 64 << 20
	maxJobBytes        = 64
)

var (
	// ErrClosed is returned by a closed Log.
	ErrClosed = errors.New("updatelog: closed")
	// ErrRefused is wrapped by permanent errors: the log cannot be used as requested, and waiting does not help.
	ErrRefused = errors.New("updatelog: refused")
	// ErrTrimmed is returned by Read if entries that the reader needs are gone.
	ErrTrimmed = errors.New("updatelog: the entries at this position are gone")
	// ErrDamaged is wrapped by every DamageError.
	ErrDamaged = errors.New("updatelog: damaged")
	// ErrAway means that the log does not answer.
	ErrAway = errors.New("updatelog: the log does not answer")
	// ErrDisk means that the log's disk is full or failing. The log continues when that is fixed.
	ErrDisk = errors.New("updatelog: the log's disk is full or failing")
	// ErrFull means that the log has no room until it is trimmed.
	ErrFull = errors.New("updatelog: the log is full")
)

// DamageError describes where a stream is damaged.
type DamageError struct {
	Stream   string // the stream's name
	Shard    int
	Position Position
	Reason   string
}

// Error returns one line with the damage and what to do.
func (e *DamageError) Error() string {
	return fmt.Sprintf("updatelog: record %d of stream %s (shard %d) is damaged: %s; later records cannot be "+
		"replayed: restore a copy of the log, or start the job again",
		e.Position, e.Stream, e.Shard, e.Reason)
}

// Unwrap makes errors.Is(err, ErrDamaged) true.
func (e *DamageError) Unwrap() error { return ErrDamaged }

// Damaged returns an error that describes the damage of a stream and what to do. It wraps ErrDamaged.
func Damaged(stream, format string, args ...any) error {
	return fmt.Errorf("%w: stream %s: %s; its records cannot be replayed: restore a copy of the log, or start "+
		"the job again",
		ErrDamaged, stream, fmt.Sprintf(format, args...))
}

// lostRecordsError returns the error for a stream that has lost records, from a position on, that were already read or
// acknowledged.
func lostRecordsError(job string, shard int, from Position) error {
	return &DamageError{
		Stream: StreamName(job, shard), Shard: shard, Position: from,
		Reason: "it was acknowledged, but is now missing or replaced (for example, because the log's machine " +
			"failed before it was on disk)",
	}
}

// trimmedError returns the error for a read that needs trimmed records.
func trimmedError(job string, shard int, from, first Position) error {
	return fmt.Errorf("%w: stream %s no longer has record %d and starts with record %d; restore a copy of the log "+
		"or newer snapshots, or start the job again",
		ErrTrimmed, StreamName(job, shard), from, first)
}

// check validates the options and sets defaults.
func (o *Options) check() error {
	if !isJobID(o.Job) {
		return fmt.Errorf("%w: invalid job id %q: use 1 to %d letters, digits, \"_\" and \"-\"", ErrRefused, o.Job,
			maxJobBytes)
	}
	if o.Shards < 1 {
		return fmt.Errorf("%w: invalid number of shards %d: a job has at least one", ErrRefused, o.Shards)
	}
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = defaultMaxInFlight
	}
	if o.Status == nil {
		o.Status = func(int, error) {}
	}
	if o.OnLost == nil {
		o.OnLost = func(int, error) {}
	}
	return nil
}

// checkShard returns an error if the job does not have the shard.
func (o *Options) checkShard(shard int) error {
	if shard < 0 || shard >= o.Shards {
		return fmt.Errorf("%w: invalid shard %[3]d: the job has shards 0 to %[2]d", ErrRefused, o.Shards-1, shard)
	}
	return nil
}

func isJobID(s string) bool {
	for _, c := range []byte(s) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return len(s) > 0 && len(s) <= maxJobBytes
}

// StreamName returns the name of a shard's stream, and of its directory.
func StreamName(job string, shard int) string { return fmt.Sprintf("perdure-%s-%d", job, shard) }
