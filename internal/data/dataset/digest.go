package dataset

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"math"
	"strings"
)

// digestPiece is how many bytes are hashed at once.
const digestPiece = 1 << 16

// summer hashes numbers, little-endian.
type summer struct {
	hash.Hash // whose Write never fails
	piece     []byte
}

func newSummer() *summer { return &summer{sha256.New(), make([]byte, 0, digestPiece)} }

func (s *summer) text() string {
	s.flush()
	return "sha256:" + hex.EncodeToString(s.Sum(nil))
}

func (s *summer) flush() {
	_, _ = s.Write(s.piece)
	s.piece = s.piece[:0]
}

func (s *summer) count(n int) {
	if len(s.piece)+8 > digestPiece {
		s.flush()
	}
	s.piece = binary.LittleEndian.AppendUint64(s.piece, uint64(n))
}

func (s *summer) bytes(b []byte) {
	s.count(len(b))
	s.flush()
	_, _ = s.Write(b)
}

func (s *summer) word(v uint32) {
	if len(s.piece)+4 > digestPiece {
		s.flush()
	}
	s.piece = binary.LittleEndian.AppendUint32(s.piece, v)
}

func (s *summer) floats(list []float32) {
	s.count(len(list))
	for _, v := range list {
		s.word(math.Float32bits(v))
	}
}

// words hashes a list of numbers, behind how many they are.
func words[T int32 | uint32](s *summer, list []T) {
	s.count(len(list))
	for _, v := range list {
		s.word(uint32(v))
	}
}

// Digest tells sets apart by what is in them, wherever their files are, and whether they
// are compressed: "sha256:" and a hash in hexadecimal. It is over both parts, of each its
// numbers of examples, pixels or features, and classes, and then pixels, features and labels,
// each behind how many they are: little-endian, counts in 8 bytes, other numbers as they are.
func (e *Examples) Digest() string {
	s := newSummer()
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

// Digest tells sets apart by what is in them: of both parts, the users, the items and the
// values, and then the names of users and of items where they have any, a line each, each
// behind how many they are, as of Examples. That of a synthetic set is its name,
// of which it is a function.
func (r *Ratings) Digest() string {
	if r.synthetic {
		return r.Name
	}
	s := newSummer()
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
