package logserver

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestDirRemoved checks that a stream directory removed during the check, as trimming to the end does, is not damage.
func TestDirRemoved(t *testing.T) {
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
		if err := checkDir(dir, maxDepth); err != nil {
			t.Error(err)
			break
		}
	}
	cancel()
	<-over
}
