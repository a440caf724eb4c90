package logserver

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestFoldersGo: folders of a stream that go while they are looked at, as when it is trimmed to
// its end, are no damage.
func TestFoldersGo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "stream")
	over := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			_ = os.MkdirAll(filepath.Join(dir, "msgs", "within"), 0o700)
			_ = os.RemoveAll(filepath.Join(dir, "msgs"))
		}
	}()
	for range 20_000 {
		if err := checkFolder(dir, deepest); err != nil {
			t.Error(err)
			break
		}
	}
	cancel()
	<-over
}
