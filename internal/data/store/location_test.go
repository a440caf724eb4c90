package store_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/store"
	_ "github.com/perdure/perdure/internal/data/store/s3"
	"github.com/perdure/perdure/internal/data/store/storetest"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"file:///a/b":      "file:///a/b",
		"file:///a/../b//": "file:///b",
		"file:///a%20b":    "file:///a%20b",
		"s3://bucket/x?endpoint=http://127.0.0.1:9&region=r": "s3://bucket/x?endpoint=http://127.0.0.1:9&region=r",
	} {
		l, err := store.ParseLocation(text)
		if err != nil || l.String() != want || !store.IsLocation(text) {
			t.Errorf("%s: %s, %v", text, l, err)
		}
		if again, err := store.ParseLocation(l.String()); err != nil || again != l {
			t.Errorf("%s: %s, %v", l, again, err)
		}
	}
	for _, text := range []string{
		"", "a", "/a/b", "file://a/b", "file:a", "file:///a?x=1", "http://h/x", "file://u:p@/x",
	} {
		if l, err := store.ParseLocation(text); err == nil || !strings.Contains(err.Error(), "file:///DIR") {
			t.Errorf("%q: %s, %v", text, l, err)
		}
	}
	if store.IsLocation("a/b") || store.IsLocation("/file:") {
		t.Error("a directory name is not a location")
	}
}

func TestOpen(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		l, err := store.ParseLocation("file://" + filepath.ToSlash(filepath.Join(t.TempDir(), "a b")))
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
	l, err := store.ParseLocation("s3://bucket/x?endpoint=http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := l.Open(t.Context()); err != nil || s.String() != "s3://bucket/x" {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := os.Stat("s3:"); err == nil {
		t.Error("opening created a directory of that name")
	}
}
