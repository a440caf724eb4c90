package store_test

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/store/storetest"
)

func TestFolder(t *testing.T) {
	for name, fsys := range map[string]func() disk.FS{
		"disk": disk.OS, "memory": func() disk.FS { return disk.NewMemory() },
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) store.Store {
				return store.NewDir(fsys(), filepath.ToSlash(filepath.Join(t.TempDir(), "a", "b")))
			})
		})
	}
}

// TestFolderCrash: whenever the machine stops, an object is the old one or the new one, complete. Stored objects
// remain, and deleted ones are gone.
func TestFolderCrash(t *testing.T) {
	old, now := storetest.Content(1, 3000), storetest.Content(2, 200_000)
	for step := 1; ; step++ {
		fsys := disk.NewMemory()
		s := store.NewDir(fsys, "d")
		if err := errors.Join(s.Prepare(), storetest.Put(s, "o", old), storetest.Put(s, "gone", old)); err != nil {
			t.Fatal(err)
		}
		fsys.FailAfter(step)
		put := storetest.Put(s, "o", now)
		deleted := s.Delete("gone", "never")
		fsys.Crash(rand.New(rand.NewPCG(uint64(step), 1)))

		all, err := s.List("")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			b, err := store.Read(s, e.Name)
			if err != nil || string(b) != string(old) && (e.Name != "o" || string(b) != string(now)) {
				t.Errorf("step %d: %s has %d bytes, neither the old nor the new content; %v", step, e.Name, len(b), err)
			}
			if e.Name == "o" && put == nil && len(b) == len(old) || e.Name == "gone" && deleted == nil {
				t.Errorf("step %d: %s has its old content although nothing failed", step, e.Name)
			}
		}
		if !slices.ContainsFunc(all, func(e store.Entry) bool { return e.Name == "o" }) {
			t.Errorf("step %d: the object is gone", step)
		}
		started, err := s.Unfinished()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range started {
			if of, ok := store.ParseUnfinished(e.Name); !ok || of != "o" {
				t.Errorf("step %d: unfinished write %+v", step, e)
			}
			if err := s.Delete(e.Name); err != nil {
				t.Fatal(err)
			}
		}
		if left, err := s.Unfinished(); err != nil || len(left) != 0 {
			t.Errorf("step %d: %v remains, %v", step, left, err)
		}
		if put == nil && deleted == nil {
			return
		}
	}
}

// TestFolderSync: an object that was visible at a Sync remains, even if its writer died before its Put returned.
func TestFolderSync(t *testing.T) {
	for step := 1; ; step++ {
		fsys := disk.NewMemory()
		s := store.NewDir(fsys, "d")
		if err := s.Prepare(); err != nil {
			t.Fatal(err)
		}
		fsys.FailAfter(step)
		err := storetest.Put(s, "o", []byte("x"))
		fsys.FailAfter(0)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		before, _ := s.List("")
		fsys.Crash(rand.New(rand.NewPCG(uint64(step), 1)))
		if after, _ := s.List(""); !slices.Equal(before, after) {
			t.Errorf("step %d: %v became %v", step, before, after)
		}
		if err == nil {
			return
		}
	}
}

// TestFolderErrors: each error has the kind that callers act on.
func TestFolderErrors(t *testing.T) {
	fsys := disk.NewMemory()
	s := store.NewDir(fsys, "d")
	if err := s.Prepare(); err != nil {
		t.Fatal(err)
	}
	fsys.SetLimit(10)
	err := storetest.Put(s, "o", make([]byte, 11))
	if !errors.Is(err, store.ErrFull) || !errors.Is(err, syscall.ENOSPC) || !store.Retryable(err) {
		t.Errorf("on a full disk: %v", err)
	}
	if strings.Count(err.Error(), "\n") != 0 {
		t.Errorf("more than one line: %v", err)
	}

	dir := t.TempDir()
	s = store.NewDir(disk.OS(), dir)
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o777); err != nil {
		t.Fatal(err)
	}
	if all, err := s.List(""); err != nil || !slices.Equal(all, []store.Entry{{Name: "sub", Bytes: -1}}) {
		t.Errorf("a directory: %v, %v", all, err)
	}
	if os.Getuid() == 0 {
		return // the superuser is never denied access
	}
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	if err := storetest.Put(s, "o", nil); !errors.Is(err, store.ErrDenied) || !errors.Is(err, fs.ErrPermission) ||
		store.Retryable(err) {
		t.Errorf("put into a read-only directory: %v", err)
	}
}
