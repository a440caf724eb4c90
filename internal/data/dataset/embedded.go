package dataset

import (
	"embed"
	"io/fs"
	"os"
	"sync"
)

// TestMakeEmbedded creates the files from the full set; embedded/README.txt
// describes them.
//
//go:embed embedded/*.gz
var embeddedFiles embed.FS

// Embedded returns the set inside the binary: the first 1,000 training and the first 200 test pictures of each of
// Fashion-MNIST's ten classes, in the order of the full set. It is unpacked once; all callers share it and must not
// modify it.
func Embedded() (*Examples, error) { return embeddedOnce() }

// ReplaceEmbedded makes Embedded return the pictures of a directory. Only tests call it, before Embedded: a job has
// many processes, and under the race detector each would spend a second unpacking.
func ReplaceEmbedded(dir string) { replacement = os.DirFS(dir) }

var replacement fs.FS

var embeddedOnce = sync.OnceValues(func() (*Examples, error) {
	files, err := replacement, error(nil)
	if files == nil {
		files, err = fs.Sub(embeddedFiles, "embedded")
	}
	if err != nil {
		return nil, err
	}
	return loadImages(files, "embedded", "embedded Fashion-MNIST")
})
