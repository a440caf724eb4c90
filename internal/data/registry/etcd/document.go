package etcd

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"
)

// Version is the version of the keys and values written here.
const Version = 1

// The keys of a registry, below its prefix. docs/formats/files.md has what they hold.
const (
	holderKey = "holder" // who has the lease; it is bound to a lease of etcd
	headKey   = "head"   // names the chunks of the document
	chunkKeys = "chunk/" // and the name of one
)

// A document is cut where its content says, not at fixed places: so a byte more or less
// changes the chunk that it is in, and not all behind it.
const (
	leastChunk = 4 << 10
	mostChunk  = 64 << 10
	cutBits    = 13 // beyond the least, a chunk has 2^13 bytes on average
)

// mostBytes bounds a document, so that its head fits into a request beside some chunks.
const mostBytes = 64 << 20

var errLarge = fmt.Errorf("registry: a document has at most %d bytes", mostBytes)

// gear has a number without a pattern for each byte. Two processes that had others would
// cut otherwise, and understand each other.
var gear = func() (g [256]uint64) {
	for i := range g {
		sum := sha256.Sum256([]byte{byte(i)})
		for _, b := range sum[:8] {
			g[i] = g[i]<<8 | uint64(b)
		}
	}
	return g
}()

// chunk is a part of a document. Its name is made of its content: equal parts are one.
type chunk struct {
	name string
	data []byte // lies in the document
}

// cut cuts a document into chunks. A cut is where the last 64 bytes have a sum that begins with
// zeros.
func cut(doc []byte) (chunks []chunk) {
	for len(doc) > 0 {
		n, sum := 0, uint64(0)
		for n < min(len(doc), mostChunk) {
			sum = sum<<1 + gear[doc[n]]
			n++
			if n >= leastChunk && sum>>(64-cutBits) == 0 {
				break
			}
		}
		chunks = append(chunks, chunk{nameOf(doc[:n]), doc[:n]})
		doc = doc[n:]
	}
	return chunks
}

// nameOf is the name of a chunk: half of its SHA-256 is enough, since nobody who may write here needs to
// forge one.
func nameOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// head says which chunks the document is made of.
type head struct {
	// try is which try of which lease has written it: nobody else's head has the same.
	try    string
	bytes  int
	chunks []string // names, in order; one may come again
}

const headKind = "REGISTRY-HEAD"

// encode makes a sealed document (see disk.Seal) whose body is
//
//	try <a word>\n
//	bytes <decimal>\n
//	<name of a chunk>\n for each
func (h *head) encode() []byte {
	body := fmt.Appendf(nil, "try %s\nbytes %d\n", h.try, h.bytes)
	for _, name := range h.chunks {
		body = append(append(body, name...), '\n')
	}
	return disk.Seal(headKind, Version, body)
}

func decodeHead(sealed []byte) (*head, error) {
	body, err := disk.Unseal(headKind, Version, sealed)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(body), "\n")
	if len(lines) < 3 || lines[len(lines)-1] != "" {
		return nil, fmt.Errorf("%w: its head has no lines", disk.ErrCorrupt)
	}
	try, tried := strings.CutPrefix(lines[0], "try ")
	digits, sized := strings.CutPrefix(lines[1], "bytes ")
	n, err := strconv.Atoi(digits)
	if !tried || !sized || err != nil || n < 0 || n > mostBytes {
		return nil, fmt.Errorf("%w: its head does not say how large it is", disk.ErrCorrupt)
	}
	return &head{try: try, bytes: n, chunks: slices.Clone(lines[2 : len(lines)-1])}, nil
}

// document puts the document together, of chunks by name.
func (h *head) document(chunks map[string][]byte) ([]byte, error) {
	doc := make([]byte, 0, h.bytes)
	for _, name := range h.chunks {
		data, there := chunks[name]
		if !there {
			return nil, fmt.Errorf("%w: it lacks chunk %s", disk.ErrCorrupt, name)
		}
		if nameOf(data) != name {
			return nil, fmt.Errorf("%w: chunk %s was changed", disk.ErrCorrupt, name)
		}
		if len(doc)+len(data) > h.bytes {
			return nil, errSize
		}
		doc = append(doc, data...)
	}
	if len(doc) != h.bytes {
		return nil, errSize
	}
	return doc, nil
}

var errSize = fmt.Errorf("%w: its chunks are not as large as its head says", disk.ErrCorrupt)
