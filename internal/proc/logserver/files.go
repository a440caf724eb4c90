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

// A NATS server opens the files of its streams as they come: of a named pipe it waits for who
// would write, for good, of a device it reads without end, and a folder in a file's place it
// passes over, and what was there is gone. So a log looks what its files are before it starts,
// and while it runs: it reads some only when somebody wants what is in them.

// checkFiles returns an error, in one line, that names a file of a log's folder that is none.
func checkFiles(dir string) error {
	for _, name := range []string{updatelog.URLFile, lockFile} {
		if err := checkFile(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return checkFolder(filepath.Join(dir, dataFolder), deepest)
}

// deepest is more than how deep a log's folders are within each other.
const deepest = 8

// checkFolder looks at a folder, which need not be there, and all in it.
func checkFolder(dir string, depth int) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isLink(dir):
		return nil
	case err == nil && info.Mode().IsRegular():
		return nil // what the server tries its disk with, say
	case err != nil || !info.IsDir():
		return notAFile(dir, "folder", err)
	}
	entries, _ := os.ReadDir(dir) // that cannot be read, or is gone by now, and so was a folder
	for _, e := range entries {
		var err error
		path := filepath.Join(dir, e.Name())
		switch filepath.Ext(e.Name()) {
		case "": // no name of a file
			if depth > 0 {
				err = checkFolder(path, depth-1)
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

// checkFile looks at a file, which need not be there.
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
	return fmt.Errorf("%w: %s is not a %s%s; bring a copy of the log back, or begin the job again",
		updatelog.ErrDamaged, path, what, why)
}
