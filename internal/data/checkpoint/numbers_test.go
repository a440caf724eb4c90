package checkpoint

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

func TestBothEncodingsAgree(t *testing.T) {
	defer func(old bool) { littleEndian = old }(littleEndian)
	floats := make([]float32, chunkBytes/2+3) // more than one chunk
	ids := make([]uint64, chunkBytes/4+3)
	for i := range floats {
		floats[i] = float32(i) - 0.5
	}
	for i := range ids {
		ids[i] = math.MaxUint64 - uint64(i)*0x0102030405
	}
	for word, memory := range map[int][]byte{
		4: asBytes([][]float32{floats})[0],
		8: asBytes([][]uint64{ids})[0],
	} {
		before := bytes.Clone(memory)
		write := func() (b []byte) {
			must(t, encodeNumbers(memory, word, func(p []byte) error { b = append(b, p...); return nil }))
			return b
		}
		cast := write()
		littleEndian = false
		portable := write()
		if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 && !bytes.Equal(cast, portable) {
			t.Errorf("%d bytes: the cast and the portable encoding differ", word)
		}
		got := make([]byte, len(memory))
		r := bytes.NewReader(portable)
		must(t, decodeNumbers(got, word, func(p []byte) error { _, err := r.Read(p); return err }))
		if !bytes.Equal(got, before) || !bytes.Equal(memory, before) {
			t.Errorf("%d bytes: portable decoding gives other values", word)
		}
		littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1
	}
	if b := asBytes([][]uint64{ids[:1]})[0]; binary.NativeEndian.Uint64(b) != math.MaxUint64 {
		t.Error("the ids' memory was copied")
	}
}

// TestPortableEncodingIsLittleEndian checks the portable encoding against a naive one, because on a little-endian
// machine the encoding changes no byte.
func TestPortableEncodingIsLittleEndian(t *testing.T) {
	defer func(old bool) { littleEndian = old }(littleEndian)
	littleEndian = false
	var got, want []byte
	for _, v := range []uint64{1, 0x0102030405060708} {
		must(t, encodeNumbers(asBytes([][]uint64{{v}})[0], 8,
			func(p []byte) error { got = append(got, p...); return nil }))
		for shift := 0; shift < 64; shift += 8 {
			want = append(want, byte(v>>shift))
		}
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got % x, want % x", got, want)
	}
}
