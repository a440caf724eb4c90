package wire

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestSum compares the sums with the standard library's, for all lengths near the thresholds, at all alignments and
// from any initial sum.
func TestSum(t *testing.T) {
	const seed = 11
	rng := rand.New(rand.NewPCG(seed, 0))
	room := make([]byte, 64<<10)
	for i := range room {
		room[i] = byte(rng.Uint32())
	}
	check := func(start uint32, b []byte) {
		t.Helper()
		want := crc32.Update(start, castagnoli, b)
		if got := add(start, b); got != want {
			t.Fatalf("seed %d: add of %d bytes to %08x gives %08x, want %08x", seed, len(b), start, got, want)
		}
		if got := addCold(start, b); got != want {
			t.Fatalf("seed %d: addCold of %d bytes to %08x gives %08x, want %08x", seed, len(b), start, got, want)
		}
	}
	for n := range 5000 {
		from := rng.IntN(256)
		check(rng.Uint32(), room[from:from+n])
	}
	for range 300 {
		from := rng.IntN(len(room))
		check(rng.Uint32(), room[from:from+rng.IntN(len(room)-from)])
	}
	check(0, room)
	check(^uint32(0), make([]byte, 4096))
}

// BenchmarkSum sums bytes in the cache and bytes in memory.
func BenchmarkSum(b *testing.B) {
	room := make([]byte, 80<<20)
	for i := range room {
		room[i] = byte(i)
	}
	ways := []struct {
		name string
		add  func(uint32, []byte) uint32
	}{
		{"add", add},
		{"addCold", addCold},
		{"standard library", func(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }},
	}
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		for _, cold := range []bool{false, true} {
			for _, w := range ways {
				where := map[bool]string{false: "cache", true: "memory"}[cold]
				b.Run(fmt.Sprintf("%dKiB from the %s/%s", size>>10, where, w.name), func(b *testing.B) {
					b.SetBytes(int64(size))
					for at := 0; b.Loop(); {
						w.add(0, room[at:at+size])
						if cold {
							at = (at + size) % len(room)
						}
					}
				})
			}
		}
	}
}
