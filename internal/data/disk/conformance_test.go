package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// eachFS runs a test on both file systems, each with an empty directory.
func eachFS(t *testing.T, test func(t *testing.T, fsys FS, root string)) {
	t.Run("os", func(t *testing.T) { test(t, OS(), t.TempDir()) })
	t.Run("memory", func(t *testing.T) {
		m := NewMemory()
		must(t, m.MkdirAll("/tmp/work"))
		test(t, m, "/tmp/work")
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, fsys FS, name, content string) {
	t.Helper()
	f, err := fsys.Create(name)
	must(t, err)
	_, err = io.WriteString(f, content)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
}

func wantFile(t *testing.T, fsys FS, name, content string) {
	t.Helper()
	b, err := fsys.ReadFile(name)
	if err != nil || string(b) != content {
		t.Errorf("%s holds %q, %v; want %q", name, b, err, content)
	}
}

func wantNames(t *testing.T, fsys FS, dir string, want ...string) {
	t.Helper()
	got, err := fsys.List(dir)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s holds %q, %v; want %q", dir, got, err, want)
	}
}

func TestReadsWhatWasWritten(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, root string) {
		name := path.Join(root, "a")
		put(t, fsys, name, "long content")
		put(t, fsys, name, "short")
		wantFile(t, fsys, name, "short")
		r, err := fsys.Open(name)
		must(t, err)
		b, err := io.ReadAll(r)
		must(t, err)
		must(t, r.Close())
		if string(b) != "short" {
			t.Errorf("Open reads %q", b)
		}
		if n, err := Size(fsys, name); n != 5 || err != nil {
			t.Errorf("Size = %d, %v", n, err)
		}
	})
}

func TestFolders(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, root string) {
		deep := path.Join(root, "x", "y")
		wantNames(t, fsys, deep)
		must(t, fsys.MkdirAll(deep))
		must(t, fsys.MkdirAll(deep))
		put(t, fsys, path.Join(deep, "b"), "")
		put(t, fsys, path.Join(deep, "a"), "")
		must(t, fsys.MkdirAll(path.Join(deep, "c")))
		wantNames(t, fsys, deep, "a", "b", "c")
		must(t, fsys.SyncDir(deep))
		if err := fsys.MkdirAll(path.Join(deep, "a", "z")); err == nil {
			t.Error("a directory was created below a file")
		}
	})
}

func TestRenameAndRemove(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, root string) {
		a, b := path.Join(root, "a"), path.Join(root, "b")
		put(t, fsys, a, "new")
		put(t, fsys, b, "old")
		must(t, fsys.Rename(a, b))
		wantNames(t, fsys, root, "b")
		wantFile(t, fsys, b, "new")
		must(t, fsys.MkdirAll(path.Join(root, "sub")))
		if err := fsys.Rename(b, path.Join(root, "sub", "b")); err == nil {
			t.Error("renamed from one directory to another")
		}
		must(t, fsys.Remove(b))
		must(t, fsys.Remove(b))
		wantNames(t, fsys, root, "sub")
	})
}

func TestLink(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, root string) {
		a, b := path.Join(root, "a"), path.Join(root, "b")
		put(t, fsys, a, "new")
		must(t, fsys.Link(a, b))
		must(t, fsys.Remove(a))
		wantNames(t, fsys, root, "b")
		wantFile(t, fsys, b, "new")
		put(t, fsys, a, "newer")
		if err := fsys.Link(a, b); !errors.Is(err, fs.ErrExist) {
			t.Errorf("link to an existing name: %v", err)
		}
		wantFile(t, fsys, b, "new")
		must(t, fsys.MkdirAll(path.Join(root, "sub")))
		if err := fsys.Link(b, path.Join(root, "sub", "b")); err == nil {
			t.Error("linked from one directory to another")
		}
	})
}

// unlinked is a file system without links.
type unlinked struct{ FS }

func (unlinked) Link(from, to string) error {
	return &os.LinkError{Op: "link", Old: from, New: to, Err: syscall.EPERM}
}

func TestWriteNewFile(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, root string) {
		for name, fsys := range map[string]FS{"linked": fsys, "unlinked": unlinked{fsys}} {
			p := path.Join(root, name)
			write := func(s string) error {
				return WriteNewFile(fsys, p, func(w io.Writer) error { _, err := io.WriteString(w, s); return err })
			}
			must(t, write("first"))
			if err := write("second"); !errors.Is(err, fs.ErrExist) {
				t.Errorf("%s: second WriteNewFile: %v", name, err)
			}
			wantFile(t, fsys, p, "first")
		}
		wantNames(t, fsys, root, "linked", "unlinked")
	})
}

func TestErrorsNameThePath(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, root string) {
		gone := path.Join(root, "gone")
		_, readErr := fsys.ReadFile(gone)
		_, openErr := fsys.Open(gone)
		_, sizeErr := Size(fsys, gone)
		_, createErr := fsys.Create(path.Join(gone, "a"))
		for what, err := range map[string]error{
			"read": readErr, "open": openErr, "size": sizeErr, "create": createErr,
			"rename": fsys.Rename(gone, path.Join(root, "b")), "link": fsys.Link(gone, path.Join(root, "b")),
			"sync": fsys.SyncDir(gone),
		} {
			if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), gone) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%s gives %v; want one line that contains %s and wraps fs.ErrNotExist", what, err, gone)
			}
		}
	})
}

func TestFileIsClosedOnce(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, root string) {
		f, err := fsys.Create(path.Join(root, "a"))
		must(t, err)
		must(t, f.Close())
		_, writeErr := f.Write([]byte("x"))
		for what, err := range map[string]error{"write": writeErr, "sync": f.Sync(), "close": f.Close()} {
			if !errors.Is(err, fs.ErrClosed) {
				t.Errorf("%s after close gives %v", what, err)
			}
		}
	})
}

func TestWriteFile(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, root string) {
		name := path.Join(root, "a")
		for _, content := range []string{"first", strings.Repeat("second ", 50_000)} {
			must(t, WriteFile(fsys, name, func(w io.Writer) error {
				_, err := io.WriteString(w, content)
				return err
			}))
			wantFile(t, fsys, name, content)
		}
		broken := errors.New("broken")
		err := WriteFile(fsys, name, func(w io.Writer) error {
			names, _ := fsys.List(root)
			if len(names) != 2 {
				t.Errorf("during the write, the directory has %q", names)
			}
			if final, ok := ParseTemporary(names[0]); !ok || final != "a" {
				t.Errorf("TemporaryOf(%q) = %q, %v", names[0], final, ok)
			}
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<20)); err != nil {
				t.Error(err)
			}
			return broken
		})
		if err != broken {
			t.Errorf("got %v", err)
		}
		wantNames(t, fsys, root, "a")
		if b, _ := fsys.ReadFile(name); !strings.HasPrefix(string(b), "second") {
			t.Error("a failed write changed the file")
		}
	})
}

func TestLock(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, root string) {
		name := path.Join(root, "lock")
		held, err := fsys.(Locker).Lock(name, "me")
		must(t, err)
		must(t, held.CheckHeld())
		_, err = fsys.(Locker).Lock(name, "you")
		var locked *LockedError
		if !errors.Is(err, ErrLocked) || !errors.As(err, &locked) || *locked != (LockedError{name, "me"}) {
			t.Errorf("a second lock gives %v", err)
		}
		other, err := fsys.(Locker).Lock(path.Join(root, "other"), "you")
		must(t, err)
		must(t, other.Close())
		must(t, held.Close())
		held, err = fsys.(Locker).Lock(name, "you")
		must(t, err)
		must(t, held.CheckHeld())
		must(t, held.Close())
	})
}

func TestTemporaryOf(t *testing.T) {
	for _, name := range []string{"a", ".a.tmp", "a.1-2.tmp", ".a.1-2.tmpx", ".a.1.tmp", "..1-2.tmp"} {
		if final, ok := ParseTemporary(name); ok {
			t.Errorf("%s counts as a temporary file of %q", name, final)
		}
	}
}
