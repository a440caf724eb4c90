package machine

import (
	"runtime"
	"testing"
)

// TestInUse: what a test has in use is counted: itself, and what it holds.
func TestInUse(t *testing.T) {
	const held = 32 << 20
	before := InUse()
	rows := make([]byte, held)
	after := InUse()
	runtime.KeepAlive(rows)
	if before.Goroutines < 2 || before.HeapBytes <= 0 {
		t.Errorf("in use: %+v", before)
	}
	// A collection may have freed what others let go of, but never what is held.
	if after.HeapBytes < held {
		t.Errorf("%d bytes are in use while %d are held", after.HeapBytes, held)
	}
}
