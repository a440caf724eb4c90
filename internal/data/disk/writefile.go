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

// temporaries counts the temporary names of this process, so that two writers of one path never share one.
var temporaries atomic.Uint64

var temporaryPattern = regexp.MustCompile(`^\.(.+)\.[0-9]+-[0-9]+\.tmp$`)

// IsFull reports whether an error means that the disk is full. A retry may succeed once space has been freed.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// ParseTemporary returns the name of the file that a temporary file of WriteFile would become. ok is false for any
// other name.
func ParseTemporary(name string) (final string, ok bool) {
	m := temporaryPattern.FindStringSubmatch(name)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// WriteFile atomically creates or replaces the file at path with the bytes that write writes, whenever the machine
// stops. It writes a temporary file in the same directory, syncs and closes it, renames it, and syncs the directory.
// The writer is buffered.
//
// After an error, path has its old content and the temporary file is removed, unless the process dies. Only if the last
// sync failed may path have the new content: complete, but perhaps not durable.
func WriteFile(fsys FS, filePath string, write func(io.Writer) error) error {
	dir, tmp := temporaryPath(filePath)
	if err := writeSynced(fsys, tmp, write); err != nil {
		return joinErrors(err, fsys.Remove(tmp))
	}
	if err := fsys.Rename(tmp, filePath); err != nil {
		return joinErrors(err, fsys.Remove(tmp))
	}
	return fsys.SyncDir(dir)
}

// WriteNewFile is WriteFile for a path that must not exist: otherwise it returns fs.ErrExist and changes nothing. Of
// several concurrent writers one succeeds. On file systems without links, such as FAT, several may succeed.
func WriteNewFile(fsys FS, filePath string, write func(io.Writer) error) error {
	dir, tmp := temporaryPath(filePath)
	err := writeSynced(fsys, tmp, write)
	if err == nil {
		err = fsys.Link(tmp, filePath)
	}
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EPERM) {
		err = renameNew(fsys, tmp, filePath)
	}
	if err := joinErrors(err, fsys.Remove(tmp)); err != nil {
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

// temporaryPath returns the directory of a path and a name in it that no other writer uses.
func temporaryPath(filePath string) (dir, tmp string) {
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
	return joinErrors(err, f.Close())
}

// createBuffered creates a file that is not read before it is synced.
func createBuffered(fsys FS, path string) (File, error) {
	if s, ok := fsys.(streamer); ok {
		return s.createStream(path)
	}
	f, err := fsys.Create(path)
	if err != nil {
		return nil, err
	}
	return &bufferedFile{bufio.NewWriterSize(f, streamStart), f}, nil
}

// bufferedFile is a file with a write buffer.
type bufferedFile struct {
	*bufio.Writer
	f File
}

func (b *bufferedFile) Sync() error {
	if err := b.Flush(); err != nil {
		return err
	}
	return b.f.Sync()
}

func (b *bufferedFile) Close() error { return b.f.Close() }

// joinErrors joins two errors in one line.
func joinErrors(err, then error) error {
	switch {
	case then == nil:
		return err
	case err == nil:
		return then
	}
	return fmt.Errorf("%w; then %w", err, then)
}

// size seeks to the end if the reader can seek, and otherwise reads it all.
func size(r io.Reader) (int64, error) {
	if s, ok := r.(io.Seeker); ok {
		return s.Seek(0, io.SeekEnd)
	}
	return io.Copy(io.Discard, r)
}

// Size returns the size of the file at path in bytes. A missing file is fs.ErrNotExist.
func Size(fsys FS, filePath string) (int64, error) {
	f, err := fsys.Open(filePath)
	if err != nil {
		return 0, err
	}
	n, err := size(f)
	return n, joinErrors(err, f.Close())
}
