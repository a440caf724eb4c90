package disk

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"sync/atomic"
	"syscall"
)

// temporaries counts the temporary names of this process, so that two writers
// of one path never share one.
var temporaries atomic.Uint64

var temporaryName = regexp.MustCompile(`^\.(.+)\.[0-9]+-[0-9]+\.tmp$`)

// Full reports whether an error says that there was no room on a disk: it may be tried
// again once somebody has made some.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// TemporaryOf returns the name of the file that a temporary file of WriteFile
// was to become. It is false for any other name.
func TemporaryOf(name string) (final string, ok bool) {
	m := temporaryName.FindStringSubmatch(name)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// WriteFile makes or replaces the file at path by what write writes, whole or
// not at all, whenever the machine stops: it writes a temporary file in the
// same folder, syncs and closes it, renames it, and syncs the folder. The
// writer is buffered.
//
// On an error path holds its old content, and no temporary file is left by a
// process that lives; only when the last sync failed may path hold the new
// content already, whole but perhaps not durable.
func WriteFile(fsys FS, filePath string, write func(io.Writer) error) error {
	dir, tmp := temporary(filePath)
	if err := writeSynced(fsys, tmp, write); err != nil {
		return both(err, fsys.Remove(tmp))
	}
	if err := fsys.Rename(tmp, filePath); err != nil {
		return both(err, fsys.Remove(tmp))
	}
	return fsys.SyncDir(dir)
}

// WriteNewFile is WriteFile for a path at which nothing may be yet: else it is fs.ErrExist, and what is
// there stays. Of several writers one succeeds; where the file system knows no links, as FAT's, several may.
func WriteNewFile(fsys FS, filePath string, write func(io.Writer) error) error {
	dir, tmp := temporary(filePath)
	err := writeSynced(fsys, tmp, write)
	if err == nil {
		err = fsys.Link(tmp, filePath)
	}
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EPERM) {
		err = renameNew(fsys, tmp, filePath)
	}
	if err := both(err, fsys.Remove(tmp)); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

func renameNew(fsys FS, tmp, filePath string) error {
	switch _, err := Size(fsys, filePath); {
	case err == nil:
		return failed("create", filePath, fs.ErrExist)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return fsys.Rename(tmp, filePath)
}

// temporary returns the folder of a path, and a name in it that no other writer has.
func temporary(filePath string) (dir, tmp string) {
	dir, name := path.Split(filePath)
	if dir == "" {
		dir = "."
	}
	return dir, path.Join(dir, fmt.Sprintf(".%s.%d-%d.tmp", name, os.Getpid(), temporaries.Add(1)))
}

func writeSynced(fsys FS, filePath string, write func(io.Writer) error) error {
	f, err := createBuffered(fsys, filePath)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	return both(err, f.Close())
}

// createBuffered creates a file that nobody reads before it is synced.
func createBuffered(fsys FS, path string) (File, error) {
	if s, ok := fsys.(streamer); ok {
		return s.createStream(path)
	}
	f, err := fsys.Create(path)
	if err != nil {
		return nil, err
	}
	return &buffered{bufio.NewWriterSize(f, streamStart), f}, nil
}

// buffered is a file that is written in larger pieces.
type buffered struct {
	*bufio.Writer
	f File
}

func (b *buffered) Sync() error {
	if err := b.Flush(); err != nil {
		return err
	}
	return b.f.Sync()
}

func (b *buffered) Close() error { return b.f.Close() }

// both returns what went wrong, in one line.
func both(err, then error) error {
	switch {
	case then == nil:
		return err
	case err == nil:
		return then
	}
	return fmt.Errorf("%w; then %w", err, then)
}

// size seeks to the end where the file can, and else reads it all.
func size(r io.Reader) (int64, error) {
	if s, ok := r.(io.Seeker); ok {
		return s.Seek(0, io.SeekEnd)
	}
	return io.Copy(io.Discard, r)
}

// Size returns the size of the file at path in bytes; a missing file gives
// fs.ErrNotExist.
func Size(fsys FS, filePath string) (int64, error) {
	f, err := fsys.Open(filePath)
	if err != nil {
		return 0, err
	}
	n, err := size(f)
	return n, both(err, f.Close())
}
