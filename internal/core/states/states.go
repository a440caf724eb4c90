// Package states is how what a slot's program saves is kept where it is too large to travel with an
// update: it lies in the job's store, and what travels is a [Ref] to it. And it is the rule by which
// such an object is garbage: see [Held].
//
// What travels is bytes, whoever carries it: a frame, a segment, a snapshot. [Pack] and [Unpack] say
// what they are. Bytes that do not begin with the mark are a state as the program gave it, as they
// have always been. Those that do are a reference, or a state that itself begins with the mark. The
// mark was drawn at random, and is followed by a checksum, so no state of before is taken for one.
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
func (r Ref) File() perdure.SavedFile {
	return perdure.SavedFile{File: r.Name(), Bytes: r.Bytes, CRC: r.CRC}
}

// What travels begins with the mark:
//
//	 0     16    mark
//	16      1    version (1)
//	17      1    kind: 1 a reference, 2 a state that begins with the mark itself, 3 a reference to nothing
//	18      2    zeros
//	20      4    CRC-32C of all but these 4 bytes
//	24      …    the state; or the reference: slot (4), incarnation (4), generation (8), number (8),
//	             bytes of the object (8), its CRC-32C (4), zeros (4); to nothing: zeros
const (
	mark      = "\xb7\x1e\x9c\x5a\x03\xd8\x66\xf1\x4f\xa2\x8d\x70\xc9\x3b\xe4\x95"
	version   = 1
	kindRef   = 1
	kindPlain = 2
	kindVoid  = 3
	headBytes = 24
	refBytes  = headBytes + 40
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrFraming is wrapped when bytes begin with the mark, and are not what they say.
var ErrFraming = errors.New("saved state: a reference that cannot be read")

func frame(kind byte, body int) []byte {
	b := make([]byte, headBytes, headBytes+body)
	copy(b, mark)
	b[len(mark)], b[len(mark)+1] = version, kind
	return b
}

func sum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:20], castagnoli), castagnoli, b[headBytes:])
}

func seal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[20:], sum(b))
	return b
}

// Marked reports whether bytes begin with the mark.
func Marked(b []byte) bool { return len(b) >= len(mark) && string(b[:len(mark)]) == mark }

// Pack returns how a state travels that lies nowhere else: as it is, but for one that begins with the
// mark. The memory may be the state's.
func Pack(state []byte) []byte {
	if !Marked(state) {
		return state
	}
	return seal(append(frame(kindPlain, len(state)), state...))
}

// Pack returns how a reference travels.
func (r Ref) Pack() []byte {
	le, b := binary.LittleEndian, frame(kindRef, refBytes-headBytes)
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
	return seal(append(frame(kindVoid, refBytes-headBytes), make([]byte, refBytes-headBytes)...))
}

// IsVoid reports whether bytes are a reference to nothing.
func IsVoid(b []byte) bool { return Marked(b) && len(b) == refBytes && b[len(mark)+1] == kindVoid }

// Unpack reads what has travelled: a state, or a reference to one.
func Unpack(b []byte) (state []byte, ref *Ref, err error) {
	if !Marked(b) {
		return b, nil, nil
	}
	if len(b) < headBytes {
		return nil, nil, fmt.Errorf("%w: it has %d bytes", ErrFraming, len(b))
	}
	if v := b[len(mark)]; v != version {
		return nil, nil, fmt.Errorf("%w: it is of version %d, this Perdure reads version %d", ErrFraming, v, version)
	}
	le := binary.LittleEndian
	if le.Uint32(b[20:]) != sum(b) {
		return nil, nil, fmt.Errorf("%w: its checksum is wrong", ErrFraming)
	}
	switch kind := b[len(mark)+1]; {
	case kind == kindPlain:
		return b[headBytes:], nil, nil
	case kind == kindRef && len(b) == refBytes:
		r, at := new(Ref), b[headBytes:]
		r.Slot, r.Incarnation = perdure.Slot(le.Uint32(at)), perdure.Incarnation(le.Uint32(at[4:]))
		r.Generation, r.Number = perdure.Generation(le.Uint64(at[8:])), le.Uint64(at[16:])
		r.Bytes, r.CRC = int64(le.Uint64(at[24:])), le.Uint32(at[32:])
		return nil, r, nil
	}
	return nil, nil, fmt.Errorf("%w: it is of kind %d, with %d bytes", ErrFraming, b[len(mark)+1], len(b))
}

// Of returns the reference that bytes are; nil: they are none.
func Of(b []byte) *Ref {
	if !Marked(b) {
		return nil
	}
	_, ref, _ := Unpack(b)
	return ref
}

// Files returns the references among what slots have saved, as a manifest has them.
func Files(saved [][]byte) (files []perdure.SavedFile) {
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
