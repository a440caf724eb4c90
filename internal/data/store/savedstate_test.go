package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

var key = slotstate.Key{Slot: 1, Generation: 2, Incarnation: 3, Number: 4}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func folder(t *testing.T, fsys *disk.Memory) store.Store {
	s := store.NewDir(fsys, "c")
	must(t, s.Prepare())
	return s
}

// put stores a state under a key.
func put(t *testing.T, in store.Store, k slotstate.Key, state string) (slotstate.Ref, error) {
	return store.PutState(t.Context(), in, k, int64(len(state)), store.WriteBytes([]byte(state)))
}

// TestGolden: an object has the bytes that the documentation of the formats shows.
func TestGolden(t *testing.T) {
	fsys := disk.NewMemory()
	in := folder(t, fsys)
	ref, err := put(t, in, key, "abc")
	must(t, err)
	b, err := fsys.ReadFile("c/state-s00001-g000002-i000003-n000000000004")
	must(t, err)
	const want = "PRDRSLOT\x01\x00\x00\x00\x01\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00abc"
	if string(b[:len(b)-4]) != want || int64(len(b)) != ref.Bytes {
		t.Errorf("the object is %q", b)
	}
}

func TestRoundTrip(t *testing.T) {
	in, other := folder(t, disk.NewMemory()), folder(t, disk.NewMemory())
	for i, n := range []int{0, 1, 1 << 20, 3<<20 + 5} {
		state := bytes.Repeat([]byte{byte(i + 1)}, n)
		k := key
		k.Number = uint64(i + 1)
		ref, err := put(t, in, k, string(state))
		must(t, err)
		must(t, store.CheckState(in, ref.File()))
		must(t, store.CopyState(in, other, ref.File()))
		for _, from := range []store.Store{in, other} {
			if got, err := store.GetState(from, ref); err != nil || !bytes.Equal(got, state) {
				t.Errorf("stored %d bytes, read %d; %v", n, len(got), err)
			}
		}
	}
}

// TestDamage: a changed byte, a truncated object and another state under the same name are detected, in one line that
// names the object.
func TestDamage(t *testing.T) {
	fsys := disk.NewMemory()
	in := folder(t, fsys)
	ref, err := put(t, folder(t, disk.NewMemory()), key, "state")
	must(t, err)
	_, err = store.GetState(in, ref)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), ref.Name()+" of slot 1 is missing in c") {
		t.Errorf("missing object: %v", err)
	}
	_, err = put(t, in, key, "state")
	must(t, err)
	path := "c/" + ref.Name()
	good, err := fsys.ReadFile(path)
	must(t, err)
	wrong := func(what string, b []byte) {
		t.Helper()
		f, err := fsys.Create(path)
		must(t, err)
		_, err = f.Write(b)
		must(t, errors.Join(err, f.Close()))
		_, getErr := store.GetState(in, ref)
		to := folder(t, disk.NewMemory())
		for _, err := range []error{getErr, store.CheckState(in, ref.File()), store.CopyState(in, to, ref.File())} {
			if err == nil || !strings.Contains(err.Error(), ref.Name()) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := store.GetState(to, ref); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the damaged object was copied: %v", what, err)
		}
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		wrong(fmt.Sprintf("byte %d changed", i), bad)
		wrong(fmt.Sprintf("cut to %d", i), good[:i])
	}
	for _, version := range []byte{0, 2} {
		bad := bytes.Clone(good)
		bad[8] = version
		wrong(fmt.Sprintf("version %d", version), bad)
		if _, err := store.GetState(in, ref); !errors.Is(err, disk.ErrOtherVersion) {
			t.Errorf("version %d: %v", version, err)
		}
	}
	_, err = put(t, in, key, "other")
	must(t, err)
	if _, err := store.GetState(in, ref); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("another state under the name: %v", err)
	}
	if err := store.CheckState(in, protocol.SavedFile{File: "a"}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("invalid name: %v", err)
	}
}

// TestCrash: at whatever step the disk fails, the state exists completely or not at all. The same holds if the state is
// no longer needed.
func TestCrash(t *testing.T) {
	ref, err := put(t, folder(t, disk.NewMemory()), key, "state")
	must(t, err)
	in := folder(t, disk.NewMemory())
	ctx, end := context.WithCancel(t.Context())
	over := func(w io.Writer) error {
		end()
		_, err := w.Write([]byte("state"))
		return err
	}
	if _, err := store.PutState(ctx, in, key, 5, over); !errors.Is(err, context.Canceled) {
		t.Errorf("no longer needed: %v", err)
	}
	for _, state := range []string{"stat", "states"} {
		if _, err := store.PutState(t.Context(), in, key, 5, store.WriteBytes([]byte(state))); err == nil {
			t.Errorf("a state of %d bytes was stored as 5", len(state))
		}
	}
	if _, err := store.GetState(in, ref); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state was stored: %v", err)
	}
	failing := errors.New("broken")
	for n := range 5 {
		in := folder(t, disk.NewMemory())
		_, err := put(t, broken{in, n, failing}, key, "state")
		if (err == nil) != (n >= 3) {
			t.Errorf("write %d fails: %v", n, err)
		}
		if _, got := store.GetState(in, ref); (got == nil) != (err == nil) {
			t.Errorf("write %d fails: put %v, got %v", n, err, got)
		}
	}
}

// broken is a store whose nth write fails.
type broken struct {
	store.Store
	n   int
	err error
}

func (b broken) Put(name string, write func(io.Writer) error) error {
	return b.Store.Put(name, func(w io.Writer) error { return write(&brokenWriter{w, b.n, b.err}) })
}

type brokenWriter struct {
	io.Writer
	n   int
	err error
}

func (b *brokenWriter) Write(p []byte) (int, error) {
	if b.n--; b.n < 0 {
		return 0, b.err
	}
	return b.Writer.Write(p)
}
