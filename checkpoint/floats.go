package checkpoint

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// chunkBytes is how much is checked, copied and handed on at once: small enough
// that a chunk is still in the processor's cache when it is used again.
const chunkBytes = 256 << 10

// littleEndian says that a float32 lies in memory as it lies in the file. It is
// a variable so that tests take the other way too.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// asBytes returns the memory of v.
func asBytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

// encodeFloats hands the little-endian bytes of v to emit, a chunk at a time.
func encodeFloats(v []float32, emit func([]byte) error) error {
	const n = chunkBytes / 4
	var buf []byte
	for len(v) > 0 {
		chunk := v[:min(n, len(v))]
		v = v[len(chunk):]
		if littleEndian {
			buf = asBytes(chunk)
		} else {
			buf = buf[:0]
			for _, f := range chunk {
				buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(f))
			}
		}
		if err := emit(buf); err != nil {
			return err
		}
	}
	return nil
}

// decodeFloats fills v from the little-endian bytes that fill puts into the
// slices it is given, a chunk at a time: into v's own memory where it can.
func decodeFloats(v []float32, fill func([]byte) error) error {
	const n = chunkBytes / 4
	for len(v) > 0 {
		chunk := v[:min(n, len(v))]
		v = v[len(chunk):]
		b := asBytes(chunk)
		if err := fill(b); err != nil {
			return err
		}
		if !littleEndian {
			for i := range chunk {
				chunk[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
			}
		}
	}
	return nil
}
