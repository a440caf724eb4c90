package updatelog

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// blocks are the files in which a server that does not run keeps its streams' records. It cuts
// off, as it starts, what follows the first record of a file that it finds damaged, and says
// nothing: what it left is whole then. So who is to find damage looks at them before and
// after.
type blocks struct {
	sizes map[string]int64
	last  map[string]lastBlock // by stream
}

// lastBlock is the file that a stream was being written to: its end may be half a record,
// which nobody was told to be there.
type lastBlock struct {
	file    string
	number  int
	content []byte
}

// folders returns the streams that a log's folder has, by name.
func folders(dir string) (streams []Stream) {
	names, _ := filepath.Glob(filepath.Join(dir, streamsFolder, "perdure-*-*")) // fails of bad patterns only
	for _, path := range names {
		name := filepath.Base(path)
		job := strings.TrimPrefix(name[:strings.LastIndex(name, "-")], "perdure-")
		if shard, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:]); err == nil {
			streams = append(streams, Stream{Name: name, Job: job, Shard: shard, First: 1, Next: 1})
		}
	}
	return streams
}

const streamsFolder = "jetstream/$G/streams"

// readBlocks looks at the files of a log's folder.
func readBlocks(dir string) (b blocks, err error) {
	b = blocks{sizes: map[string]int64{}, last: map[string]lastBlock{}}
	files, _ := filepath.Glob(filepath.Join(dir, streamsFolder, "*", "msgs", "*.blk")) // fails of bad patterns only
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return b, err
		}
		b.sizes[file] = info.Size()
		stream := filepath.Base(filepath.Dir(filepath.Dir(file)))
		number, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(file), ".blk"))
		if err == nil && number > b.last[stream].number {
			b.last[stream] = lastBlock{file: file, number: number}
		}
	}
	for stream, l := range b.last {
		if l.content, err = os.ReadFile(l.file); err != nil {
			return b, err
		}
		b.last[stream] = l
	}
	return b, nil
}

// cutOff returns, by stream, what the server that has started since has cut off.
func (b *blocks) cutOff() map[string]error {
	cut := map[string]error{}
	for file, size := range b.sizes {
		stream, now := filepath.Base(filepath.Dir(filepath.Dir(file))), int64(0)
		last := b.last[stream]
		switch info, err := os.Stat(file); {
		case err == nil:
			now = info.Size()
		case file != last.file:
			continue // all in it was trimmed
		}
		if now < size && (file != last.file || !torn(last.content[now:])) {
			cut[stream] = fmt.Errorf("%w: stream %s: %s is damaged after %d of its %d bytes; what follows there cannot be replayed: bring a copy of the log back, or begin the job again",
				ErrDamaged, stream, file, now, size)
		}
	}
	return cut
}

// torn reports whether the end of a file is the beginning of a record. The server writes a
// record's length first, whose highest bit means something else.
func torn(end []byte) bool {
	return len(end) < 4 || len(end) < 2*MaxRecord && int64(binary.LittleEndian.Uint32(end)&^(1<<31)) > int64(len(end))
}
