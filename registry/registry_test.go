package registry

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure/disk"
)

var update = flag.Bool("update", false, "write the golden files")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, fsys disk.FS, path string) Registry {
	t.Helper()
	r, err := OpenFile(fsys, path)
	must(t, err)
	return r
}

// each runs the conformance test on every implementation, empty. reopen closes
// a registry and opens it again; it is nil where nothing outlives Close.
func each(t *testing.T, test func(t *testing.T, r Registry, reopen func(Registry) Registry)) {
	file := func(fsys disk.FS, path string) func(t *testing.T) {
		return func(t *testing.T) {
			r := open(t, fsys, path)
			test(t, r, func(r Registry) Registry {
				must(t, r.Close())
				return open(t, fsys, path)
			})
		}
	}
	t.Run("file", file(disk.OS(), t.TempDir()+"/a/b/registry"))
	t.Run("file in memory", file(disk.NewMemory(), "/a/b/registry"))
	t.Run("memory", func(t *testing.T) { test(t, NewMemory(), nil) })
}

func wantDoc(t testing.TB, r Registry, doc string, revision uint64) {
	t.Helper()
	got, at, err := r.Load(t.Context())
	if err != nil || string(got) != doc || at != revision {
		t.Errorf("it holds %q at %d, %v; want %q at %d", got, at, err, doc, revision)
	}
}

func TestCompareAndSwap(t *testing.T) {
	each(t, func(t *testing.T, r Registry, _ func(Registry) Registry) {
		wantDoc(t, r, "", 0)
		if _, err := r.Save(t.Context(), []byte("x"), 1); !errors.Is(err, ErrConflict) {
			t.Errorf("saving over a revision that never was gives %v", err)
		}
		first, err := r.Save(t.Context(), []byte("one\n"), 0)
		must(t, err)
		wantDoc(t, r, "one\n", first)
		if _, err := r.Save(t.Context(), []byte("x"), 0); !errors.Is(err, ErrConflict) {
			t.Errorf("saving over an old revision gives %v", err)
		}
		wantDoc(t, r, "one\n", first)
		second, err := r.Save(t.Context(), nil, first)
		must(t, err)
		if second <= first || first == 0 {
			t.Errorf("revisions %d, then %d", first, second)
		}
		wantDoc(t, r, "", second)
	})
}

func TestDocumentIsCopied(t *testing.T) {
	each(t, func(t *testing.T, r Registry, _ func(Registry) Registry) {
		doc := []byte("one")
		revision, err := r.Save(t.Context(), doc, 0)
		must(t, err)
		doc[0] = 'x'
		got, _, err := r.Load(t.Context())
		must(t, err)
		got[1] = 'x'
		wantDoc(t, r, "one", revision)
	})
}

func TestOneOfManyWritersWins(t *testing.T) {
	each(t, func(t *testing.T, r Registry, _ func(Registry) Registry) {
		const writers = 8
		errs := make([]error, writers)
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() { _, errs[i] = r.Save(t.Context(), []byte{byte(i)}, 0) })
		}
		wg.Wait()
		won := 0
		for i, err := range errs {
			switch {
			case err == nil:
				won++
				wantDoc(t, r, string([]byte{byte(i)}), 1)
			case !errors.Is(err, ErrConflict):
				t.Error(err)
			}
		}
		if won != 1 {
			t.Errorf("%d writers won", won)
		}
	})
}

func TestReopen(t *testing.T) {
	each(t, func(t *testing.T, r Registry, reopen func(Registry) Registry) {
		if reopen == nil {
			t.Skip("nothing outlives Close")
		}
		revision, err := r.Save(t.Context(), []byte("one"), 0)
		must(t, err)
		r = reopen(r)
		wantDoc(t, r, "one", revision)
		revision, err = r.Save(t.Context(), []byte("two"), revision)
		must(t, err)
		wantDoc(t, reopen(r), "two", revision)
	})
}

func TestClosedAndCancelled(t *testing.T) {
	each(t, func(t *testing.T, r Registry, _ func(Registry) Registry) {
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, loadErr := r.Load(cancelled)
		_, saveErr := r.Save(cancelled, nil, 0)
		if !errors.Is(loadErr, context.Canceled) || !errors.Is(saveErr, context.Canceled) {
			t.Errorf("cancelled: Load gives %v, Save gives %v", loadErr, saveErr)
		}
		wantDoc(t, r, "", 0)
		must(t, r.Close())
		must(t, r.Close())
		_, _, loadErr = r.Load(t.Context())
		_, saveErr = r.Save(t.Context(), nil, 0)
		if loadErr == nil || saveErr == nil {
			t.Errorf("closed: Load gives %v, Save gives %v", loadErr, saveErr)
		}
	})
}

func TestCrashAtEveryStep(t *testing.T) {
	for step := 1; ; step++ {
		finished := false
		for seed := range uint64(40) {
			fsys := disk.NewMemory()
			r := open(t, fsys, "registry")
			_, err := r.Save(t.Context(), []byte("one"), 0)
			must(t, err)
			fsys.FailAfter(step)
			_, err = r.Save(t.Context(), []byte("two"), 1)
			finished = err == nil

			// The process is dead, the machine is not: what its successor reads is
			// what is still there when the power fails afterwards.
			if seed%2 == 0 {
				fsys.FailAfter(0)
				_, _, err := open(t, fsys, "registry").Load(t.Context())
				must(t, err)
				read, err := fsys.ReadFile("registry")
				must(t, err)
				fsys.Crash(rand.New(rand.NewPCG(seed, 0)))
				if kept, err := fsys.ReadFile("registry"); err != nil || !bytes.Equal(kept, read) {
					t.Errorf("step %d, seed %d: a power cut took back what was read: %q, %v", step, seed, kept, err)
				}
			} else {
				fsys.Crash(rand.New(rand.NewPCG(seed, 0)))
			}
			doc, revision, err := open(t, fsys, "registry").Load(t.Context())
			got := fmt.Sprintf("%s at %d, %v", doc, revision, err)
			if got != "two at 2, <nil>" && (finished || got != "one at 1, <nil>") {
				t.Errorf("step %d, seed %d: saved %v, then %s", step, seed, finished, got)
			}
		}
		if finished {
			return
		}
	}
}

func TestFileGolden(t *testing.T) {
	const golden = "testdata/registry-1.golden"
	dir := t.TempDir()
	r := open(t, disk.OS(), dir+"/registry")
	_, err := r.Save(t.Context(), []byte("one"), 0)
	must(t, err)
	_, err = r.Save(t.Context(), []byte("{\"two\":\n2}"), 1)
	must(t, err)
	got, err := os.ReadFile(dir + "/registry")
	must(t, err)
	if *update {
		must(t, os.WriteFile(golden, got, 0o666))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("the file is %q, not %q: old registries could not be read", got, want)
	}
}

func TestFileRefusesEveryChange(t *testing.T) {
	good := encode([]byte("some document"), 7)
	fsys := disk.NewMemory()
	refused := func(b []byte, want ...error) {
		t.Helper()
		f, err := fsys.Create("registry")
		must(t, err)
		_, err = f.Write(b)
		must(t, err)
		_, err = OpenFile(fsys, "registry")
		ok := false
		for _, w := range want {
			ok = ok || errors.Is(err, w)
		}
		if !ok || !strings.Contains(err.Error(), "registry: registry: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q gives %v", b, err)
		}
	}
	for i := range good {
		refused(good[:i], ErrCorrupt)
		for bit := range 8 {
			b := bytes.Clone(good)
			b[i] ^= 1 << bit
			refused(b, ErrCorrupt, ErrNewerVersion)
		}
	}
	refused(append(bytes.Clone(good), '\n'), ErrCorrupt)
	refused(disk.Seal(fileKind, 2, nil), ErrNewerVersion)
	refused(disk.Seal(fileKind, 1, []byte("revision 1")), ErrCorrupt)
	refused(disk.Seal(fileKind, 1, []byte("revision 0\n")), ErrCorrupt)
	refused(disk.Seal(fileKind, 1, []byte("version 1\n")), ErrCorrupt)
}

func TestSecondCoordinatorIsRefused(t *testing.T) {
	path := t.TempDir() + "/registry"
	r := open(t, disk.OS(), path)
	_, err := OpenFile(disk.OS(), path)
	if !errors.Is(err, disk.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("registry.lock: locked by another process, pid %d", os.Getpid())) {
		t.Errorf("a second one gives %v", err)
	}
	must(t, r.Close())
	must(t, open(t, disk.OS(), path).Close())
}

func TestLeftTemporariesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".registry.1-1.tmp", ".other.1-1.tmp"} {
		must(t, os.WriteFile(dir+"/"+name, nil, 0o666))
	}
	must(t, open(t, disk.OS(), dir+"/registry").Close())
	names, err := disk.OS().List(dir)
	must(t, err)
	if got := strings.Join(names, " "); got != ".other.1-1.tmp registry.lock" {
		t.Errorf("left %s", got)
	}
}

func FuzzFile(f *testing.F) {
	f.Add(encode([]byte("doc"), 3))
	f.Add([]byte("revision 3\ndoc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, disk.Seal(fileKind, 1, b)} {
			if _, _, err := decode(b); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerVersion) {
				t.Fatalf("an error of no kind: %v", err)
			}
		}
	})
}
