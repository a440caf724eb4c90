package membership

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDirty checks that all changes of the job record go through recorder, which marks them for saving. Otherwise
// processes could act on a view that is not durable.
func TestDirty(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		own := name == "recorder.go" || strings.HasSuffix(name, "_test.go")
		if is := strings.Contains(string(text), ".dirty"); is && !own || !is && name == "recorder.go" {
			t.Errorf("%s: only recorder.go may mark the job record as changed: see set", name)
		}
	}
}
