package checkpoint

import (
	"encoding/binary"
	"unsafe"
)

// Numbers are little-endian in a file. Where they are so in memory, too, nothing is copied.

// chunkBytes is how much is checked, copied and handed on at once: small enough
// that a chunk is still in the processor's cache when it is used again.
const chunkBytes = 256 << 10

// littleEndian says that a number lies in memory as it lies in the file. It is
// a variable so that tests take the other way too.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// asBytes returns the memory of each of the pieces.
func asBytes[T ~float32 | ~uint32 | ~uint64](pieces [][]T) [][]byte {
	out := make([][]byte, len(pieces))
	for i, p := range pieces {
		var word T
		out[i] = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(p))), int(unsafe.Sizeof(word))*len(p))
	}
	return out
}

// encodeNumbers hands memory that holds numbers of word bytes to emit as the file has
// it, a chunk at a time. Numbers of 1 byte are plain bytes.
func encodeNumbers(memory []byte, word int, emit func([]byte) error) error {
	var buf []byte
	for len(memory) > 0 {
		chunk := memory[:min(chunkBytes, len(memory))]
		memory = memory[len(chunk):]
		if !littleEndian && word > 1 { // the memory is not ours to turn round
			buf = append(buf[:0], chunk...)
			toLittle(buf, word)
			chunk = buf
		}
		if err := emit(chunk); err != nil {
			return err
		}
	}
	return nil
}

// decodeNumbers has fill put the file's bytes into memory, a chunk at a time, and makes
// numbers of word bytes of them.
func decodeNumbers(memory []byte, word int, fill func([]byte) error) error {
	for len(memory) > 0 {
		chunk := memory[:min(chunkBytes, len(memory))]
		memory = memory[len(chunk):]
		if err := fill(chunk); err != nil {
			return err
		}
		if !littleEndian {
			fromLittle(chunk, word)
		}
	}
	return nil
}

// toLittle makes what a file has of numbers of word bytes, in place.
func toLittle(b []byte, word int) {
	for ; len(b) > 0; b = b[word:] {
		if word == 4 {
			binary.LittleEndian.PutUint32(b, binary.NativeEndian.Uint32(b))
		} else {
			binary.LittleEndian.PutUint64(b, binary.NativeEndian.Uint64(b))
		}
	}
}

func fromLittle(b []byte, word int) {
	for ; len(b) > 0; b = b[word:] {
		if word == 4 {
			binary.NativeEndian.PutUint32(b, binary.LittleEndian.Uint32(b))
		} else {
			binary.NativeEndian.PutUint64(b, binary.LittleEndian.Uint64(b))
		}
	}
}
