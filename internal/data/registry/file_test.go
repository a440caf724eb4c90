package registry

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/perdure/perdure/internal/data/disk"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// someone is a holder with an arbitrary wall-clock time.
var someone = Holder{PID: 7, Host: "box", Since: time.Date(1970, 1, 1, 1, 2, 3, 0, time.UTC)}

func acquire(t testing.TB, r Registry) Lease {
	t.Helper()
	l, err := r.Acquire(t.Context(), someone)
	must(t, err)
	return l
}

func save(t testing.TB, l Lease, doc string, previous uint64) uint64 {
	t.Helper()
	revision, err := l.Save(t.Context(), []byte(doc), previous)
	must(t, err)
	return revision
}

func wantDoc(t testing.TB, r Registry, doc string, revision uint64) {
	t.Helper()
	got, at, err := r.Load(t.Context())
	if err != nil || string(got) != doc || at != revision {
		t.Errorf("got %q at revision %d, error %v; want %q at %d", got, at, err, doc, revision)
	}
}

func wantError(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) || strings.Contains(got.Error(), "\n") {
		t.Errorf("%s: got error %v, want one line that wraps %q", what, got, want)
	}
}

func open(t testing.TB, fsys disk.FS, path string) *File {
	t.Helper()
	r, err := OpenFile(fsys, path)
	must(t, err)
	t.Cleanup(func() { _ = r.Close() }) // the disk may have crashed
	return r
}

// TestCrashAtEveryStep lets a client die at every step between opening and closing. The file must be the old or the new
// one.
func TestCrashAtEveryStep(t *testing.T) {
	life := func(fsys disk.FS) error {
		r, err := OpenFile(fsys, "registry")
		if err != nil {
			return err
		}
		defer r.Close()
		l, err := r.Acquire(t.Context(), someone)
		if err == nil {
			_, err = l.Save(t.Context(), []byte("two"), 1)
		}
		return err
	}
	for step, finished := 1, false; !finished; step++ {
		for seed := range uint64(40) {
			fsys := disk.NewMemory()
			r := open(t, fsys, "registry")
			save(t, acquire(t, r), "one", 0)
			must(t, r.Close())
			put(t, fsys, ".registry.1-1.tmp", "half a fi")
			fsys.FailAfter(step)
			finished = life(fsys) == nil

			// The process died, but not the machine. A document that its successor reads must survive a later power
			// failure.
			if seed%2 == 0 {
				fsys.FailAfter(0)
				successor := &File{fsys: fsys, path: "registry"} // opening would read as well
				_, _, err := successor.Load(t.Context())
				must(t, err)
				read, err := fsys.ReadFile("registry")
				must(t, err)
				fsys.Crash(rand.New(rand.NewPCG(seed, 0)))
				if kept, err := fsys.ReadFile("registry"); err != nil || !bytes.Equal(kept, read) {
					t.Errorf("step %d, seed %d: a power failure reverted a document that was read: %q, %v", step, seed,
						kept, err)
				}
			} else {
				fsys.Crash(rand.New(rand.NewPCG(seed, 0)))
			}
			r = open(t, fsys, "registry")
			doc, revision, err := r.Load(t.Context())
			got := fmt.Sprintf("%s at %d, %v", doc, revision, err)
			if got != "two at 2, <nil>" && (finished || got != "one at 1, <nil>") {
				t.Errorf("step %d, seed %d: saved %v, then %s", step, seed, finished, got)
			}
			save(t, acquire(t, r), "next", revision)
		}
	}
}

func encode(doc []byte, revision uint64) []byte { return append(head(doc, revision), doc...) }

func put(t testing.TB, fsys disk.FS, name, content string) {
	t.Helper()
	f, err := fsys.Create(name)
	must(t, err)
	_, err = f.Write([]byte(content))
	must(t, err)
	must(t, f.Close())
}

// faultyFS is a file system in which a single step fails.
type faultyFS struct {
	disk.FS
	left *int // steps until the failing one
}

var errInjected = errors.New("input/output error")

func (d faultyFS) step() error {
	if *d.left--; *d.left == 0 {
		return errInjected
	}
	return nil
}

func (d faultyFS) Create(path string) (disk.File, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	f, err := d.FS.Create(path)
	return faultyFile{f, d}, err
}

func (d faultyFS) Rename(from, to string) error { return errors.Join(d.step(), d.FS.Rename(from, to)) }

func (d faultyFS) SyncDir(path string) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.FS.SyncDir(path)
}

type faultyFile struct {
	disk.File
	d faultyFS
}

func (f faultyFile) Write(p []byte) (int, error) {
	if err := f.d.step(); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

func (f faultyFile) Sync() error {
	if err := f.d.step(); err != nil {
		return err
	}
	return f.File.Sync()
}

// TestSaveAgain checks that a retried Save succeeds once, whichever step failed, even if that step took effect.
func TestSaveAgain(t *testing.T) {
	for step, finished := 1, false; !finished; step++ {
		left := 0
		m := disk.NewMemory()
		r := open(t, faultyFS{m, &left}, "registry")
		l := acquire(t, r)
		one := save(t, l, "one", 0)
		left = step
		_, err := l.Save(t.Context(), []byte("two"), one)
		left, finished = 0, err == nil
		if err != nil {
			wantError(t, fmt.Sprintf("Save at step %d", step), err, errInjected)
			two := save(t, l, "two", one)
			if two != one+1 {
				t.Errorf("step %d: revision %d after %d", step, two, one)
			}
		}
		wantDoc(t, r, "two", one+1)
		_, err = l.Save(t.Context(), []byte("two"), one)
		wantError(t, "saving again", err, ErrConflict)
		m.Crash(rand.New(rand.NewPCG(uint64(step), 0)))
		wantDoc(t, open(t, m, "registry"), "two", one+1)
	}
}

// TestSaveOtherwise checks that after a Save with an unknown result, another document cannot be saved unnoticed.
func TestSaveOtherwise(t *testing.T) {
	left := 0
	r := open(t, faultyFS{disk.NewMemory(), &left}, "registry")
	l := acquire(t, r)
	left = 5 // the sync of the directory after the rename
	_, err := l.Save(t.Context(), []byte("one"), 0)
	wantError(t, "Save", err, errInjected)
	_, err = l.Save(t.Context(), []byte("other"), 0)
	wantError(t, "another Save", err, ErrConflict)
	wantDoc(t, r, "one", 1)

	left = 2 // the temporary file
	_, err = l.Save(t.Context(), []byte("one"), 1)
	wantError(t, "Save", err, errInjected)
	_, err = l.Save(t.Context(), []byte("one"), 0)
	wantError(t, "a Save over an older revision", err, ErrConflict)
}

// TestLostAfterFailedSave checks that a retried Save does not claim that nothing was saved if the lease ends after a
// Save with an unknown result.
func TestLostAfterFailedSave(t *testing.T) {
	left := 0
	r := open(t, faultyFS{disk.NewMemory(), &left}, "registry")
	l := acquire(t, r)
	left = 5 // the sync of the directory after the rename
	_, err := l.Save(t.Context(), []byte("one"), 0)
	wantError(t, "Save", err, errInjected)
	must(t, l.Release())
	_, err = l.Save(t.Context(), []byte("one"), 0)
	wantError(t, "the same Save", err, ErrOutcomeUnknown)
	_, err = l.Save(t.Context(), []byte("two"), 0)
	if wantError(t, "another Save", err, ErrLost); errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("another Save returned %v", err)
	}
}

func TestFullDisk(t *testing.T) {
	fsys := disk.NewMemory()
	r := open(t, fsys, "registry")
	l := acquire(t, r)
	one := save(t, l, "one", 0)
	fsys.SetLimit(1)
	_, err := l.Save(t.Context(), []byte("two"), one)
	wantError(t, "Save", err, syscall.ENOSPC)
	wantDoc(t, r, "one", one)
	names, err := fsys.List(".")
	must(t, err)
	if len(names) != 1 {
		t.Errorf("left %q", names)
	}
	fsys.SetLimit(0)
	wantDoc(t, r, "two", save(t, l, "two", one))
}

func TestFileGolden(t *testing.T) {
	const golden = "testdata/registry-1.golden"
	dir := t.TempDir()
	r := open(t, disk.OS(), dir+"/registry")
	l := acquire(t, r)
	save(t, l, "{\"two\":\n2}", save(t, l, "one", 0))
	got, err := os.ReadFile(dir + "/registry")
	must(t, err)
	if *update {
		must(t, os.WriteFile(golden, got, 0o666))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("got the file %q, want %q: existing registries would become unreadable", got, want)
	}
}

func TestFileRefusesEveryChange(t *testing.T) {
	good := encode([]byte("some document"), 7)
	fsys := disk.NewMemory()
	refused := func(b []byte, want ...error) {
		t.Helper()
		put(t, fsys, "registry", string(b))
		_, err := OpenFile(fsys, "registry")
		ok := false
		for _, w := range want {
			ok = ok || errors.Is(err, w)
		}
		if !ok || !strings.Contains(err.Error(), "registry: registry: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: unexpected error %v", b, err)
		}
	}
	for i := range good {
		refused(good[:i], ErrCorrupt)
		for bit := range 8 {
			b := bytes.Clone(good)
			b[i] ^= 1 << bit
			refused(b, ErrCorrupt, ErrOtherVersion)
		}
	}
	refused(append(bytes.Clone(good), '\n'), ErrCorrupt)
	refused(disk.Seal(fileKind, FileVersion-1, nil), ErrOtherVersion)
	refused(disk.Seal(fileKind, FileVersion+1, nil), ErrOtherVersion)
	refused(disk.Seal(fileKind, 1, []byte("revision 1")), ErrCorrupt)
	refused(disk.Seal(fileKind, 1, []byte("revision 0\n")), ErrCorrupt)
	refused(disk.Seal(fileKind, 1, []byte("version 1\n")), ErrCorrupt)
}

// TestDamagedWhileOpen checks that a file damaged while its holder is running is not replaced.
func TestDamagedWhileOpen(t *testing.T) {
	fsys := disk.NewMemory()
	r := open(t, fsys, "registry")
	l := acquire(t, r)
	save(t, l, "one", 0)
	put(t, fsys, "registry", "nonsense")
	_, err := l.Save(t.Context(), []byte("two"), 1)
	wantError(t, "Save", err, ErrCorrupt)
	_, _, err = r.Load(t.Context())
	wantError(t, "Load", err, ErrCorrupt)
}

// TestOlderFileIsPutBack checks that a Save is rejected if the file was replaced by an older one.
func TestOlderFileIsPutBack(t *testing.T) {
	fsys := disk.NewMemory()
	r := open(t, fsys, "registry")
	l := acquire(t, r)
	two := save(t, l, "two", save(t, l, "one", 0))
	put(t, fsys, "registry", string(encode([]byte("one"), 1)))
	_, err := l.Save(t.Context(), []byte("three"), two)
	wantError(t, "Save", err, ErrConflict)
	must(t, r.Close())
}

// TestPoll checks that by default a lease checks its lock every 100 ms.
func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := disk.NewMemory()
		r := open(t, fsys, "registry")
		l := acquire(t, r)
		synctest.Wait() // until it polls
		start := time.Now()
		fsys.FailAfter(0)
		<-l.Done()
		if d := time.Since(start); d != defaultPoll {
			t.Errorf("the end of a lease was noticed after %v", d)
		}
		must(t, r.Close())
	})
}

// TestWithoutLocks checks that a single client works on a file system without locks.
func TestWithoutLocks(t *testing.T) {
	r := open(t, struct{ disk.FS }{disk.NewMemory()}, "registry")
	l := acquire(t, r)
	_, err := r.Acquire(t.Context(), someone)
	wantError(t, "a second holder", err, ErrHeld)
	save(t, l, "one", 0)
	must(t, l.Release())
	save(t, acquire(t, r), "two", 1)
	must(t, r.Close())
}

// TestNamesOfHolders checks that the holder in a lock file of any version is named, and that a damaged one is not.
func TestNamesOfHolders(t *testing.T) {
	unknown := "an unknown process"
	for line, want := range map[string]string{
		someone.Line():                      someone.String(),
		"12 my-box 2026-01-02T03:04:05Z":    "pid 12 on my-box since 2026-01-02T03:04:05Z",
		"12":                                unknown,
		"":                                  unknown,
		"12 box":                            unknown,
		"12 box yesterday":                  unknown,
		"x box 2026-01-02T03:04:05Z":        unknown,
		"12 box 2026-01-02T03:04:05Z later": unknown,
		"12\x00":                            unknown,
		strings.Repeat("\x00", 256):         unknown,
	} {
		if got := HolderName(line); got != want {
			t.Errorf("%q names %q, want %q", line, got, want)
		}
	}
	odd := Holder{PID: 1, Host: "two words\n", Since: someone.Since}
	if got := HolderName(odd.Line()); got != "pid 1 on two-words since 1970-01-01T01:02:03Z" {
		t.Errorf("a host name with spaces: got %q", got)
	}
	self := Self()
	if got := HolderName(self.Line()); self.PID != os.Getpid() || got != self.String() {
		t.Errorf("this process is named %q, want %q", got, self)
	}
}

// TestWallClockSetBack checks that the wall clock does not matter: each holder's clock, and its file's time, is an hour
// behind the previous holder's.
func TestWallClockSetBack(t *testing.T) {
	path := t.TempDir() + "/registry"
	now := time.Now()
	var revision uint64
	for hour := range 3 {
		at := now.Add(-time.Duration(hour) * time.Hour)
		r := open(t, disk.OS(), path)
		r.Poll = time.Millisecond
		l, err := r.Acquire(t.Context(), Holder{PID: hour, Host: "box", Since: at})
		must(t, err)
		_, err = open(t, disk.OS(), path).Acquire(t.Context(), Holder{Since: at.Add(-time.Hour)})
		wantError(t, "a second holder", err, ErrHeld)
		doc := fmt.Sprint(hour)
		next := save(t, l, doc, revision)
		must(t, os.Chtimes(path, at, at))
		wantDoc(t, r, doc, next)
		revision = next
		must(t, r.Close())
	}
}

// TestUnusableDirectories checks the one-line error, with the path, for files that cannot be written.
func TestUnusableDirectories(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/file", nil, 0o666))
	must(t, os.Mkdir(dir+"/closed", 0o555))
	must(t, os.Mkdir(dir+"/x.lock", 0o777))
	must(t, os.Mkdir(dir+"/folder", 0o777))
	for path, named := range map[string]string{
		"/file/registry": "/file", "/closed/registry": "/closed/registry", "/closed/a/registry": "/closed/a",
		"/x": "/x.lock", "/folder": "/folder",
	} {
		if os.Getuid() == 0 && strings.HasPrefix(path, "/closed") {
			continue // root may write there
		}
		r, err := OpenFile(disk.OS(), dir+path)
		if err == nil {
			_, err = r.Acquire(t.Context(), someone)
			must(t, r.Close())
		}
		if err == nil || !strings.Contains(err.Error(), dir+named+": ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one line that names %s", path, err, named)
		}
	}
	names, err := disk.OS().List(dir)
	must(t, err)
	if got := strings.Join(names, " "); got != "closed file folder x.lock" {
		t.Errorf("left %s", got)
	}
}

func TestLeftTemporariesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".registry.1-1.tmp", ".other.1-1.tmp"} {
		must(t, os.WriteFile(dir+"/"+name, nil, 0o666))
	}
	reader := open(t, disk.OS(), dir+"/registry") // a reader removes nothing
	names, err := disk.OS().List(dir)
	must(t, err)
	if len(names) != 2 {
		t.Errorf("a reader left %q", names)
	}
	acquire(t, reader)
	names, err = disk.OS().List(dir)
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
			if _, _, err := decode(b); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrOtherVersion) {
				t.Fatalf("unexpected kind of error: %v", err)
			}
		}
	})
}
