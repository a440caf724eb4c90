// Command subset makes the embedded set of package dataset from the full
// Fashion-MNIST. It is run by hand, from the dataset folder:
//
//	go run ./internal/subset FOLDER embedded
//
// with FOLDER holding the four idx files of the full set. It takes the first
// 1,000 training and the first 200 test pictures of each class and keeps their
// order, so that its output is a function of its input, and writes them as
// idx files like the full set's, gzip-compressed as well as the standard
// library can.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/perdure/perdure/internal/data/dataset"
)

const (
	side          = 28 // pixels, of Fashion-MNIST's square pictures
	trainPerClass = 1000
	testPerClass  = 200
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: subset FOLDER-OF-THE-FULL-SET FOLDER-TO-WRITE")
	}
	full, err := dataset.LoadImages(args[0])
	if err != nil {
		return err
	}
	if full.Train.Dim != side*side {
		return fmt.Errorf("subset: %s: pictures of %d pixels, not %d", args[0], full.Train.Dim, side*side)
	}
	if err := write(&full.Train, trainPerClass, filepath.Join(args[1], "train")); err != nil {
		return err
	}
	return write(&full.Test, testPerClass, filepath.Join(args[1], "t10k"))
}

// write writes the first perClass pictures of each class.
func write(s *dataset.Split, perClass int, stem string) error {
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
			return fmt.Errorf("subset: class %d has only %d of the wanted %d pictures", class, n, perClass)
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
