//go:build unix

package updatelog

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOddFiles checks that a log does not start if one of its files is a pipe, a device, a directory or a dangling
// link, and that a running log ends when a file is replaced by one. The error names the file.
func TestOddFiles(t *testing.T) {
	w := newServerBackend(t, SyncInterval)
	put1(t, open1(t, w), "a")
	whole := t.TempDir()
	w.restart(t, func() { must(t, os.CopyFS(whole, os.DirFS(w.dir))) })
	stream := filepath.Join(streamsDir, StreamName(job, 1))
	ways := map[string]func(path string) error{
		"named pipe": func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"device":     func(path string) error { return os.Symlink("/dev/zero", path) },
		"folder":     func(path string) error { return os.Mkdir(path, 0o700) },
		"no target":  func(path string) error { return os.Symlink("nothing-there", path) },
		"itself":     func(path string) error { return os.Symlink(path, path) },
	}
	for _, name := range []string{
		URLFile, "lock",
		filepath.Join(stream, "meta.inf"), filepath.Join(stream, "meta.sum"), filepath.Join(stream, "msgs", "1.blk"),
		filepath.Join(stream, "msgs", "index.db"), filepath.Join(stream, "msgs"), stream, "jetstream",
	} {
		for how, put := range ways {
			if how == "folder" && filepath.Ext(name) == "" && name != URLFile && name != "lock" {
				continue // it is a directory
			}
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(whole)))
			path := filepath.Join(dir, name)
			must(t, os.RemoveAll(path))
			must(t, put(path))
			_, err := Serve(dir, ServeOptions{})
			wantError(t, name+", "+how, err, ErrDamaged, path+" is not a ")
		}
	}
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(whole)))
	s, err := Serve(dir, ServeOptions{})
	must(t, err)
	path := filepath.Join(dir, stream, "msgs", "1.blk")
	must(t, os.Remove(path))
	must(t, ways["named pipe"](path))
	wantError(t, "a running log", s.Run(t.Context()), ErrDamaged, path+" is not a regular file")
}

// TestLinkedFiles checks that links to files and to directories work.
func TestLinkedFiles(t *testing.T) {
	w := newServerBackend(t, SyncInterval)
	l := open1(t, w)
	put1(t, l, "a")
	w.restart(t, func() {
		msgs := filepath.Join(w.dir, streamsDir, StreamName(job, 1), "msgs")
		elsewhere := filepath.Join(t.TempDir(), "elsewhere")
		must(t, os.CopyFS(elsewhere, os.DirFS(msgs)))
		must(t, os.RemoveAll(msgs))
		must(t, os.Symlink(elsewhere, msgs))
		must(t, os.Rename(filepath.Join(elsewhere, "1.blk"), filepath.Join(elsewhere, "moved")))
		must(t, os.Symlink("moved", filepath.Join(elsewhere, "1.blk")))
	})
	put1(t, l, "b")
	wantTexts(t, l, Oldest, "a b")
}

// TestGivenToken checks that a log uses the token in its options, whatever its URL file contains, and repairs that
// file.
func TestGivenToken(t *testing.T) {
	dir := t.TempDir()
	file, at := filepath.Join(dir, URLFile), ""
	for _, bad := range []string{"none", "", "\n", "rubbish\n", "nats://other@127.0.0.1:1\n"} {
		if bad != "none" {
			must(t, os.WriteFile(file, []byte(bad), 0o600))
		}
		s, err := Serve(dir, ServeOptions{Listen: "127.0.0.1:" + cmp.Or(at, "0"), Token: "secret"})
		must(t, err)
		if _, at, _ = strings.Cut(s.URL(), "secret@127.0.0.1:"); at == "" {
			t.Fatalf("after URL file %q, the URL is %s", bad, s.URL())
		}
		url, err := ReadURL(dir)
		if err != nil || url != s.URL() {
			t.Errorf("after URL file %q, the file has %s, want %s: %v", bad, url, s.URL(), err)
		}
		must(t, s.Close())
	}
}
