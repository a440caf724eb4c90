// Package checkpoint keeps durable images of a job in a store: immutable
// segment files, each the state of one shard at a cut, and manifest files, each
// naming the segments of one checkpoint.
//
// A running checkpoint is another thing: of each row the value that was saved of it last. Its
// segments have rows that were chosen, and are laid over one another ([RestoreRows]); its manifests
// are numbered ([PublishRunning], [WholeRunning], [PruneRunning]).
//
// Servers write segments ([WriteSegment]); then the coordinator publishes the
// manifest ([Publish]) and may delete what is older ([Prune]). A server that
// restores asks for its shard's segment ([Restore]). Who wants to know what a store has, and
// whether it is whole, asks [Look] and an [Audit].
//
// Invariants:
//
//   - a checkpoint exists once its manifest does, and the manifest is written
//     last, when all its segments are durable: at every moment, a crash leaves
//     the old checkpoint or the new one, whole;
//   - a segment may hold only what has changed since another one, which it names with
//     its checksum; a manifest names, for each shard, all that are needed, and nothing
//     that the kept manifest names is deleted;
//   - a segment's name holds generation, cut (or number), shard and epoch, so that no holder
//     of a shard overwrites what another one wrote;
//   - what a reader returns without an error is what was written, bit by bit.
//     What the bits mean is not judged: that no row of a sparse table is there
//     twice, for example, is checked by package table when it takes the image.
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
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/table"
)

// Errors of reading. Each message names the file and what is wrong with it.
var (
	// ErrCorrupt is wrapped when a file is missing, truncated or changed.
	ErrCorrupt = disk.ErrCorrupt
	// ErrOtherVersion is wrapped when a newer or an older version of Perdure wrote a file.
	ErrOtherVersion = disk.ErrOtherVersion
	// ErrOtherJob is wrapped when a file belongs to another job.
	ErrOtherJob = errors.New("belongs to another job")
	// ErrNoCheckpoint is wrapped when a store holds no valid manifest.
	ErrNoCheckpoint = errors.New("no checkpoint")
)

// Segment is one shard's state at a cut: all updates of clocks < Cut and none
// of later ones are applied. Or, if it has a Number, it is of rows that were chosen: they are as
// they were when all updates of clocks < Cut were applied, and of later ones what Applied says.
type Segment struct {
	Job        string
	Generation perdure.Generation
	Epoch      perdure.Epoch
	Cut        perdure.Clock
	Shard      perdure.ShardID
	Seed       uint64          // of the initialisers
	Seq        uint64          // updates that the rows contain
	Applied    []perdure.Clock // per slot
	// States holds what each slot gave to be saved; nil where it gave nothing.
	// It is as long as Applied, or empty when no slot gave anything.
	States [][]byte
	Tables []TableRows
	// Follows is nil where the tables have all of their rows. Else they have only those
	// that have changed since that segment of the same shard, on top of which they are to
	// be put: see Restore.
	Follows *FileRef
	// Number, if it is not 0, says that the tables have only rows that were chosen: dense ones
	// those at the positions that their runs say, sparse ones those of their ids. It tells the
	// segments apart that a shard's holder writes of such, which grow. See RestoreRows.
	Number uint64
}

// FileRef names a segment file and tells it from others of its name.
type FileRef struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	CRC   uint32 `json:"crc32c"` // of its header and its sections' checksums
}

// TableRows is a shard's part of one table: its rows and the state of its rule.
type TableRows struct {
	Spec  perdure.TableSpec
	First int64 // dense: the image's rows are First, First+1 and so on; sparse: 0
	Image table.Image
	// Stream, where there is one, is what is written, and not Image.
	Stream *Stream
}

// Stream gives a table's rows to who writes them, piece by piece.
type Stream struct {
	Rows int64 // that the shard holds
	// Runs are the positions of those that are written, in order: of all, unless the segment
	// follows another, or is of rows that were chosen.
	Runs []table.Run
	// Next returns the next bytes as a file has them: those of one column after the
	// other, as in table.Image, and none of two together. They are good until it is
	// called again. Its error ends the writing.
	Next func() ([]byte, error)
}

// SegmentRef names a segment within its folder.
type SegmentRef struct {
	File  string          `json:"file"`
	Bytes int64           `json:"bytes"`
	CRC   uint32          `json:"crc32c"` // of its header and its sections' checksums
	Shard perdure.ShardID `json:"shard"`
	Seq   uint64          `json:"seq"`
	// Base are the segments that it follows, in order: the first has all rows, each of the
	// others those that have changed since the one before.
	Base []FileRef `json:"base,omitempty"`
	// States are objects in which lies what slots gave to be saved, where the segment only refers to it.
	States []FileRef `json:"states,omitempty"`
}

// Self is the segment's own file.
func (r SegmentRef) Self() FileRef { return FileRef{r.File, r.Bytes, r.CRC} }

// files are all that the shard's rows are in, in order: the last is the segment's own.
func (r SegmentRef) files() []FileRef { return append(slices.Clone(r.Base), r.Self()) }

// Manifest describes one checkpoint: a segment for every shard of the job.
type Manifest struct {
	Job        perdure.JobSpec     `json:"job"`
	Generation perdure.Generation  `json:"generation"`
	Cut        perdure.Clock       `json:"cut"`
	Tables     []perdure.TableSpec `json:"tables"`
	// when each takes part, as was known then; none: the job's, throughout
	Slots []words.Span `json:"slots,omitempty"`
	// clocks that slots did in spans before these, which others have taken over since
	PastClocks int64        `json:"past_clocks,omitempty"`
	Segments   []SegmentRef `json:"segments"` // in order of shards
	SavedAt    time.Time    `json:"saved_at"`
}

// CheckJob returns ErrOtherJob unless the checkpoint is of the job of that ID.
func (m Manifest) CheckJob(id string) error {
	if m.Job.ID != id {
		return fmt.Errorf("checkpoint: %s %w: %q, not %q", m.key().manifest(), ErrOtherJob, m.Job.ID, id)
	}
	return nil
}

// A key orders the checkpoints of a job: a later generation is newer whatever
// its cut, because it has rolled back what the earlier one did after its cut.
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
