package registry

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestOpen: a path is a registry in a file; of what is no path it is said that nobody knows it.
func TestOpen(t *testing.T) {
	r, err := Open(filepath.Join(t.TempDir(), "registry", "facts"))
	must(t, err)
	lease, err := r.Acquire(t.Context(), Self())
	must(t, err)
	if revision, err := lease.Save(t.Context(), []byte("facts"), 0); revision != 1 || err != nil {
		t.Errorf("saved as revision %d: %v", revision, err)
	}
	must(t, r.Close())
	if _, err := Open("zoo://a:1"); err == nil || !strings.Contains(err.Error(), "the kind zoo; name a file") {
		t.Errorf("a kind that nobody knows: %v", err)
	}
}
