package logserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/perdure/perdure/internal/data/updatelog"
)

// A NATS server opens its stream files without checking their type. It blocks forever on a named pipe, reads a device
// without end, and ignores a directory where it expects a file, which loses the file's records. So the log checks the
// types of its files before it starts and while it runs: the server reads some files only on demand.

// checkFiles returns an error that names a path in the log's directory that is not a regular file.
func checkFiles(dir string) error {
	for _, name := range []string{updatelog.URLFile, lockFile} {
		if err := checkFile(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return checkDir(filepath.Join(dir, dataDir), maxDepth)
}

// maxDepth is larger than the nesting depth of a log's directories.
const maxDepth = 8

// checkDir checks a directory and everything in it. A missing directory is valid.
func checkDir(dir string, depth int) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isLink(dir):
		return nil
	case err == nil && info.Mode().IsRegular():
		return nil // for example, the server's disk probe
	case err != nil || !info.IsDir():
		return notAFile(dir, "directory", err)
	}
	entries, _ := os.ReadDir(dir) // unreadable, or removed since Stat saw a directory
	for _, e := range entries {
		var err error
		path := filepath.Join(dir, e.Name())
		switch filepath.Ext(e.Name()) {
		case "": // not a file name of the server
			if depth > 0 {
				err = checkDir(path, depth-1)
			}
		case ".blk", ".inf", ".sum", ".db", ".dat":
			if !e.Type().IsRegular() {
				err = checkFile(path)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkFile checks that path is a regular file. A missing file is valid.
func checkFile(path string) error {
	info, err := os.Stat(path)
	if err == nil && info.Mode().IsRegular() || errors.Is(err, fs.ErrNotExist) && !isLink(path) {
		return nil
	}
	return notAFile(path, "regular file", err)
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

func notAFile(path, what string, err error) error {
	why := ""
	if err != nil {
		why = " (" + strings.TrimPrefix(err.Error(), "stat "+path+": ") + ")"
	}
	return fmt.Errorf("%w: %s is not a %s%s; restore a copy of the log, or start the job again",
		updatelog.ErrDamaged, path, what, why)
}
