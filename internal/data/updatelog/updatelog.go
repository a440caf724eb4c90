// Package updatelog keeps the durable update log of a job: for each shard a
// stream of entries that outlives every process of the job. It is on NATS
// JetStream ([Dial], [Serve]) or, for simulations, in memory ([NewMemory]).
//
// What an entry says is its users' business; the log neither reads nor compares
// entries. Entries of one [Log] value to one shard keep their order. An entry may
// be there twice: when an acknowledgement was lost, the log cannot know better
// than to append again. Whoever reads tells duplicates by what they say.
//
// # Records, groups, positions
//
// Entries that wait together are put together into a group, and a group is cut
// into records of at most 1 MiB; a position is the number of a record in its
// shard's stream, from 1. Records of different producers may lie between those of
// a group: its entries take the place of its last record, and are delivered when
// that is read. A group of which a record is missing never was: its producer died
// or has sent it again, as a new group. A group is void too when its records were
// stored [MaxSpan] or more apart, so that what the dead began is in nobody's
// way for longer than that.
package updatelog

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Position is the number of a record in its shard's stream, from 1.
type Position uint64

// Oldest as the position to read from is the oldest entry that there is.
const Oldest Position = 0

// Entry is what one Append put into the log.
type Entry struct {
	// Position is where the entry takes effect: that of the last record of its
	// group. It grows from group to group; entries of one group share it.
	Position Position
	// Resume is where to read from to get every entry that follows this one. Some
	// that were delivered before may come again. A snapshot that holds this entry
	// and all before it keeps Resume; what lies before Resume can be trimmed.
	Resume Position
	// Payload is the receiver's to keep, and not to change.
	Payload []byte
}

// Log is one process's way to a job's update log. Safe for concurrent use.
//
// While the log is away or full, calls wait until their context ends. Errors that
// waiting does not cure wrap ErrRefused, ErrDamaged, ErrTrimmed or ErrClosed.
type Log interface {
	// Append puts an entry, the concatenation of the given buffers, at the end of
	// the shard's stream. done is called once for each Append that returned nil,
	// from another goroutine and in the order of the calls for one shard: with nil
	// when the entry is durable, at or before the given position; with an error
	// when that is not known and nobody tries further. It must not wait for another
	// Append. The buffers must stay unchanged until done is called.
	//
	// Append waits while more than a bound of bytes is on its way, in the order
	// of the calls, and returns ctx's error if that ends first.
	Append(ctx context.Context, shard int, entry [][]byte, done func(Position, error)) error

	// Read delivers the shard's entries from a position on, whole and in order,
	// follows those that come later, and returns when ctx ends (its error),
	// deliver returns an error (that), the entries at from are gone or were never
	// there (ErrTrimmed) or a record is damaged (a *DamageError): it never goes on
	// behind damage.
	//
	// caughtUp, unless nil, is called when all that was in the stream when Read
	// began has been delivered, with the position to resume from; and again, when
	// nothing comes for long, whenever that position has grown. deliver and
	// caughtUp are called by one goroutine.
	Read(ctx context.Context, shard int, from Position, deliver func(Entry) error, caughtUp func(resume Position)) error

	// Extent returns the position of the shard's first record that is kept and the
	// one that its next record will have; they are equal where there is none.
	Extent(ctx context.Context, shard int) (first, next Position, err error)

	// Trim forgets the shard's records before a position, for good.
	Trim(ctx context.Context, shard int, before Position) error

	// Close lets go of the log. Entries on their way may arrive or not; their done
	// is called with ErrClosed before Close returns. Reads end with ErrClosed.
	Close() error
}

// Options says what job's log to open, and how.
type Options struct {
	Job    string // the job's id: 1 to 64 letters, digits, "_" and "-"
	Shards int    // the shards that the job has
	// Bound is how many bytes may be on their way before Append waits (0: 64 MiB).
	// One entry may always go.
	Bound int
	// Status, unless nil, is called when a shard's entries wait, with why (ErrAway,
	// ErrFull, ErrDisk), and with nil when they go on; for shard -1 when the log is to
	// be opened, and does not answer. It must not block.
	Status func(shard int, why error)
	// Lost, unless nil, is called when the log has come back and something is gone that it
	// had acknowledged to this process, with an error that wraps ErrDamaged or ErrRefused.
	// Nothing can be appended to that shard any more. It must not block.
	Lost func(shard int, err error)
}

// Limits of the format and of the protocol.
const (
	// MaxRecord is the size of the largest record in bytes, header included.
	MaxRecord = 1 << 20
	// MaxSpan is the time after a group's first record within which its last must be
	// stored.
	MaxSpan = 2 * time.Minute

	defaultBound = 64 << 20
	maxJob       = 64
)

var (
	// ErrClosed is returned by a Log that was closed.
	ErrClosed = errors.New("updatelog: closed")
	// ErrRefused wraps every reason for which a log cannot be used as asked, and
	// waiting is of no use.
	ErrRefused = errors.New("updatelog: refused")
	// ErrTrimmed is returned for reading from where nothing is kept: entries that
	// the reader needs are gone.
	ErrTrimmed = errors.New("updatelog: the entries at this position are gone")
	// ErrDamaged is what every DamageError wraps.
	ErrDamaged = errors.New("updatelog: damaged")
	// ErrAway says that the log does not answer.
	ErrAway = errors.New("updatelog: the log does not answer")
	// ErrDisk says that what the log is kept on is full, or fails; it goes on when that
	// is mended.
	ErrDisk = errors.New("updatelog: the log's disk is full, or fails")
	// ErrFull says that the log has no room until it is trimmed.
	ErrFull = errors.New("updatelog: the log is full")
)

// DamageError says where a stream is damaged.
type DamageError struct {
	Stream   string // the stream's name
	Shard    int
	Position Position
	Reason   string
}

// Error says what is damaged, and what to do, in one line.
func (e *DamageError) Error() string {
	return fmt.Sprintf("updatelog: record %d of stream %s (shard %d) is damaged: %s; what follows cannot be "+
		"replayed: bring a copy of the log back, or begin the job again",
		e.Position, e.Stream, e.Shard, e.Reason)
}

// Unwrap makes errors.Is(err, ErrDamaged) true.
func (e *DamageError) Unwrap() error { return ErrDamaged }

// Damaged says what is wrong with a stream, and what to do. It wraps ErrDamaged.
func Damaged(stream, format string, args ...any) error {
	return fmt.Errorf("%w: stream %s: %s; what was there cannot be replayed: bring a copy of the log back, or begin "+
		"the job again",
		ErrDamaged, stream, fmt.Sprintf(format, args...))
}

// lostEnd is what is wrong with a stream that has lost records from a position on which
// somebody has read, or was told that they are there.
func lostEnd(job string, shard int, from Position) error {
	return &DamageError{
		Stream: StreamName(job, shard), Shard: shard, Position: from,
		Reason: "it was there, and is gone, or is another one (the log's machine failed before it was on the " +
			"disk, say)",
	}
}

// trimmed says that what is to be read of a shard from a position on is gone.
func trimmed(job string, shard int, from, first Position) error {
	return fmt.Errorf("%w: stream %s is to be read from record %d, and begins with record %d; bring a copy of the "+
		"log, or newer snapshots, back, or begin the job again",
		ErrTrimmed, StreamName(job, shard), from, first)
}

// check fills in what Options leaves open.
func (o *Options) check() error {
	if !isJob(o.Job) {
		return fmt.Errorf("%w: %q is no job id: 1 to %d letters, digits, \"_\" and \"-\"", ErrRefused, o.Job, maxJob)
	}
	if o.Shards < 1 {
		return fmt.Errorf("%w: a job has at least one shard, not %d", ErrRefused, o.Shards)
	}
	if o.Bound <= 0 {
		o.Bound = defaultBound
	}
	if o.Status == nil {
		o.Status = func(int, error) {}
	}
	if o.Lost == nil {
		o.Lost = func(int, error) {}
	}
	return nil
}

// has refuses a shard that the job does not have.
func (o *Options) has(shard int) error {
	if shard < 0 || shard >= o.Shards {
		return fmt.Errorf("%w: the job has shards 0 to %d, not %d", ErrRefused, o.Shards-1, shard)
	}
	return nil
}

func isJob(s string) bool {
	for _, c := range []byte(s) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return len(s) > 0 && len(s) <= maxJob
}

// StreamName is the name of a shard's stream, and of its folder.
func StreamName(job string, shard int) string { return fmt.Sprintf("perdure-%s-%d", job, shard) }
