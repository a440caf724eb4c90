package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// OpenRegular opens a regular file or a link to one. It immediately rejects anything else as damaged: a pipe may never
// deliver data, and a device may be endless.
func OpenRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := checkRegular(path, info); err != nil {
		return nil, err
	}
	// The file may be replaced before it is open. noWait keeps the opening of a pipe from waiting for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|noWait, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = checkRegular(path, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ReadRegular reads a regular file of at most the given number of bytes.
func ReadRegular(path string, most int64) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = &fs.PathError{
			Op: "read", Path: path,
			Err: fmt.Errorf("%w: it has more than %d bytes", ErrCorrupt, most),
		}
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// checkRegular returns an error unless the file is regular.
func checkRegular(path string, info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	if info.IsDir() {
		return &fs.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
	}
	return &fs.PathError{Op: "open", Path: path, Err: irregularError(modeName(info.Mode()))}
}

// irregularError is the error for a file that is not regular, by its kind. Where a store needs a file, it counts as
// damage.
type irregularError string

func (kind irregularError) Error() string {
	return fmt.Sprintf("it is a %s, not a regular file", string(kind))
}

func (kind irregularError) Unwrap() error { return ErrCorrupt }

// CheckRegular returns an error unless all files are regular and can be opened. It protects libraries that open files
// themselves from waiting at a named pipe. An empty path is skipped.
func CheckRegular(paths ...string) error {
	for _, path := range paths {
		if path == "" {
			continue
		}
		f, err := OpenRegular(path)
		if err != nil {
			return err
		}
		_ = f.Close() // nothing was read
	}
	return nil
}

func modeName(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe"
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}
