package disk

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// TestStreamWritesWhatItIsGiven writes files whose lengths are near the thresholds of a stream, in writes of various
// lengths, bypassing the cache and through it.
func TestStreamWritesWhatItIsGiven(t *testing.T) {
	content := make([]byte, 4*streamPiece)
	random := rand.NewChaCha8([32]byte{1})
	random.Read(content)
	name := filepath.Join(t.TempDir(), "a")
	rapid.Check(t, func(t *rapid.T) {
		around := rapid.SampledFrom([]int{0, streamStart, streamPiece, 2 * streamPiece, 3 * streamPiece}).Draw(t,
			"around")
		length := max(0, around+rapid.SampledFrom([]int{0, -1, 1, streamAlign, 777}).Draw(t, "beyond"))
		through := rapid.Bool().Draw(t, "through the cache")
		most := rapid.SampledFrom([]int{5000, streamStart, 256 << 10, 2*streamPiece + 1}).Draw(t, "most")
		err := WriteFile(OS(), name, func(w io.Writer) error {
			if s := w.(*stream); through {
				s.direct, s.wrotePiece = false, true
			}
			for left := content[:length]; len(left) > 0; {
				n := min(len(left), rapid.IntRange(most/2, most).Draw(t, "n"))
				if _, err := w.Write(left[:n]); err != nil {
					return err
				}
				left = left[n:]
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, content[:length]) {
			t.Fatalf("read %d bytes, %v; wrote %d", len(b), err, length)
		}
	})
}

// TestStreamGoesOnThroughTheCache uses a file system that reports only at a write that it cannot bypass its cache; here
// the file offset is unaligned.
func TestStreamGoesOnThroughTheCache(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	f, err := os.Create(name)
	must(t, err)
	_, err = f.WriteString("odd")
	must(t, err)
	s := &stream{f: f, wrotePiece: true}
	s.direct = setDirect(f, true) == nil
	content := bytes.Repeat([]byte("0123456789"), streamPiece/5)
	_, err = s.Write(content)
	must(t, err)
	must(t, s.Sync())
	must(t, s.Close())
	b, err := os.ReadFile(name)
	if err != nil || string(b) != "odd"+string(content) {
		t.Errorf("read %d bytes, %v; want %d", len(b), err, 3+len(content))
	}
}

// TestStreamKeepsItsError makes the write of a piece fail while others are filled.
func TestStreamKeepsItsError(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	must(t, os.WriteFile(name, nil, 0o666))
	f, err := os.Open(name) // read-only
	must(t, err)
	s := &stream{f: f}
	_, first := s.Write(make([]byte, 3*streamPiece))
	_, later := s.Write(make([]byte, 2*streamPiece))
	for what, err := range map[string]error{"write": first, "a later write": later, "sync": s.Sync()} {
		if err == nil {
			t.Errorf("%s gives no error", what)
		}
	}
	must(t, s.Close())
}

// TestPiecesAreUsedAgain writes a long file, and then another one in the memory of the first.
func TestPiecesAreUsedAgain(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	content := make([]byte, 3*streamPiece)
	write := func() {
		must(t, WriteFile(OS(), name, func(w io.Writer) error {
			_, err := w.Write(content)
			return err
		}))
	}
	write()
	had := map[*byte]bool{}
	for range len(freeBuffers) {
		p := <-freeBuffers
		had[unsafe.SliceData(p)] = true
		freeBuffers <- p
	}
	if len(had) < 2 || len(had) > maxFreeBuffers {
		t.Fatalf("kept %d pieces", len(had))
	}
	write()
	for range len(freeBuffers) {
		p := <-freeBuffers
		if !had[unsafe.SliceData(p)] {
			t.Error("a piece was newly allocated")
		}
		freeBuffers <- p
	}
}
