package study

import (
	_ "embed"
	"errors"
	"io/fs"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/humanize"
)

// example is the study that Init writes.
//
//go:embed example.yaml
var example []byte

// Init writes an example study to path. It does not replace an existing file.
func Init(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	switch {
	case errors.Is(err, fs.ErrExist):
		return perdure.Usagef("%s already exists; choose another name: perdure study init other.yaml", path)
	case err != nil:
		return perdure.Usagef("cannot write %s: %w", path, humanize.Cause(err))
	}
	if _, err := f.Write(example); err != nil {
		return errors.Join(err, f.Close(), os.Remove(path))
	}
	return f.Close()
}
