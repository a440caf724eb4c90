package dataset

import (
	"errors"
	"io/fs"
	"os"
)

// Examples is a set of labelled examples, either pictures of one size or rows of numbers, divided into training and
// test parts.
type Examples struct {
	Name        string // "embedded Fashion-MNIST", or the directory it was read from
	Train, Test Split
	Scaling     *Scaling // of rows of numbers; nil for pictures
}

// Split is one part of a set. The class of example i is Labels[i] < Classes. A picture is Pixels[i*Dim : (i+1)*Dim],
// row by row, from 0 for the background to 255. A row of numbers is Features[i*Dim : (i+1)*Dim]. The slice of the other
// kind is nil.
type Split struct {
	N        int       // examples, at least 1
	Dim      int       // pixels or features per example; the same in both parts of a set
	Classes  int       // the same in both parts of a set
	Pixels   []uint8   // N × Dim
	Features []float32 // N × Dim, with approximately zero mean and unit variance
	Labels   []uint8   // N
}

// Sample returns n of the examples, evenly distributed, or all if there are no more.
func (s *Split) Sample(n int) Split {
	if n >= s.N {
		return *s
	}
	some := Split{N: n, Dim: s.Dim, Classes: s.Classes}
	for i := range n {
		at := i * s.N / n
		if s.Pixels != nil {
			some.Pixels = append(some.Pixels, s.Pixels[at*s.Dim:(at+1)*s.Dim]...)
		}
		if s.Features != nil {
			some.Features = append(some.Features, s.Features[at*s.Dim:(at+1)*s.Dim]...)
		}
		some.Labels = append(some.Labels, s.Labels[at])
	}
	return some
}

// Bytes returns the memory size of the set.
func (e *Examples) Bytes() (n int64) {
	for _, s := range []*Split{&e.Train, &e.Test} {
		n += int64(len(s.Pixels) + 4*len(s.Features) + len(s.Labels))
	}
	return n
}

// Image returns the pixels of picture i.
func (s *Split) Image(i int) []uint8 { return s.Pixels[i*s.Dim : (i+1)*s.Dim : (i+1)*s.Dim] }

// Row returns the features of example i.
func (s *Split) Row(i int) []float32 { return s.Features[i*s.Dim : (i+1)*s.Dim : (i+1)*s.Dim] }

// Open loads the embedded set for "", otherwise the directory at path: CoverType if it contains covtrain.csv or
// covtrain.csv.gz, else pictures.
func Open(path string) (*Examples, error) {
	if path == "" {
		return Embedded()
	}
	if err := checkDir(path); err != nil {
		return nil, err
	}
	if hasCovertype(path) {
		return LoadCovertype(path)
	}
	return LoadImages(path)
}

// checkDir returns an error unless the path is a directory.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &FileError{
			Path: dir,
			Problem: "no such directory; choose one with the four idx files of an image set, or with covtrain.csv " +
				"and covtest.csv", Kind: ErrMissing,
		}
	case err != nil:
		return readError(dir, "the folder", err)
	case !info.IsDir():
		return &FileError{
			Path: dir,
			Problem: "is a file; choose the directory with the four idx files of an image set, or with covtrain.csv " +
				"and covtest.csv", Kind: ErrMissing,
		}
	}
	return nil
}
