package logserver

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/minio/highwayhash"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/updatelog"
)

// blocks describes the files that hold the streams' records while the server is stopped. On startup the server silently
// truncates a file at the first damaged record. So damage is found by comparing the files before and after the start.
type blocks struct {
	dir       string             // the log's directory
	copyDir   string             // the copy of dir that the server opens
	maxRecord int                // bytes
	streams   map[string][]block // by stream name, sorted by block number
}

// block is one file of a stream.
type block struct {
	name   string // relative to the log's directory
	number int
	size   int64
	end    []byte // the whole content; only of a stream's last block
}

// streamDir describes the directory of one stream.
type streamDir struct {
	Name, Job string
	Shard     int
}

// streamDirs returns the streams in a log's directory, sorted by name.
func streamDirs(dir string) (streams []streamDir) {
	names, _ := filepath.Glob(filepath.Join(dir, streamsDir, "perdure-*-*")) // fails only for bad patterns
	for _, path := range names {
		name := filepath.Base(path)
		job := strings.TrimPrefix(name[:strings.LastIndex(name, "-")], "perdure-")
		if shard, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:]); err == nil {
			streams = append(streams, streamDir{Name: name, Job: job, Shard: shard})
		}
	}
	return streams
}

// readBlocks reads the block files of the log in dir from its copy at. Records have at most maxRecord bytes.
func readBlocks(dir, at string, mostRecord int) (*blocks, error) {
	b := &blocks{dir: dir, copyDir: at, maxRecord: mostRecord, streams: map[string][]block{}}
	files, _ := filepath.Glob(filepath.Join(at, streamsDir, "*", "msgs", "*.blk")) // fails only for bad patterns
	for _, file := range files {
		number, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(file), ".blk"))
		if err != nil {
			continue // not a block
		}
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(at, file)
		if err != nil {
			return nil, err
		}
		stream := filepath.Base(filepath.Dir(filepath.Dir(file)))
		b.streams[stream] = append(b.streams[stream], block{name: name, number: number, size: info.Size()})
	}
	for _, all := range b.streams {
		slices.SortFunc(all, func(a, b block) int { return cmp.Compare(a.number, b.number) })
		last, err := &all[len(all)-1], error(nil)
		if last.end, err = disk.ReadRegular(filepath.Join(at, last.name), maxBlock); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// Lost returns, by stream, which files are missing or empty, as far as the other files show. It must be called before
// the server starts.
func (b *blocks) Lost() (map[string]error, error) {
	lost := map[string]error{}
	for _, s := range streamDirs(b.copyDir) {
		all := b.streams[s.Name]
		if len(all) == 0 { // the server creates the first file with the stream and never removes the last
			lost[s.Name] = updatelog.Damaged(s.Name, "no record file in %s, not even an empty one",
				filepath.Join(b.dir, streamsDir, s.Name, "msgs"))
			continue
		}
		last, err := b.lastPosition(all)
		if err != nil {
			return nil, err
		}
		if had := b.indexedLast(s.Name); had > last {
			lost[s.Name] = updatelog.Damaged(s.Name,
				"its index.db lists record %d as the last one, but the last record is %d", had, last)
		}
		for i, one := range all { // an empty file is valid as the first one, or as the last one
			if one.size == 0 && (i < len(all)-1 || i == 0 && one.number > 1) {
				lost[s.Name] = updatelog.Damaged(s.Name, "%s is empty", filepath.Join(b.dir, one.name))
			}
		}
	}
	return lost, nil
}

// Truncated returns, by stream, which files the server has truncated since it started.
func (b *blocks) Truncated() map[string]error {
	cut := map[string]error{}
	for stream, all := range b.streams {
		for i, one := range all {
			last, now := i == len(all)-1, int64(0)
			switch info, err := os.Stat(filepath.Join(b.copyDir, one.name)); {
			case err == nil:
				now = info.Size()
			case !last:
				continue // all its records were trimmed
			}
			if now < one.size && (!last || !b.torn(one.end[now:])) {
				cut[stream] = updatelog.Damaged(stream, "%s is damaged after %d of its %d bytes",
					filepath.Join(b.dir, one.name), now, one.size)
				break
			}
		}
	}
	return cut
}

// torn reports whether end is an incomplete record, as a crash leaves it. The server writes the length of a record
// first.
func (b *blocks) torn(end []byte) bool {
	return len(end) < 4 || len(end) < 2*b.maxRecord && int64(lengthOf(end)) > int64(len(end))
}

// The header of a record in a block holds its length and its position. The highest bits are flags.
const (
	blockHeader   = 22
	blockFlag     = 1 << 31 // in the length; not part of it
	blockErased   = 1 << 63 // in the position: the record was erased
	blockDeletion = 1 << 62 // in the position: marks the deletion of another record, or of all records up to it
)

func lengthOf(record []byte) uint32 { return binary.LittleEndian.Uint32(record) &^ blockFlag }

// lastPosition returns the highest position in a stream's files, or 0.
func (b *blocks) lastPosition(all []block) (last uint64, err error) {
	for _, one := range slices.Backward(all) {
		content, found := one.end, false
		if content == nil {
			if content, err = disk.ReadRegular(filepath.Join(b.copyDir, one.name), maxBlock); err != nil {
				return 0, err
			}
		}
		for len(content) >= blockHeader {
			position, length := binary.LittleEndian.Uint64(content[4:]), int(lengthOf(content))
			if length < blockHeader || length > len(content) {
				break
			}
			last = max(last, position&^(blockErased|blockDeletion))
			found = found || position&blockDeletion == 0
			content = content[length:]
		}
		if found { // earlier files have only lower positions
			return last, nil
		}
	}
	return last, nil
}

// indexedLast returns the last position in the stream's index.db, or 0 if it is unknown. The server writes this file on
// a graceful shutdown and every few minutes.
func (b *blocks) indexedLast(stream string) uint64 {
	content, err := disk.ReadRegular(filepath.Join(b.copyDir, streamsDir, stream, "msgs", "index.db"), maxBlock)
	key := sha256.Sum256([]byte(stream))
	h, bad := highwayhash.New64(key[:])
	at := len(content) - highwayhash.Size64
	if err != nil || bad != nil || at < len(indexMagic) || !bytes.HasPrefix(content, indexMagic) {
		return 0
	}
	if _, err := h.Write(content[:at]); err != nil || !bytes.Equal(h.Sum(nil), content[at:]) {
		return 0 // damaged; the server then reads the blocks
	}
	var last uint64
	rest := content[len(indexMagic):at]
	for range indexLast + 1 { // signed and unsigned varints have the same length
		n := 0
		if last, n = binary.Uvarint(rest); n <= 0 {
			return 0
		}
		rest = rest[n:]
	}
	return last
}

// The first bytes of an index.db, and how many numbers precede the last position: records, bytes, the first position
// and its time.
var indexMagic = []byte{11, 4}

const indexLast = 4

// maxBlock limits the size of a file that is read into memory, in bytes. It is many times the largest legitimate size.
const maxBlock = 1 << 30
