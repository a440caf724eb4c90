package dataset

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"slices"
	"testing"
)

func TestEmbedded(t *testing.T) {
	set, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		split    *Split
		perClass int
		sum      string // over the pixels, then the labels
	}{
		{&set.Train, 1000, "73194a0c06a93deab58b95e00e618cc5c80fb5c9a84df26bbc429eeb3507846a"},
		{&set.Test, 200, "8e8b02fc2db0ff9ed2d481ff30f8bd7cc5c88205cb131d7f4a0c19448f6957c9"},
	} {
		s := part.split
		if s.N != 10*part.perClass || s.Dim != 784 || s.Classes != 10 || len(s.Pixels) != s.N*s.Dim ||
			len(s.Labels) != s.N {
			t.Errorf("%d pictures × %d, %d classes, %d pixels, %d labels", s.N, s.Dim, s.Classes, len(s.Pixels),
				len(s.Labels))
		}
		counts := make([]int, s.Classes)
		for _, label := range s.Labels {
			counts[label]++
		}
		if slices.Min(counts) != part.perClass || slices.Max(counts) != part.perClass {
			t.Errorf("pictures per class: %v, want %d of each", counts, part.perClass)
		}
		h := sha256.New()
		h.Write(s.Pixels)
		h.Write(s.Labels)
		if got := hex.EncodeToString(h.Sum(nil)); got != part.sum {
			t.Errorf("content changed: SHA-256 %s, want %s", got, part.sum)
		}
	}
}

func TestEmbeddedIsSmall(t *testing.T) {
	var total int64
	err := fs.WalkDir(embeddedFiles, ".", func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		total += info.Size()
		return err
	})
	if err != nil || total == 0 || total > 6_000_000 {
		t.Errorf("embedded files have %d bytes (%v), want at most 6 MB", total, err)
	}
}

// BenchmarkLoadFull loads the full set from the directory PERDURE_FASHION_MNIST.
func BenchmarkLoadFull(b *testing.B) {
	dir := os.Getenv("PERDURE_FASHION_MNIST")
	if dir == "" {
		b.Skip("set PERDURE_FASHION_MNIST to the folder of the full Fashion-MNIST")
	}
	for b.Loop() {
		if _, err := LoadImages(dir); err != nil {
			b.Fatal(err)
		}
	}
}
