//go:build unix

package shardstore

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// TestDamagedSnapshotFiles checks that damaged snapshot files on a real disk are reported immediately with their names.
func TestDamagedSnapshotFiles(t *testing.T) {
	dir := t.TempDir()
	body := func(w io.Writer) error { _, err := io.WriteString(w, "headrows"); return err }
	file, err := WriteSnapshot(store.NewDir(disk.OS(), dir),
		&SnapshotHeader{Job: "j", Shard: 3, Position: 9, Head: 4, Rows: 4}, body)
	must(t, err)
	path := filepath.Join(dir, file.Name)
	good, err := os.ReadFile(path)
	must(t, err)
	read := func() error {
		return ReadSnapshot(
			store.NewDir(disk.OS(), dir),
			file.Name,
			"j",
			3,
			func(_ *SnapshotHeader, r io.Reader) error {
				_, err := io.Copy(io.Discard, r)
				return err
			},
		)
	}
	must(t, read())
	damages := map[string]func() error{
		"deleted":           func() error { return nil },
		"a named pipe":      func() error { return syscall.Mkfifo(path, 0o666) },
		"a directory":       func() error { return os.Mkdir(path, 0o777) },
		"a link to nothing": func() error { return os.Symlink("nothing-there", path) },
		"a link to itself":  func() error { return os.Symlink(path, path) },
		"a link to no end":  func() error { return os.Symlink("/dev/zero", path) },
		"longer":            func() error { return os.WriteFile(path, append(good[:len(good):len(good)], 0), 0o666) },
		"cut":               func() error { return os.WriteFile(path, good[:len(good)/2], 0o666) },
		"flipped at the end": func() error {
			return os.WriteFile(path, append(good[:len(good)-1:len(good)-1], good[len(good)-1]^1), 0o666)
		},
	}
	for how, damage := range damages {
		must(t, os.RemoveAll(path))
		must(t, damage())
		if err := read(); err == nil || !strings.Contains(err.Error(), file.Name) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want one line with %s", how, err, file.Name)
		}
	}
}
