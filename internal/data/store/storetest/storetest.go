// Package storetest provides a test that every implementation of store.Store must pass.
package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure/internal/data/store"
)

// Large is larger than any store writes in one piece, and not a multiple of that size.
const Large = 17<<20 + 4321

// Run tests a store. empty returns a new store without objects, before Prepare.
func Run(t *testing.T, empty func(t *testing.T) store.Store) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, s store.Store)
	}{
		{"objects", objects},
		{"new", onlyNew},
		{"large", large},
		{"failing", failing},
		{"missing", missing},
		{"listed", listed},
		{"deleted", deleted},
		{"names", names},
		{"together", together},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := empty(t)
			if all, err := s.List(""); err != nil || len(all) != 0 {
				t.Fatalf("a new store lists %v, %v", all, err)
			}
			for range 2 {
				if err := s.Prepare(); err != nil {
					t.Fatal(err)
				}
			}
			c.test(t, s)
			if started, err := s.Unfinished(); err != nil || len(started) != 0 {
				t.Errorf("unfinished writes remain: %v, %v", started, err)
			}
			if err := s.Sync(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Content returns n pseudorandom bytes that depend only on the seed.
func Content(seed uint64, n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = rng.Read(b) // never fails
	return b
}

// Put stores bytes in pieces whose size is not a power of two.
func Put(s store.Store, name string, b []byte) error {
	return s.Put(name, func(w io.Writer) error {
		for piece := range slices.Chunk(b, 300_001) {
			if _, err := w.Write(piece); err != nil {
				return err
			}
		}
		return nil
	})
}

func put(t *testing.T, s store.Store, name string, b []byte) {
	t.Helper()
	if err := Put(s, name, b); err != nil {
		t.Fatalf("put %s: %v", name, err)
	}
}

// Has checks that an object exists and has that content.
func Has(t *testing.T, s store.Store, name string, want []byte) {
	t.Helper()
	if got, err := store.Read(s, name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes, which differ from the %d stored ones; %v", name, len(got), len(want), err)
	}
	if n, err := store.Size(s, name); err != nil || n != int64(len(want)) {
		t.Errorf("%s has size %d, want %d; %v", name, n, len(want), err)
	}
}

func objects(t *testing.T, s store.Store) {
	for _, n := range []int{0, 1, 5, 70_000, 1<<20 + 1} {
		b := Content(uint64(n), n)
		put(t, s, fmt.Sprint("o", n), b)
		Has(t, s, fmt.Sprint("o", n), b)
	}
	b := Content(9, 12)
	put(t, s, "o70000", b) // the same name again replaces it
	Has(t, s, "o70000", b)
}

// onlyNew lets several goroutines create one object: exactly one succeeds, and the object is its own.
func onlyNew(t *testing.T, s store.Store) {
	const all = 8
	var made [all]error
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { made[i] = s.PutNew("one", Content(uint64(i), 100+i)) })
	}
	wg.Wait()
	first := slices.Index(made[:], nil)
	if first < 0 {
		t.Fatalf("all PutNew failed: %v", made)
	}
	Has(t, s, "one", Content(uint64(first), 100+first))
	made[first] = fs.ErrExist
	for i, err := range made {
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%d and %d: %v", first, i, err)
		}
	}
	if err := s.Delete("one"); err != nil {
		t.Fatal(err)
	}
	if err := s.PutNew("one", nil); err != nil {
		t.Errorf("PutNew after a delete: %v", err)
	}
	Has(t, s, "one", nil)
}

func large(t *testing.T, s store.Store) {
	b := Content(1, Large)
	put(t, s, "large", b)
	Has(t, s, "large", b)
	o, err := s.Open("large")
	if err != nil {
		t.Fatal(err)
	}
	some := make([]byte, 1000) // a reader may close it before the end
	if _, err := io.ReadFull(o, some); err != nil || !bytes.Equal(some, b[:1000]) {
		t.Errorf("its start: %v", err)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}

// failing checks that a failed Put leaves no new object and does not change an existing one.
func failing(t *testing.T, s store.Store) {
	b, broken := Content(2, 100), errors.New("broken")
	put(t, s, "there", b)
	for _, n := range []int{0, 100, Large} {
		for _, name := range []string{"there", "new"} {
			err := s.Put(name, func(w io.Writer) error {
				if _, err := w.Write(make([]byte, n)); err != nil {
					return err
				}
				return broken
			})
			if !errors.Is(err, broken) {
				t.Errorf("%s, after %d bytes: %v", name, n, err)
			}
		}
	}
	Has(t, s, "there", b)
	missing(t, s)
}

func missing(t *testing.T, s store.Store) {
	if _, err := s.Open("new"); !errors.Is(err, fs.ErrNotExist) || store.Retryable(err) {
		t.Errorf("open a missing object: %v", err)
	}
	if _, err := store.Size(s, "new"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "new") {
		t.Errorf("size of a missing object: %v", err)
	}
}

func listed(t *testing.T, s store.Store) {
	want := []store.Entry{
		{Name: "a-1", Bytes: 3}, {Name: "a-10", Bytes: 0}, {Name: "a-2", Bytes: 1}, {Name: "b.x_y", Bytes: 7},
	}
	for _, i := range []int{2, 0, 3, 1} {
		put(t, s, want[i].Name, Content(3, int(want[i].Bytes)))
	}
	for prefix, want := range map[string][]store.Entry{
		"": want, "a": want[:3], "a-1": want[:2], "b.": want[3:], "c": nil,
	} {
		if got, err := s.List(prefix); err != nil || !slices.Equal(got, want) {
			t.Errorf("list %q: %v, want %v; %v", prefix, got, want, err)
		}
	}
}

func deleted(t *testing.T, s store.Store) {
	for _, name := range []string{"a", "b", "c"} {
		put(t, s, name, []byte(name))
	}
	for range 2 {
		if err := s.Delete("a", "never", "c"); err != nil {
			t.Fatal(err)
		}
		if all, err := s.List(""); err != nil || !slices.Equal(all, []store.Entry{{Name: "b", Bytes: 1}}) {
			t.Errorf("left: %v, %v", all, err)
		}
	}
	if err := s.Delete(); err != nil {
		t.Error(err)
	}
}

// names checks that names with a special meaning in some store are rejected.
func names(t *testing.T, s store.Store) {
	for _, name := range []string{
		"", ".", "..", "a/b", "/a", "../a", ".a.1-1.tmp", "ä", "a b", "a?b", strings.Repeat("a", 201),
	} {
		if err := Put(s, name, nil); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("put %q: %v", name, err)
		}
	}
	if all, err := s.List(""); err != nil || len(all) != 0 {
		t.Errorf("listed: %v, %v", all, err)
	}
}

func together(t *testing.T, s store.Store) {
	var all sync.WaitGroup
	for i := range uint64(8) {
		all.Go(func() {
			name := fmt.Sprint("o", i)
			for n := range 3 {
				b := Content(i, 10_000*n)
				if err := Put(s, name, b); err != nil {
					t.Error(err)
				}
				Has(t, s, name, b)
			}
		})
	}
	all.Wait()
}
