package etcd_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/registry"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]struct {
		shown string
		file  bool
	}{
		"/a/registry/facts":              {"/a/registry/facts", true},
		"etcd":                           {"etcd", true},
		"etcd://a:1,b:2/job?ca=/x":       {"etcd://a:1,b:2/job", false},
		"a:b//c":                         {"a:b//c", true},
		"":                               {},
		"http://a:1/job":                 {},
		"etcd://a/job":                   {},
		"etcds://a:1/job":                {},
		"etcd://me:hush@a:1/job?ca=hush": {},
	} {
		l, err := registry.ParseLocation(text)
		if want.shown == "" {
			if !errors.Is(err, perdure.ErrUsage) || strings.Contains(err.Error(), "hush") {
				t.Errorf("%q: %v, %v", text, l, err)
			}
			if _, again := registry.OpenLocation(t.Context(), text); again == nil || again.Error() != err.Error() {
				t.Errorf("%q: OpenLocation returned %v", text, again)
			}
			continue
		}
		_, file := l.File()
		if err != nil || l.String() != want.shown || file != want.file {
			t.Errorf("%q: got %s (file %v), error %v", text, l, file, err)
		}
	}
}

func TestOpen(t *testing.T) {
	r, err := registry.OpenLocation(t.Context(), filepath.Join(t.TempDir(), "a", "facts"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := r.Acquire(t.Context(), registry.Self())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Save(t.Context(), []byte("one"), 0); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if r, err = registry.OpenLocation(t.Context(), "etcd://127.0.0.1:1/job"); err != nil { // no server there
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := r.Load(over); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if r, err := registry.OpenLocation(t.Context(), "etcd://127.0.0.1:1/job?ca=/no/such/file"); r != nil || err == nil {
		t.Errorf("%v, %v", r, err)
	}
}

// TestIdentity checks that the identity does not depend on the order or completeness of the members.
func TestIdentity(t *testing.T) {
	for _, same := range []string{"etcd://a:1,b:2/x/y", "etcd://b:2,a:1/x/y/", "etcd://a:1/x/y?ca=/c"} {
		l, err := registry.ParseLocation(same)
		if err != nil || l.Identity() != "x/y" {
			t.Errorf("%s has the identity %q, error %v", same, l.Identity(), err)
		}
	}
	if l, err := registry.ParseLocation("/a/b"); err != nil || l.Identity() != "/a/b" {
		t.Errorf("%q, %v", l.Identity(), err)
	}
}
