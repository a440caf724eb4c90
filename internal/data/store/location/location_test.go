package location_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/store/location"
	"github.com/perdure/perdure/internal/data/store/storetest"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"file:///a/b":      "file:///a/b",
		"file:///a/../b//": "file:///b",
		"file:///a%20b":    "file:///a%20b",
		"s3://bucket/x?endpoint=http://127.0.0.1:9&region=r": "s3://bucket/x?endpoint=http://127.0.0.1:9&region=r",
	} {
		l, err := location.Parse(text)
		if err != nil || l.String() != want || !location.Is(text) {
			t.Errorf("%s: %s, %v", text, l, err)
		}
		if again, err := location.Parse(l.String()); err != nil || again != l {
			t.Errorf("%s: %s, %v", l, again, err)
		}
	}
	for _, text := range []string{
		"", "a", "/a/b", "file://a/b", "file:a", "file:///a?x=1", "http://h/x", "file://u:p@/x",
	} {
		if l, err := location.Parse(text); err == nil || !strings.Contains(err.Error(), "file:///DIR") {
			t.Errorf("%q: %s, %v", text, l, err)
		}
	}
	if location.Is("a/b") || location.Is("/file:") {
		t.Error("a folder's name is no location")
	}
}

func TestOpen(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		l, err := location.Parse("file://" + filepath.ToSlash(filepath.Join(t.TempDir(), "a b")))
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
	l, err := location.Parse("s3://bucket/x?endpoint=http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := l.Open(t.Context()); err != nil || s.String() != "s3://bucket/x" {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := os.Stat("s3:"); err == nil {
		t.Error("a folder of that name was made")
	}
}
