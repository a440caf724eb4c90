package checkpoint

import (
	"encoding/binary"
	"unsafe"
)

// Numbers are little-endian in a file. If they are also little-endian in memory, they are not copied.

// chunkBytes is the number of bytes that are checksummed, copied and passed on together: small enough for a chunk to
// stay in the processor's cache in between.
const chunkBytes = 256 << 10

// littleEndian reports whether numbers have the same representation in memory and in a file. It is a variable so that
// tests also cover the other case.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// asBytes returns the memory of each piece as bytes.
func asBytes[T ~float32 | ~uint32 | ~uint64](pieces [][]T) [][]byte {
	out := make([][]byte, len(pieces))
	for i, p := range pieces {
		var word T
		out[i] = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(p))), int(unsafe.Sizeof(word))*len(p))
	}
	return out
}

// encodeNumbers passes numbers of word bytes each to emit in the file's byte order, a chunk at a time. Numbers of 1
// byte are plain bytes.
func encodeNumbers(memory []byte, word int, emit func([]byte) error) error {
	var buf []byte
	for len(memory) > 0 {
		chunk := memory[:min(chunkBytes, len(memory))]
		memory = memory[len(chunk):]
		if !littleEndian && word > 1 { // the caller's memory must not change
			buf = append(buf[:0], chunk...)
			toLittleEndian(buf, word)
			chunk = buf
		}
		if err := emit(chunk); err != nil {
			return err
		}
	}
	return nil
}

// decodeNumbers calls fill to read the file's bytes into memory, a chunk at a time, and converts them to numbers of
// word bytes each.
func decodeNumbers(memory []byte, word int, fill func([]byte) error) error {
	for len(memory) > 0 {
		chunk := memory[:min(chunkBytes, len(memory))]
		memory = memory[len(chunk):]
		if err := fill(chunk); err != nil {
			return err
		}
		if !littleEndian {
			fromLittleEndian(chunk, word)
		}
	}
	return nil
}

// toLittleEndian converts numbers of word bytes each to the file's byte order, in place.
func toLittleEndian(b []byte, word int) {
	for ; len(b) > 0; b = b[word:] {
		if word == 4 {
			binary.LittleEndian.PutUint32(b, binary.NativeEndian.Uint32(b))
		} else {
			binary.LittleEndian.PutUint64(b, binary.NativeEndian.Uint64(b))
		}
	}
}

func fromLittleEndian(b []byte, word int) {
	for ; len(b) > 0; b = b[word:] {
		if word == 4 {
			binary.NativeEndian.PutUint32(b, binary.LittleEndian.Uint32(b))
		} else {
			binary.NativeEndian.PutUint64(b, binary.LittleEndian.Uint64(b))
		}
	}
}
