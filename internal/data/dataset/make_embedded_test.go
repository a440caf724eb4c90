package dataset

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

var fullSet = flag.String("dataset.full", "", "directory of the full Fashion-MNIST, from which TestMakeEmbedded "+
	"selects a part")

// TestMakeEmbedded creates the embedded set from the full Fashion-MNIST. It takes the first 1,000 training and the
// first 200 test pictures of each class in their order, so that its output is a function of its input. It writes them
// as idx files like the full set's, with the highest gzip compression of the standard library:
//
//	go test ./internal/data/dataset -run TestMakeEmbedded -dataset.full FOLDER
func TestMakeEmbedded(t *testing.T) {
	if *fullSet == "" {
		t.Skip("without -dataset.full there is nothing to make it from")
	}
	full, err := LoadImages(*fullSet)
	if err != nil {
		t.Fatal(err)
	}
	if full.Train.Dim != side*side {
		t.Fatalf("%s: pictures of %d pixels, not %d", *fullSet, full.Train.Dim, side*side)
	}
	for stem, of := range map[string]struct {
		split    *Split
		perClass int
	}{"train": {&full.Train, 1000}, "t10k": {&full.Test, 200}} {
		if err := writeSubset(of.split, of.perClass, filepath.Join("embedded", stem)); err != nil {
			t.Fatal(err)
		}
	}
}

const side = 28 // pixels per side of Fashion-MNIST's square pictures

// writeSubset writes the first perClass pictures of each class.
func writeSubset(s *Split, perClass int, stem string) error {
	var pixels, labels []byte
	taken := make([]int, s.Classes)
	for i, label := range s.Labels {
		if taken[label] == perClass {
			continue
		}
		taken[label]++
		pixels = append(pixels, s.Image(i)...)
		labels = append(labels, label)
	}
	for class, n := range taken {
		if n < perClass {
			return fmt.Errorf("class %d has only %d of the required %d pictures", class, n, perClass)
		}
	}
	n := uint32(len(labels))
	if err := writeIDX(stem+"-images-idx3-ubyte.gz", []uint32{n, side, side}, pixels); err != nil {
		return err
	}
	return writeIDX(stem+"-labels-idx1-ubyte.gz", []uint32{n}, labels)
}

func writeIDX(path string, dims []uint32, data []byte) error {
	raw := []byte{0, 0, 8, byte(len(dims))}
	for _, d := range dims {
		raw = binary.BigEndian.AppendUint32(raw, d)
	}
	raw = append(raw, data...)
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(raw); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, packed.Bytes(), 0o644)
}
