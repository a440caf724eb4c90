package dataset

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestDigest: a digest depends on the content of a set and on nothing else.
func TestDigest(t *testing.T) {
	set := func() *Examples {
		return &Examples{Name: "a", Train: Split{
			N: 2, Dim: 2, Classes: 2, Pixels: []uint8{1, 2, 3, 4},
			Labels: []uint8{0, 1},
		}, Test: Split{
			N: 1, Dim: 2, Classes: 2, Features: []float32{0.5, -1},
			Labels: []uint8{1},
		}}
	}
	// Computed by another implementation from the documented bytes.
	const want = "sha256:ee99e3d57f88d426fa6ccae2be4741bd7eecf6f0af91011a96fc67d593527a2d"
	if got := set().Digest(); got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
	for what, change := range map[string]func(*Examples){
		"a pixel":   func(e *Examples) { e.Train.Pixels[3]++ },
		"a label":   func(e *Examples) { e.Test.Labels[0]-- },
		"a feature": func(e *Examples) { e.Test.Features[1] = 1 },
		"the shape": func(e *Examples) { e.Train.N, e.Train.Dim = 4, 1 },
		"a class":   func(e *Examples) { e.Train.Classes, e.Test.Classes = 3, 3 },
	} {
		e := set()
		if change(e); e.Digest() == want {
			t.Errorf("%s does not change the digest", what)
		}
	}
	e := set()
	if e.Name = "b"; e.Digest() != want {
		t.Error("the name changes the digest")
	}
}

// TestDigestOfRatings: a file has one digest, compressed or not; a different value changes it.
func TestDigestOfRatings(t *testing.T) {
	dir := t.TempDir()
	digest := func(name, text string) string {
		b := []byte(text)
		if filepath.Ext(name) == ".gz" {
			var packed bytes.Buffer
			z := gzip.NewWriter(&packed)
			_, _ = z.Write(b) // to memory
			_ = z.Close()
			b = packed.Bytes()
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o666); err != nil {
			t.Fatal(err)
		}
		r, err := LoadRatings(path)
		if err != nil {
			t.Fatal(err)
		}
		return r.Digest()
	}
	lines := ""
	for item := 10; item < 40; item++ {
		lines += fmt.Sprintf("1,%d,3\n", item)
	}
	plain := digest("a.csv", lines)
	if packed, more := digest("b.csv.gz", lines), digest("c.csv", lines+"2,10,4\n"); plain != packed || plain == more {
		t.Errorf("plain %s, compressed %s, with another rating %s", plain, packed, more)
	}
	a, errA := SyntheticRatings(0.0001)
	b, errB := SyntheticRatings(0.0002)
	if errA != nil || errB != nil || a.Digest() == b.Digest() || a.Digest() != a.Name {
		t.Errorf("synthetic ratings %v and %v (%v, %v)", a, b, errA, errB)
	}
}
