package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// OpenRegular opens a regular file, or what a link leads to if that is one. Anything
// else is refused at once, as damaged: a pipe may never have anything to read, and a
// device may have no end.
func OpenRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(path, info); err != nil {
		return nil, err
	}
	// What it is may change until it is open; to open a pipe is then not to wait for
	// who would write.
	f, err := os.OpenFile(path, os.O_RDONLY|noWait, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = regular(path, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ReadRegular reads a regular file no longer than a bound, in bytes.
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
			Err: fmt.Errorf("%w: it has more than the %d bytes that are read", ErrCorrupt, most),
		}
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// regular says what is wrong with a file that is none to be read.
func regular(path string, info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	if info.IsDir() {
		return &fs.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
	}
	return &fs.PathError{Op: "open", Path: path, Err: irregular(kindOf(info.Mode()))}
}

// irregular is the kind of something that is not a regular file. Where a store needs a file, it counts as damage.
type irregular string

func (kind irregular) Error() string {
	return fmt.Sprintf("it is a %s, not a regular file", string(kind))
}

func (kind irregular) Unwrap() error { return ErrCorrupt }

// CheckRegular returns an error unless all files are regular and can be opened. It is for files that another library
// opens, which would wait at a named pipe. An empty path is skipped.
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

func kindOf(mode fs.FileMode) string {
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
