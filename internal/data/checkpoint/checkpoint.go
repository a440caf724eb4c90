// Package checkpoint stores durable checkpoints of a job: immutable segment files, each with the state of one shard at
// a cut, and manifests, each naming the segments of one checkpoint.
//
// A running checkpoint (strategy scar) instead holds, for each row, the value that was saved last. Its segments contain
// selected rows and are layered over one another ([RestoreRows]). Its manifests are numbered ([PublishRunning],
// [LatestCompleteRunning], [PruneRunning]).
//
// Servers write segments ([WriteSegment]). The coordinator then publishes the manifest ([Publish]) and may delete older
// checkpoints ([Prune]). A restoring server reads its shard's segment ([Restore]). [List] lists what a store contains;
// an [Audit] verifies every byte of it.
//
// Invariants:
//
//   - A checkpoint exists once its manifest exists. The manifest is written last, after all its segments are durable,
//     so a crash at any moment leaves either the old checkpoint or the new one, complete.
//   - A segment may hold only the rows that changed since another segment, which it names together with its checksum. A
//     manifest names every segment that a shard needs, and no file that a retained manifest names is deleted.
//   - A segment's name contains the generation, the cut (or number), the shard and the epoch, so that no holder of a
//     shard overwrites another holder's segment.
//   - Data that a reader returns without an error is bit for bit what was written. Readers do not validate its meaning:
//     for example, package table checks that no row of a sparse table occurs twice when it takes the image.
//
// All functions may be called concurrently for different shards and cuts.
package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/table"
)

// Errors of reading. Each message names the file and the defect.
var (
	// ErrCorrupt is wrapped when a file is missing, truncated or changed.
	ErrCorrupt = disk.ErrCorrupt
	// ErrOtherVersion is wrapped when another version of Perdure, newer or older, wrote a file.
	ErrOtherVersion = disk.ErrOtherVersion
	// ErrOtherJob is wrapped when a file belongs to another job.
	ErrOtherJob = errors.New("belongs to another job")
	// ErrNoCheckpoint is wrapped by the error that is returned when a store holds no valid manifest.
	ErrNoCheckpoint = errors.New("no checkpoint")
)

// Segment is one shard's state at a cut: all updates of clocks < Cut are applied, and none of later clocks. A segment
// with a Number holds selected rows instead: they contain all updates of clocks < Cut, and the updates of later clocks
// that Applied lists.
type Segment struct {
	Job        string
	Generation perdure.Generation
	Epoch      perdure.Epoch
	Cut        perdure.Clock
	Shard      perdure.ShardID
	Seed       uint64          // of the initialisers
	Seq        uint64          // updates that the rows contain
	Applied    []perdure.Clock // per slot
	// States holds each slot's state; nil if the slot has saved none. Its length is that of Applied, or 0 if no slot
	// has saved a state.
	States [][]byte
	Tables []TableRows
	// Follows is nil if the tables are complete. Otherwise the tables contain only the rows that changed since the
	// named segment of the same shard, and are applied on top of it: see Restore.
	Follows *FileRef
	// Number is nonzero if the tables contain only selected rows: for dense tables, those at the positions in their
	// runs; for sparse tables, those of their ids. It increases with each such segment that a holder of the shard
	// writes, and tells them apart. See RestoreRows.
	Number uint64
}

// FileRef names a segment file and distinguishes it from other files of the same name.
type FileRef struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	CRC   uint32 `json:"crc32c"` // over the header and the sections' checksums
}

// TableRows is a shard's part of one table: its rows and the state of its update rule.
type TableRows struct {
	Spec  perdure.TableSpec
	First int64 // dense: the image's rows are First, First+1 and so on; sparse: 0
	Image table.Image
	// Stream, if not nil, is written in place of Image.
	Stream *Stream
}

// Stream supplies a table's rows to the segment writer, piece by piece.
type Stream struct {
	Rows int64 // in the shard, written or not
	// Runs are the positions of the rows that are written, in ascending order. They cover all rows unless the segment
	// follows another one or holds selected rows.
	Runs []table.Run
	// Next returns the next bytes in the file's format: one column after another, in the order of table.Image, and
	// never bytes of two columns in one piece. The bytes are valid until the next call. An error aborts the write.
	Next func() ([]byte, error)
}

// SegmentRef names a segment within its store.
type SegmentRef struct {
	File  string          `json:"file"`
	Bytes int64           `json:"bytes"`
	CRC   uint32          `json:"crc32c"` // over the header and the sections' checksums
	Shard perdure.ShardID `json:"shard"`
	Seq   uint64          `json:"seq"`
	// Base lists the segments that this one builds on, in order: the first has all rows, each of the others the rows
	// that changed since its predecessor.
	Base []FileRef `json:"base,omitempty"`
	// States lists the objects that hold slot states to which the segment only refers.
	States []FileRef `json:"states,omitempty"`
}

// Self returns the reference to the segment's own file.
func (r SegmentRef) Self() FileRef { return FileRef{r.File, r.Bytes, r.CRC} }

// files returns all files with rows of the shard, in order; the last is the segment's own.
func (r SegmentRef) files() []FileRef { return append(slices.Clone(r.Base), r.Self()) }

// Manifest describes one checkpoint: a segment for every shard of the job.
type Manifest struct {
	Job        perdure.JobSpec     `json:"job"`
	Generation perdure.Generation  `json:"generation"`
	Cut        perdure.Clock       `json:"cut"`
	Clocks     protocol.SlotClocks `json:"clocks,omitempty"` // of a cut by slot
	Tables     []perdure.TableSpec `json:"tables"`
	// when each participates, as known at the time; empty: from the job's start to its end
	Slots []protocol.Interval `json:"slots,omitempty"`
	// clocks that slots completed in earlier membership intervals; other processes have taken the slots since
	PastClocks int64        `json:"past_clocks,omitempty"`
	Segments   []SegmentRef `json:"segments"` // ordered by shard
	SavedAt    time.Time    `json:"saved_at"`
}

// CheckJob returns ErrOtherJob unless the checkpoint belongs to the job with that ID.
func (m Manifest) CheckJob(id string) error {
	if m.Job.ID != id {
		return fmt.Errorf("checkpoint: %s %w: %q, not %q", m.key().manifest(), ErrOtherJob, m.Job.ID, id)
	}
	return nil
}

// A key orders the checkpoints of a job. A later generation is newer whatever its cut, because it has rolled back
// everything that the earlier generation did after its cut.
type key struct {
	generation perdure.Generation
	cut        perdure.Clock
}

func (m Manifest) key() key { return key{m.Generation, m.Cut} }

func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.generation, other.generation), cmp.Compare(k.cut, other.cut))
}

func (k key) manifest() string {
	return fmt.Sprintf("g%06d-c%010d.manifest", k.generation, k.cut)
}

func (k key) segment(shard perdure.ShardID, epoch perdure.Epoch) string {
	return fmt.Sprintf("g%06d-c%010d-s%05d-e%06d.segment", k.generation, k.cut, shard, epoch)
}

var (
	manifestName = regexp.MustCompile(`^g(\d+)-c(\d+)\.manifest$`)
	segmentName  = regexp.MustCompile(`^g(\d+)-c(\d+)-s(\d+)-e(\d+)\.segment$`)
)

func parseManifestName(name string) (key, bool) {
	k, ok := parseKey(manifestName.FindStringSubmatch(name))
	return k, ok && k.manifest() == name
}

func parseSegmentName(name string) (k key, shard perdure.ShardID, ok bool) {
	m := segmentName.FindStringSubmatch(name)
	if k, ok = parseKey(m); !ok {
		return k, 0, false
	}
	n, shardErr := strconv.ParseInt(m[3], 10, 32)
	epoch, epochErr := strconv.ParseUint(m[4], 10, 64)
	shard = perdure.ShardID(n)
	ok = shardErr == nil && epochErr == nil && k.segment(shard, perdure.Epoch(epoch)) == name
	return k, shard, ok
}

func parseKey(match []string) (key, bool) {
	if match == nil {
		return key{}, false
	}
	generation, generationErr := strconv.ParseUint(match[1], 10, 64)
	cut, cutErr := strconv.ParseInt(match[2], 10, 64)
	return key{perdure.Generation(generation), perdure.Clock(cut)}, generationErr == nil && cutErr == nil
}
