package dataset

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"math"
	"strings"
)

// hashBytes is the number of bytes hashed per call.
const hashBytes = 1 << 16

// hasher hashes numbers, little-endian.
type hasher struct {
	hash.Hash // its Write never fails
	piece     []byte
}

func newHasher() *hasher { return &hasher{sha256.New(), make([]byte, 0, hashBytes)} }

func (s *hasher) text() string {
	s.flush()
	return "sha256:" + hex.EncodeToString(s.Sum(nil))
}

func (s *hasher) flush() {
	_, _ = s.Write(s.piece)
	s.piece = s.piece[:0]
}

func (s *hasher) count(n int) {
	if len(s.piece)+8 > hashBytes {
		s.flush()
	}
	s.piece = binary.LittleEndian.AppendUint64(s.piece, uint64(n))
}

func (s *hasher) bytes(b []byte) {
	s.count(len(b))
	s.flush()
	_, _ = s.Write(b)
}

func (s *hasher) word(v uint32) {
	if len(s.piece)+4 > hashBytes {
		s.flush()
	}
	s.piece = binary.LittleEndian.AppendUint32(s.piece, v)
}

func (s *hasher) floats(list []float32) {
	s.count(len(list))
	for _, v := range list {
		s.word(math.Float32bits(v))
	}
}

// words hashes a list of numbers, preceded by its length.
func words[T int32 | uint32](s *hasher, list []T) {
	s.count(len(list))
	for _, v := range list {
		s.word(uint32(v))
	}
}

// Digest identifies a set by its content, regardless of the location and compression of its files: "sha256:" and a hash
// in hexadecimal. For both parts it covers the numbers of examples, of pixels or features, and of classes, and then
// pixels, features and labels, each preceded by its length. Numbers are little-endian; lengths take 8 bytes, other
// numbers their own size.
func (e *Examples) Digest() string {
	s := newHasher()
	for _, part := range []*Split{&e.Train, &e.Test} {
		s.count(part.N)
		s.count(part.Dim)
		s.count(part.Classes)
		s.bytes(part.Pixels)
		s.floats(part.Features)
		s.bytes(part.Labels)
	}
	return s.text()
}

// Digest identifies a set by its content: the users, items and values of both parts, then the names of users and items
// if they have names, one per line. Each list is preceded by its length, as for Examples. The digest of a synthetic set
// is its name, which determines the set.
func (r *Ratings) Digest() string {
	if r.synthetic {
		return r.Name
	}
	s := newHasher()
	for _, part := range []*RatingSplit{&r.Train, &r.Test} {
		words(s, part.User)
		words(s, part.Item)
		s.floats(part.Value)
	}
	for _, names := range [][]string{r.UserNames, r.ItemNames} {
		if names != nil {
			s.bytes([]byte(strings.Join(names, "\n")))
		}
	}
	return s.text()
}
