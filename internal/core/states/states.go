// Package states manages states of slots' programs that are too large to travel with an update: they lie in the
// job's store, and a [Ref] travels instead. And it is the rule by which such an object is garbage: see [Held].
//
// What travels is bytes, whoever carries it: a frame, a segment, a snapshot. [Pack] and [Unpack] say
// what they are: a state or a reference, and the clock that it belongs to.
//
// Where a shard may lose what its slots have saved, the others are told that something was saved
// ([Note]). So a slot that gets an older state knows: see [Older].
//
// All is pure. A Held is for one goroutine.
package states

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// Key tells the states apart that a job's processes save. A slot's processes have growing
// incarnations within a generation, and each counts what it saves. So of two keys of a slot the
// greater one is of the later state.
type Key struct {
	Slot        perdure.Slot
	Generation  perdure.Generation
	Incarnation perdure.Incarnation
	Number      uint64 // from 1
}

// After reports whether a state is later than another one of its slot.
func (k Key) After(other Key) bool {
	return cmp.Or(cmp.Compare(k.Generation, other.Generation), cmp.Compare(k.Incarnation, other.Incarnation),
		cmp.Compare(k.Number, other.Number)) > 0
}

// Prefix begins the name of each state, and of nothing else that a store has.
const Prefix = "state-"

// Name is the name of the object.
func (k Key) Name() string {
	return fmt.Sprintf(Prefix+"s%05d-g%06d-i%06d-n%012d", k.Slot, k.Generation, k.Incarnation, k.Number)
}

var named = regexp.MustCompile(`^` + Prefix + `s(\d+)-g(\d+)-i(\d+)-n(\d+)$`)

// ParseName reads the name of an object; false: it is not a state's.
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

// Ref names a state in the store, and tells what is there from anything else.
type Ref struct {
	Key
	Bytes int64  // of the object
	CRC   uint32 // CRC-32C of the object, as its last bytes say
}

// File is the reference as a manifest has it.
func (r Ref) File() words.SavedFile {
	return words.SavedFile{File: r.Name(), Bytes: r.Bytes, CRC: r.CRC}
}

// What travels begins with the mark:
//
//	 0     16    mark
//	16      1    version (2)
//	17      1    kind: 1 a reference, 2 a state, 3 a reference to nothing, 4 a note
//	18      2    zeros
//	20      4    CRC-32C of all but these 4 bytes
//	24      8    clock: that of the update that saved it; -1: of a reference to nothing
//	32      8    gap: below which a later save may be lost; 0: none is
//	40      …    the state; or the reference: slot (4), incarnation (4), generation (8), number (8),
//	             bytes of the object (8), its CRC-32C (4), zeros (4); to nothing: zeros; a note: nothing
const (
	mark      = "\xb7\x1e\x9c\x5a\x03\xd8\x66\xf1\x4f\xa2\x8d\x70\xc9\x3b\xe4\x95"
	version   = 2
	kindRef   = 1
	kindPlain = 2
	kindVoid  = 3
	kindNote  = 4
	sumBytes  = 24 // of the head, with its checksum
	headBytes = sumBytes + 16
	refBytes  = 40
)

// Unknown is the clock of a state of which it is not known.
const Unknown perdure.Clock = -1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrFraming is wrapped when bytes are not what Pack, Void or Note return.
var ErrFraming = errors.New("saved state: what has travelled cannot be read")

func frame(kind byte, clock perdure.Clock, body int) []byte {
	b := make([]byte, headBytes, headBytes+body)
	copy(b, mark)
	b[len(mark)], b[len(mark)+1] = version, kind
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

// Pack returns how a state travels that lies nowhere else, saved in a clock. It is a copy.
func Pack(state []byte, clock perdure.Clock) []byte {
	return seal(append(frame(kindPlain, clock, len(state)), state...))
}

// Pack returns how a reference travels, to a state that was saved in a clock.
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

// Void returns a reference to nothing, as long as any other: whoever takes it in goes on with what there is.
func Void() []byte {
	return seal(append(frame(kindVoid, Unknown, refBytes), make([]byte, refBytes)...))
}

// Note returns what travels to the shards that a slot's state is not on: that one was saved, and in which clock.
func Note(clock perdure.Clock) []byte { return seal(frame(kindNote, clock, 0)) }

// IsVoid reports whether bytes are a reference to nothing.
func IsVoid(b []byte) bool { return isKind(b, kindVoid) }

// IsNote reports whether bytes say only that something was saved.
func IsNote(b []byte) bool { return isKind(b, kindNote) }

func isKind(b []byte, kind byte) bool {
	return len(b) >= headBytes && string(b[:len(mark)]) == mark && b[len(mark)+1] == kind
}

// Saved is what has travelled.
type Saved struct {
	State []byte        // nil: it is elsewhere, or there is none
	Ref   *Ref          // where it is; else nil
	Clock perdure.Clock // of the update that saved it, or Unknown
	Gap   perdure.Clock // a save after Clock, and below this one, may be lost; 0: none is
}

// Unpack reads what has travelled. nil is what a shard has of a slot that has saved nothing.
func Unpack(b []byte) (s Saved, err error) {
	if b == nil {
		return Saved{Clock: Unknown}, nil
	}
	if len(b) < headBytes || string(b[:len(mark)]) != mark {
		return s, fmt.Errorf("%w: its %d bytes do not begin as a state does", ErrFraming, len(b))
	}
	v, kind, le := b[len(mark)], b[len(mark)+1], binary.LittleEndian
	if v != version {
		return s, fmt.Errorf("%w: another version of Perdure saved it (format %d, this one reads format %d); use the "+
			"version that saved it", ErrFraming, v, version)
	}
	if le.Uint32(b[sumBytes-4:]) != sum(b) {
		return s, fmt.Errorf("%w: its checksum is wrong", ErrFraming)
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
	return Saved{}, fmt.Errorf("%w: it is of kind %d, with %d bytes", ErrFraming, kind, len(b))
}

// Of returns the reference that bytes are; nil: they are none.
func Of(b []byte) *Ref {
	if !isKind(b, kindRef) {
		return nil
	}
	s, _ := Unpack(b)
	return s.Ref
}

// Files returns the references among what slots have saved, as a manifest has them.
func Files(saved [][]byte) (files []words.SavedFile) {
	for _, b := range saved {
		if ref := Of(b); ref != nil {
			files = append(files, ref.File())
		}
	}
	return files
}

// Names returns the names of the references among what slots have saved.
func Names(saved [][]byte) (names []string) {
	for _, b := range saved {
		if ref := Of(b); ref != nil {
			names = append(names, ref.Name())
		}
	}
	return names
}
