package registry_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/registry/conformance"
)

func openFolder(t testing.TB, dir string) *registry.Folder {
	t.Helper()
	c, err := registry.OpenFolder(dir)
	must(t, err)
	c.Poll = time.Millisecond
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

func TestFolder(t *testing.T) {
	conformance.Catalogs(t, conformance.CatalogSubject{
		Name: "folder",
		Make: func(t testing.TB) (func(t testing.TB) registry.Catalog, func(string)) {
			dir := t.TempDir() + "/a/b"
			return func(t testing.TB) registry.Catalog { return openFolder(t, dir) },
				func(name string) { must(t, os.Remove(filepath.Join(dir, name, "facts.lock"))) }
		},
	})
}

// TestFolderLeftovers: what dead processes have left is no job, is in nobody's way, and is deleted; what is somebody
// else's stays.
func TestFolderLeftovers(t *testing.T) {
	dir := t.TempDir()
	for _, left := range []string{"one/.job.7-1.tmp", "one/facts.lock", ".removed-two-7/job", "Mine/job", "two"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, left)), 0o777))
		must(t, os.WriteFile(filepath.Join(dir, left), []byte("left"), 0o666))
	}
	c := openFolder(t, dir)
	all, err := c.List(t.Context())
	if err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
	must(t, c.Create(t.Context(), "one", []byte("r")))
	must(t, c.Remove(t.Context(), "one", []byte("r")))
	for name, there := range map[string]bool{"one": false, ".removed-two-7": false, "Mine": true, "two": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFolderDamaged: a job whose files cannot be read is named, and hides no other.
func TestFolderDamaged(t *testing.T) {
	dir := t.TempDir()
	c := openFolder(t, dir)
	for _, name := range []string{"one", "two"} {
		must(t, c.Create(t.Context(), name, []byte("r")))
	}
	must(t, os.Mkdir(filepath.Join(dir, "one", "state"), 0o777))
	all, err := c.List(t.Context())
	if err != nil || len(all) != 2 || all[0].Err == nil || strings.Contains(all[0].Err.Error(), "\n") ||
		all[1].Err != nil {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := c.Find(t.Context(), "one"); err == nil || errors.Is(err, registry.ErrNoJob) {
		t.Errorf("%v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o666))
	if _, err := registry.OpenFolder(filepath.Join(dir, "file")); err == nil {
		t.Error("a file is a folder")
	}
}
