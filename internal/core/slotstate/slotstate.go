// Package slotstate manages the states that training programs save with their updates and that are too large to be sent
// with them. They are stored as objects
// in the job's store, and a [Ref] is sent in their place. The package also decides when such an object is garbage: see
// [LiveSet].
//
// States and references are encoded as bytes that frames, segments and snapshots carry. [Pack] and [Unpack] convert
// them: a state or a reference, with the clock that it belongs to.
//
// If a shard may lose the saved states of its slots, the other shards receive a [Note] that something was saved. A slot
// can therefore detect that it gets an older state: see [MaxAge].
//
// All functions are pure. A LiveSet is not safe for concurrent use.
package slotstate

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// Key identifies a state saved by one of a job's processes. Within a generation, a slot's processes have increasing
// incarnations, and each process numbers its states. So of two keys of a slot, the greater one belongs to the later
// state.
type Key struct {
	Slot        perdure.Slot
	Generation  perdure.Generation
	Incarnation perdure.Incarnation
	Number      uint64 // from 1
}

// After reports whether k's state is later than another one of its slot.
func (k Key) After(other Key) bool {
	return cmp.Or(cmp.Compare(k.Generation, other.Generation), cmp.Compare(k.Incarnation, other.Incarnation),
		cmp.Compare(k.Number, other.Number)) > 0
}

// Draft returns the key of a slot's draft: the state of its program between two clocks, which a process that has to end
// saves for the next one. A slot has one draft, which each later one replaces. No update refers to it.
func Draft(slot perdure.Slot) Key { return Key{Slot: slot} }

// IsDraft reports whether k is the key of a draft. Generations and incarnations of other states start at 1.
func (k Key) IsDraft() bool { return k == Draft(k.Slot) }

// Prefix starts the name of each state object, and of no other object in a store.
const Prefix = "state-"

// Name returns the name of the object.
func (k Key) Name() string {
	return fmt.Sprintf(Prefix+"s%05d-g%06d-i%06d-n%012d", k.Slot, k.Generation, k.Incarnation, k.Number)
}

var named = regexp.MustCompile(`^` + Prefix + `s(\d+)-g(\d+)-i(\d+)-n(\d+)$`)

// ParseName parses the name of an object. ok is false if it is not a state's name.
func ParseName(name string) (k Key, ok bool) {
	m := named.FindStringSubmatch(name)
	if m == nil {
		return k, false
	}
	slot, err1 := strconv.ParseInt(m[1], 10, 32)
	generation, err2 := strconv.ParseUint(m[2], 10, 64)
	incarnation, err3 := strconv.ParseUint(m[3], 10, 32)
	number, err4 := strconv.ParseUint(m[4], 10, 64)
	k = Key{perdure.Slot(slot), perdure.Generation(generation), perdure.Incarnation(incarnation), number}
	return k, errors.Join(err1, err2, err3, err4) == nil && k.Name() == name
}

// Ref identifies a state in the store, with its size and checksum.
type Ref struct {
	Key
	Bytes int64  // of the object
	CRC   uint32 // CRC-32C of the object, as in its last bytes
}

// File returns the reference in the form of a manifest entry.
func (r Ref) File() protocol.SavedFile {
	return protocol.SavedFile{File: r.Name(), Bytes: r.Bytes, CRC: r.CRC}
}

// The encoding starts with the magic:
//
//	 0     16    magic
//	16      1    version (2)
//	17      1    kind: 1 a reference, 2 a state, 3 an empty reference, 4 a note
//	18      2    zeros
//	20      4    CRC-32C of everything except these 4 bytes
//	24      8    clock of the update that saved it; -1 for an empty reference
//	32      8    gap: a later save below this clock may be lost; 0: none
//	40      …    a state: its bytes; a reference: slot (4), incarnation (4), generation (8), number (8),
//	             bytes of the object (8), its CRC-32C (4), zeros (4); an empty reference: zeros; a note: nothing
const (
	magic        = "\xb7\x1e\x9c\x5a\x03\xd8\x66\xf1\x4f\xa2\x8d\x70\xc9\x3b\xe4\x95"
	version      = 2
	kindRef      = 1
	kindPlain    = 2
	kindEmptyRef = 3
	kindNote     = 4
	sumBytes     = 24 // of the header, including its checksum
	headBytes    = sumBytes + 16
	refBytes     = 40
)

// Unknown is the clock of a state whose clock is unknown.
const Unknown perdure.Clock = -1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrFraming is wrapped in errors for bytes that Pack, EmptyRef or Note did not return.
var ErrFraming = errors.New("saved state: invalid encoding")

func frame(kind byte, clock perdure.Clock, body int) []byte {
	b := make([]byte, headBytes, headBytes+body)
	copy(b, magic)
	b[len(magic)], b[len(magic)+1] = version, kind
	binary.LittleEndian.PutUint64(b[sumBytes:], uint64(clock))
	return b
}

func sum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:sumBytes-4], castagnoli), castagnoli, b[sumBytes:])
}

func seal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[sumBytes-4:], sum(b))
	return b
}

// Pack encodes a state that is stored nowhere else, saved in a clock. It copies the state.
func Pack(state []byte, clock perdure.Clock) []byte {
	return seal(append(frame(kindPlain, clock, len(state)), state...))
}

// Pack encodes a reference to a state that was saved in a clock.
func (r Ref) Pack(clock perdure.Clock) []byte {
	le, b := binary.LittleEndian, frame(kindRef, clock, refBytes)
	b = le.AppendUint32(b, uint32(r.Slot))
	b = le.AppendUint32(b, uint32(r.Incarnation))
	b = le.AppendUint64(b, uint64(r.Generation))
	b = le.AppendUint64(b, r.Number)
	b = le.AppendUint64(b, uint64(r.Bytes))
	b = le.AppendUint32(b, r.CRC)
	return seal(le.AppendUint32(b, 0))
}

// Advance changes the clock of a packed state, reference or note in place, if it is the given one.
func Advance(b []byte, from, to perdure.Clock) {
	if len(b) >= headBytes && binary.LittleEndian.Uint64(b[sumBytes:]) == uint64(from) {
		binary.LittleEndian.PutUint64(b[sumBytes:], uint64(to))
		seal(b)
	}
}

// EmptyRef returns an empty reference, as long as any other. A shard that receives it keeps the state that it has and
// marks it with a gap: see [ApplyUpdate].
func EmptyRef() []byte {
	return seal(append(frame(kindEmptyRef, Unknown, refBytes), make([]byte, refBytes)...))
}

// Note returns the note for the shards that do not hold a slot's state: a state was saved in this clock.
func Note(clock perdure.Clock) []byte { return seal(frame(kindNote, clock, 0)) }

// IsEmptyRef reports whether b is an empty reference.
func IsEmptyRef(b []byte) bool { return isKind(b, kindEmptyRef) }

func isKind(b []byte, kind byte) bool {
	return len(b) >= headBytes && string(b[:len(magic)]) == magic && b[len(magic)+1] == kind
}

// Saved is a decoded state, reference or note.
type Saved struct {
	State []byte        // nil: stored elsewhere, or never saved
	Ref   *Ref          // where it is stored, or nil
	Clock perdure.Clock // of the update that saved it, or Unknown
	Gap   perdure.Clock // a save after Clock and below Gap may be lost; 0: none
}

// Unpack decodes b. A shard has nil for a slot that has saved nothing.
func Unpack(b []byte) (s Saved, err error) {
	if b == nil {
		return Saved{Clock: Unknown}, nil
	}
	if len(b) < headBytes || string(b[:len(magic)]) != magic {
		return s, fmt.Errorf("%w: its %d bytes do not start with the magic number of a slot state", ErrFraming, len(b))
	}
	v, kind, le := b[len(magic)], b[len(magic)+1], binary.LittleEndian
	if v != version {
		return s, fmt.Errorf("%w: another version of Perdure saved it (format %d, this one reads format %d); use the "+
			"version that saved it", ErrFraming, v, version)
	}
	if le.Uint32(b[sumBytes-4:]) != sum(b) {
		return s, fmt.Errorf("%w: wrong checksum", ErrFraming)
	}
	s.Clock, s.Gap = perdure.Clock(le.Uint64(b[sumBytes:])), perdure.Clock(le.Uint64(b[sumBytes+8:]))
	body := b[headBytes:]
	switch {
	case kind == kindPlain:
		s.State = body
		return s, nil
	case kind == kindNote && len(body) == 0:
		return s, nil
	case kind == kindRef && len(body) == refBytes:
		r := new(Ref)
		r.Slot, r.Incarnation = perdure.Slot(le.Uint32(body)), perdure.Incarnation(le.Uint32(body[4:]))
		r.Generation, r.Number = perdure.Generation(le.Uint64(body[8:])), le.Uint64(body[16:])
		r.Bytes, r.CRC = int64(le.Uint64(body[24:])), le.Uint32(body[32:])
		s.Ref = r
		return s, nil
	}
	return Saved{}, fmt.Errorf("%w: unknown kind %d with %d bytes", ErrFraming, kind, len(b))
}

// DecodeRef returns the reference that b encodes; nil: it is not one.
func DecodeRef(b []byte) *Ref {
	if !isKind(b, kindRef) {
		return nil
	}
	s, _ := Unpack(b)
	return s.Ref
}

// Files returns the references among the saved states of slots, as manifest entries.
func Files(saved [][]byte) (files []protocol.SavedFile) {
	for _, b := range saved {
		if ref := DecodeRef(b); ref != nil {
			files = append(files, ref.File())
		}
	}
	return files
}

// Names returns the object names of the references among the saved states of slots.
func Names(saved [][]byte) (names []string) {
	for _, b := range saved {
		if ref := DecodeRef(b); ref != nil {
			names = append(names, ref.Name())
		}
	}
	return names
}
