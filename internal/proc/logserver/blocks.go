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

// blocks are the files in which a server that does not run keeps its streams' records. It cuts
// off, as it starts, what follows the first record of a file that it finds damaged, and says
// nothing: what it left is whole then. So who is to find damage looks at them before and
// after.
type blocks struct {
	dir        string             // the log's folder
	at         string             // its copy, which the server gets
	mostRecord int                // bytes
	streams    map[string][]block // by name, each in the order of their numbers
}

// block is one file of a stream.
type block struct {
	name   string // within the log's folder
	number int
	size   int64
	end    []byte // of the last of a stream, all of it
}

// streamFolder is the folder of one stream.
type streamFolder struct {
	Name, Job string
	Shard     int
}

// streamFolders returns the streams that a log's folder has, by name.
func streamFolders(dir string) (streams []streamFolder) {
	names, _ := filepath.Glob(filepath.Join(dir, streamsFolder, "perdure-*-*")) // fails of bad patterns only
	for _, path := range names {
		name := filepath.Base(path)
		job := strings.TrimPrefix(name[:strings.LastIndex(name, "-")], "perdure-")
		if shard, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:]); err == nil {
			streams = append(streams, streamFolder{Name: name, Job: job, Shard: shard})
		}
	}
	return streams
}

// readBlocks looks at the files of a log's folder dir, in its copy at, whose records have at most
// mostRecord bytes.
func readBlocks(dir, at string, mostRecord int) (*blocks, error) {
	b := &blocks{dir: dir, at: at, mostRecord: mostRecord, streams: map[string][]block{}}
	files, _ := filepath.Glob(filepath.Join(at, streamsFolder, "*", "msgs", "*.blk")) // fails of bad patterns only
	for _, file := range files {
		number, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(file), ".blk"))
		if err != nil {
			continue // no block's name
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
		if last.end, err = disk.ReadRegular(filepath.Join(at, last.name), mostBlock); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// Lost returns, by stream, which files are gone, or empty, as far as the others tell. It is
// asked before the server starts.
func (b *blocks) Lost() (map[string]error, error) {
	lost := map[string]error{}
	for _, s := range streamFolders(b.at) {
		all := b.streams[s.Name]
		if len(all) == 0 { // a server makes the first with the stream, and never removes the last
			lost[s.Name] = updatelog.Damaged(s.Name, "there is no file of records in %s, not even an empty one",
				filepath.Join(b.dir, streamsFolder, s.Name, "msgs"))
			continue
		}
		last, err := b.last(all)
		if err != nil {
			return nil, err
		}
		if had := b.recorded(s.Name); had > last {
			lost[s.Name] = updatelog.Damaged(s.Name,
				"it ended with record %d when its index.db was written, and ends with record %d", had, last)
		}
		for i, one := range all { // one that nothing was written to yet is the first, or follows another
			if one.size == 0 && (i < len(all)-1 || i == 0 && one.number > 1) {
				lost[s.Name] = updatelog.Damaged(s.Name, "%s is empty", filepath.Join(b.dir, one.name))
			}
		}
	}
	return lost, nil
}

// CutOff returns, by stream, what the server that has started since has cut off.
func (b *blocks) CutOff() map[string]error {
	cut := map[string]error{}
	for stream, all := range b.streams {
		for i, one := range all {
			last, now := i == len(all)-1, int64(0)
			switch info, err := os.Stat(filepath.Join(b.at, one.name)); {
			case err == nil:
				now = info.Size()
			case !last:
				continue // all in it was trimmed
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

// torn reports whether the end of a file is the beginning of a record. The server writes a
// record's length first, whose highest bit means something else.
func (b *blocks) torn(end []byte) bool {
	return len(end) < 4 || len(end) < 2*b.mostRecord && int64(lengthOf(end)) > int64(len(end))
}

// What a record in a block begins with: its length, and its position, of which the highest
// bits say what it is.
const (
	blockHeader   = 22
	blockFlag     = 1 << 31 // of the length
	blockErased   = 1 << 63 // of the position: what was there is gone
	blockDeletion = 1 << 62 // that another record, or all up to it, is gone
)

func lengthOf(record []byte) uint32 { return binary.LittleEndian.Uint32(record) &^ blockFlag }

// last returns the highest position that a stream's files know of; 0: none.
func (b *blocks) last(all []block) (last uint64, err error) {
	for _, one := range slices.Backward(all) {
		content, found := one.end, false
		if content == nil {
			if content, err = disk.ReadRegular(filepath.Join(b.at, one.name), mostBlock); err != nil {
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
		if found { // what is in those before is before it
			return last, nil
		}
	}
	return last, nil
}

// recorded returns the last position that a stream had when the server wrote down what it is
// like: as it ended in order, or every few minutes. 0: it is not known.
func (b *blocks) recorded(stream string) uint64 {
	content, err := disk.ReadRegular(filepath.Join(b.at, streamsFolder, stream, "msgs", "index.db"), mostBlock)
	key := sha256.Sum256([]byte(stream))
	h, bad := highwayhash.New64(key[:])
	at := len(content) - highwayhash.Size64
	if err != nil || bad != nil || at < len(indexMagic) || !bytes.HasPrefix(content, indexMagic) {
		return 0
	}
	if _, err := h.Write(content[:at]); err != nil || !bytes.Equal(h.Sum(nil), content[at:]) {
		return 0 // it is damaged; the server then reads the blocks
	}
	var last uint64
	rest := content[len(indexMagic):at]
	for range indexLast + 1 { // unsigned or not, they are as long
		n := 0
		if last, n = binary.Uvarint(rest); n <= 0 {
			return 0
		}
		rest = rest[n:]
	}
	return last
}

// What an index.db begins with, and how many numbers come before the last position: records,
// bytes, the first position and its time.
var indexMagic = []byte{11, 4}

const indexLast = 4

// mostBlock bounds a file of a stream that is read whole, in bytes: many times the largest.
const mostBlock = 1 << 30
