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

// TestOddFiles: a log of which a file is a pipe, a device, a folder or a link to nothing does
// not start; one that runs ends when a file becomes such. Both name the file.
func TestOddFiles(t *testing.T) {
	w := newServerWorld(t, SyncInterval)
	put1(t, open1(t, w), "a")
	whole := t.TempDir()
	w.restart(t, func() { must(t, os.CopyFS(whole, os.DirFS(w.dir))) })
	stream := filepath.Join(streamsFolder, StreamName(job, 1))
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
				continue // it is one
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
	wantError(t, "a log that runs", s.Run(t.Context()), ErrDamaged, path+" is not a regular file; bring a copy")
}

// TestLinkedFiles: a link to a file, or to a folder, is as good as that.
func TestLinkedFiles(t *testing.T) {
	w := newServerWorld(t, SyncInterval)
	l := open1(t, w)
	put1(t, l, "a")
	w.restart(t, func() {
		msgs := filepath.Join(w.dir, streamsFolder, StreamName(job, 1), "msgs")
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

// TestGivenToken: a log that is given its secret has it, whatever becomes of its file url,
// which is mended.
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
			t.Fatalf("after %q its URL is %s", bad, s.URL())
		}
		url, err := ReadURL(dir)
		if err != nil || url != s.URL() {
			t.Errorf("after %q the file has %s, not %s: %v", bad, url, s.URL(), err)
		}
		must(t, s.Close())
	}
}
