package machine

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemory(t *testing.T) {
	free, known := FreeMemory()
	if all := Memory(); known != (all > 0) || free < 0 || free > float64(all) {
		t.Errorf("free memory is %.0f of %d bytes, known %v", free, all, known)
	}
}

// TestCached checks that file caches are counted and that unparsable lines and a missing file count as 0.
func TestCached(t *testing.T) {
	dir := t.TempDir()
	text := "anon 1000\nactive_file 20\ninactive_file 300\nkernel 7\nslab_reclaimable 4000\nodd\n"
	if err := os.WriteFile(filepath.Join(dir, "memory.stat"), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	if got := cached(dir); got != 4320 {
		t.Errorf("%.0f bytes, want 4320", got)
	}
	if got := cached(filepath.Join(dir, "none")); got != 0 {
		t.Errorf("%.0f bytes for a missing cgroup, want 0", got)
	}
}

func TestNumber(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory.max")
	for text, want := range map[string]bool{"4096\n": true, "max\n": false, "": false} {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if v, ok := number(file); ok != want || ok && v != 4096 {
			t.Errorf("%q: %v, %v", text, v, ok)
		}
	}
}
