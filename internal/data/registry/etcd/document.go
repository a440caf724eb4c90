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

// Version is the version of the keys and values that this package writes.
const Version = 1

// The keys of a registry, below its prefix. See docs/formats/registry.md for their values.
const (
	holderKey = "holder" // the lease's holder; bound to an etcd lease
	headKey   = "head"   // lists the chunks of the document
	chunkKeys = "chunk/" // followed by the name of a chunk
)

// A document is split at content-defined positions, not at fixed offsets. So inserting a byte changes one chunk, and
// not all later ones.
const (
	minChunk = 4 << 10
	maxChunk = 64 << 10
	cutBits  = 13 // beyond the minimum, a chunk has 2^13 bytes on average
)

// maxBytes limits the size of a document, so that its head and some chunks fit into one request.
const maxBytes = 64 << 20

var errLarge = fmt.Errorf("registry: document larger than %d bytes", maxBytes)

// gear holds a random-looking number for each byte value. Two processes with different tables would split documents
// differently, but could still read each other's.
var gear = func() (g [256]uint64) {
	for i := range g {
		sum := sha256.Sum256([]byte{byte(i)})
		for _, b := range sum[:8] {
			g[i] = g[i]<<8 | uint64(b)
		}
	}
	return g
}()

// chunk is a part of a document. Its name is derived from its content, so equal parts are stored once.
type chunk struct {
	name string
	data []byte // slice of the document
}

// splitChunks splits a document into chunks. It splits where the rolling hash of the last 64 bytes starts with zeros.
func splitChunks(doc []byte) (chunks []chunk) {
	for len(doc) > 0 {
		n, sum := 0, uint64(0)
		for n < min(len(doc), maxChunk) {
			sum = sum<<1 + gear[doc[n]]
			n++
			if n >= minChunk && sum>>(64-cutBits) == 0 {
				break
			}
		}
		chunks = append(chunks, chunk{chunkName(doc[:n]), doc[:n]})
		doc = doc[n:]
	}
	return chunks
}

// chunkName returns the name of a chunk. Half of its SHA-256 suffices, because no process with write access has a
// reason to forge one.
func chunkName(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// head lists the chunks of a document.
type head struct {
	// writeID identifies the lease and the attempt that wrote the head. It is unique.
	writeID string
	bytes   int
	chunks  []string // names in order; a name may occur several times
}

const headKind = "REGISTRY-HEAD"

// encode returns a sealed document (see disk.Seal) whose body is
//
//	try <a word>\n
//	bytes <decimal>\n
//	<name of a chunk>\n for each
func (h *head) encode() []byte {
	body := fmt.Appendf(nil, "try %s\nbytes %d\n", h.writeID, h.bytes)
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
		return nil, fmt.Errorf("%w: its header is truncated", disk.ErrCorrupt)
	}
	try, tried := strings.CutPrefix(lines[0], "try ")
	digits, sized := strings.CutPrefix(lines[1], "bytes ")
	n, err := strconv.Atoi(digits)
	if !tried || !sized || err != nil || n < 0 || n > maxBytes {
		return nil, fmt.Errorf("%w: its header has no valid size", disk.ErrCorrupt)
	}
	return &head{writeID: try, bytes: n, chunks: slices.Clone(lines[2 : len(lines)-1])}, nil
}

// document assembles the document from chunks by name.
func (h *head) document(chunks map[string][]byte) ([]byte, error) {
	doc := make([]byte, 0, h.bytes)
	for _, name := range h.chunks {
		data, there := chunks[name]
		if !there {
			return nil, fmt.Errorf("%w: chunk %s is missing", disk.ErrCorrupt, name)
		}
		if chunkName(data) != name {
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

var errSize = fmt.Errorf("%w: the total size of its chunks does not match the size in its header", disk.ErrCorrupt)
