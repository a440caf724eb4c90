package machine

import (
	"runtime"
	"testing"
)

// TestInUse checks that InUse counts goroutines and retained memory.
func TestInUse(t *testing.T) {
	const held = 32 << 20
	before := ResourcesInUse()
	rows := make([]byte, held)
	after := ResourcesInUse()
	runtime.KeepAlive(rows)
	if before.Goroutines < 2 || before.HeapBytes <= 0 {
		t.Errorf("implausible resources in use: %+v", before)
	}
	// A collection may have freed memory of other tests, but never the retained bytes.
	if after.HeapBytes < held {
		t.Errorf("InUse reports %d bytes while %d are retained", after.HeapBytes, held)
	}
}
