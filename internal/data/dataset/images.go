package dataset

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// LoadImages reads a set in MNIST's layout from a directory: the files {train,t10k}-{images-idx3,labels-idx1}-ubyte,
// each plain or gzip-compressed with .gz appended to its name.
func LoadImages(dir string) (*Examples, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	return loadImages(os.DirFS(dir), dir, dir)
}

// The prefixes of the file names of the two parts.
var splitStems = [2]string{"train", "t10k"}

// loadImages reads both parts concurrently, because decompression is most of the work.
func loadImages(fsys fs.FS, dir, name string) (*Examples, error) {
	var splits [2]Split
	testDone := make(chan error, 1)
	go func() {
		var err error
		splits[1], err = loadSplit(fsys, dir, splitStems[1])
		testDone <- err
	}()
	var err error
	splits[0], err = loadSplit(fsys, dir, splitStems[0])
	testErr := <-testDone
	if err == nil {
		err = testErr
	}
	if err != nil {
		return nil, err
	}
	if splits[0].Dim != splits[1].Dim {
		return nil, corrupt(dir, "training images have %d pixels, but test images have %d",
			splits[0].Dim, splits[1].Dim)
	}
	if splits[1].Classes > splits[0].Classes {
		return nil, corrupt(dir, "a test label is class %d, but the largest training label is %d", splits[1].Classes-1,
			splits[0].Classes-1)
	}
	splits[1].Classes = splits[0].Classes
	return &Examples{Name: name, Train: splits[0], Test: splits[1]}, nil
}

func loadSplit(fsys fs.FS, dir, stem string) (Split, error) {
	images, err := findIDX(fsys, dir, stem+"-images-idx3-ubyte")
	if err != nil {
		return Split{}, err
	}
	labels, err := findIDX(fsys, dir, stem+"-labels-idx1-ubyte")
	if err != nil {
		return Split{}, err
	}
	// Read the labels first: they are small, and errors are common there.
	labelDims, labelData, err := readIDX(fsys, labels, filepath.Join(dir, labels), 1)
	if err != nil {
		return Split{}, err
	}
	dims, pixels, err := readIDX(fsys, images, filepath.Join(dir, images), 3)
	if err != nil {
		return Split{}, err
	}
	if dims[0] != labelDims[0] {
		return Split{}, corrupt(filepath.Join(dir, labels), "has %d labels for the %d images in %s", labelDims[0],
			dims[0], images)
	}
	return Split{
		N:       dims[0],
		Dim:     dims[1] * dims[2],
		Classes: int(slices.Max(labelData)) + 1,
		Pixels:  pixels,
		Labels:  labelData,
	}, nil
}

// findIDX returns the name of a file in the directory: the plain one, which loads faster, or the one with .gz.
func findIDX(fsys fs.FS, dir, name string) (string, error) {
	for _, candidate := range []string{name, name + ".gz"} {
		if info, err := fs.Stat(fsys, candidate); err == nil && !info.Mode().IsRegular() {
			return "", corrupt(filepath.Join(dir, candidate), "is not a regular file")
		} else if err == nil {
			return candidate, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", readError(filepath.Join(dir, candidate), "the file", err)
		}
	}
	return "", &FileError{Path: dir, Problem: fmt.Sprintf("holds neither %s nor %s.gz", name, name), Kind: ErrMissing}
}
