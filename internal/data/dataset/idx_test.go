package dataset

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// idxBytes returns an idx file of unsigned bytes.
func idxBytes(data []byte, dims ...uint32) []byte {
	raw := []byte{0, 0, 8, byte(len(dims))}
	for _, d := range dims {
		raw = binary.BigEndian.AppendUint32(raw, d)
	}
	return append(raw, data...)
}

func gz(t *testing.T, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// writeSet writes a valid set of 3 + 2 pictures of 2 × 2 pixels, with some files replaced; nil omits a file.
func writeSet(t *testing.T, replaced map[string][]byte) string {
	t.Helper()
	files := map[string][]byte{
		"train-images-idx3-ubyte":   idxBytes([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 3, 2, 2),
		"train-labels-idx1-ubyte":   idxBytes([]byte{0, 2, 1}, 3),
		"t10k-images-idx3-ubyte.gz": gz(t, idxBytes([]byte{21, 22, 23, 24, 25, 26, 27, 28}, 2, 2, 2)),
		"t10k-labels-idx1-ubyte.gz": gz(t, idxBytes([]byte{1, 0}, 2)),
	}
	for name, data := range replaced {
		files[name] = data
	}
	dir := t.TempDir()
	for name, data := range files {
		if data == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoadImages(t *testing.T) {
	set, err := LoadImages(writeSet(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if set.Train.N != 3 || set.Train.Dim != 4 || set.Train.Classes != 3 {
		t.Errorf("train: %d × %d, %d classes", set.Train.N, set.Train.Dim, set.Train.Classes)
	}
	if set.Test.N != 2 || set.Test.Dim != 4 || set.Test.Classes != 3 {
		t.Errorf("test: %d × %d, %d classes", set.Test.N, set.Test.Dim, set.Test.Classes)
	}
	if got := set.Train.Image(1); !bytes.Equal(got, []byte{5, 6, 7, 8}) {
		t.Errorf("train picture 1 is %v", got)
	}
	if got := set.Test.Image(1); !bytes.Equal(got, []byte{25, 26, 27, 28}) {
		t.Errorf("test picture 1 is %v", got)
	}
	if !bytes.Equal(set.Train.Labels, []byte{0, 2, 1}) || !bytes.Equal(set.Test.Labels, []byte{1, 0}) {
		t.Errorf("labels %v, %v", set.Train.Labels, set.Test.Labels)
	}
}

func TestLoadImagesRefuses(t *testing.T) {
	pixels := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	const images, labels = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
	const testImages, testLabels = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
	packed := gz(t, idxBytes(pixels, 3, 2, 2))
	damaged := bytes.Clone(packed)
	damaged[len(damaged)-6] ^= 1 // within the checksum
	for _, c := range []struct {
		name, file string
		data       []byte
		kind       error
		want       string // in the message, together with the file's name
	}{
		{"no file", images, nil, ErrMissing, "holds neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz"},
		{"empty", images, []byte{}, ErrCorrupt, "ends within the magic"},
		{"magic", images, []byte("GIF89a..........................."), ErrCorrupt, "starts with 47 49 46 38"},
		{
			"element type", images, append([]byte{0, 0, 0x0d, 3}, idxBytes(pixels, 3, 2, 2)[4:]...), ErrCorrupt,
			"type 0x0d",
		},
		{"rank", images, idxBytes(pixels, 12), ErrCorrupt, "1 dimensions where 3"},
		{"labels as images", labels, idxBytes(pixels, 3, 2, 2), ErrCorrupt, "3 dimensions where 1"},
		{"header cut", images, idxBytes(pixels, 3, 2, 2)[:11], ErrCorrupt, "ends within the dimensions"},
		{"no elements", images, idxBytes(nil, 3, 0, 2), ErrCorrupt, "no elements"},
		{"huge", images, idxBytes(pixels, 1<<31, 1<<31, 1<<31), ErrCorrupt, "limit of 2147483648 bytes"},
		{
			"large lie", images, idxBytes(pixels, 1<<10, 1<<10, 1<<10), ErrCorrupt,
			"header specifies 1073741824 bytes of elements, but only 12 are present",
		},
		{
			"truncated", images, idxBytes(pixels[:11], 3, 2, 2), ErrCorrupt,
			"header specifies 12 bytes of elements, but only 11 are present",
		},
		{
			"trailing", images, idxBytes(append(pixels, 13), 3, 2, 2), ErrCorrupt,
			"bytes after the 12 elements",
		},
		{"count", labels, idxBytes([]byte{0, 2}, 2), ErrCorrupt, "2 labels for the 3 images"},
		{"not gzip", testImages, idxBytes(pixels, 3, 2, 2), ErrCorrupt, "not a gzip file"},
		{"gzip cut", testImages, packed[:len(packed)-18], ErrCorrupt, "truncated"},
		{"gzip checksum cut", testImages, packed[:len(packed)-1], ErrCorrupt, "like a gzip file"},
		{"gzip checksum", testImages, damaged, ErrCorrupt, "checksum"},
		{"gzip trailing", testImages, append(bytes.Clone(packed), "more"...), ErrCorrupt, "other bytes at its end"},
		{
			"gzip trailing junk", testImages, append(bytes.Clone(packed), "more than ten bytes of junk"...), ErrCorrupt,
			"other bytes after its end",
		},
		{
			"pixel counts", testImages, gz(t, idxBytes(pixels, 2, 3, 2)), ErrCorrupt,
			"training images have 4 pixels, but test images have 6",
		},
		{
			"test class", testLabels, gz(t, idxBytes([]byte{0, 3}, 2)), ErrCorrupt,
			"test label is class 3, but the largest training label is 2",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := writeSet(t, map[string][]byte{c.file: c.data})
			_, err := LoadImages(dir)
			if !errors.Is(err, c.kind) {
				t.Fatalf("error %v is not of kind %v", err, c.kind)
			}
			if msg := err.Error(); !strings.Contains(msg, c.want) || !strings.Contains(msg, dir) ||
				strings.Contains(msg, "\n") {
				t.Errorf("error %q: want one line with %q and the path", msg, c.want)
			}
		})
	}
}

func TestOpenRefusesWhatIsNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		file:                            "is a file; choose the directory",
		filepath.Join(file, "below"):    "not a directory",
		filepath.Join(file+"x", "none"): "no such directory",
	} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("Open(%s): %v, want %q", path, err, want)
		}
	}
}

// FuzzReadIDX searches for input that causes a panic or is accepted with a shape that does not match its content.
func FuzzReadIDX(f *testing.F) {
	f.Add(idxBytes([]byte{1, 2, 3, 4}, 1, 2, 2))
	f.Add(idxBytes([]byte{1, 2, 3, 4}, 1<<31, 1<<31, 2))
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			t.Fatal(err)
		}
		dims, data, err := readIDX(os.DirFS(filepath.Dir(path)), "f", path, 3)
		if err != nil {
			return
		}
		if size := dims[0] * dims[1] * dims[2]; size != len(data) || size != len(raw)-16 {
			t.Errorf("dimensions %v for %d elements in a file of %d bytes", dims, len(data), len(raw))
		}
	})
}
