//go:build unix

package modelfile

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// TestOpenPipe checks that special files are rejected without waiting for a writer.
func TestOpenPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	for _, name := range []string{path, filepath.Dir(path), os.DevNull} {
		opened := make(chan error, 1)
		go func() {
			_, err := Open(name)
			opened <- err
		}()
		select {
		case err := <-opened:
			if !errors.Is(err, perdure.ErrUsage) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: Open blocks", name)
		}
	}
}
