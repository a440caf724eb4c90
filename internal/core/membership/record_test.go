package membership

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What changes the facts does it by the record, which notes that they are to be saved: who
// forgot that would have a view acted on that is not durable.
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
		own := name == "record.go" || strings.HasSuffix(name, "_test.go")
		if is := strings.Contains(string(text), ".dirty"); is && !own || !is && name == "record.go" {
			t.Errorf("%s: what notes that facts changed is in record.go, and only there: see set", name)
		}
	}
}
