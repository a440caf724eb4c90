package checkpoints

import (
	"bytes"
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/rundir"
)

// cutShort returns b without its last byte.
func cutShort(b []byte) []byte { return b[:len(b)-1] }

// pruneCases list which of five checkpoints stay. The second and the fourth follow the previous ones.
var pruneCases = []struct {
	name   string
	keep   int
	file   string // the damaged file; "": none
	change func([]byte) []byte
	stay   []string // see holds; nil: all
	says   []string
}{
	{
		"one", 1, "", nil,
		[]string{"50"},
		[]string{"keep clock 50: complete: ", " 4 checkpoints, 12 files in all, "},
	},
	{
		"two", 2, "", nil,
		[]string{"50", "40", "30s"},
		[]string{"keep clock 50: complete: ", "keep clock 40: complete: ", " 3 checkpoints, 7 files in all, "},
	},
	{"five", 5, "", nil, nil, []string{"keep clock 10: complete: ", "nothing to delete\n"}},
	{"six", 6, "", nil, nil, []string{"keep clock 10: complete: ", "nothing to delete\n"}},
	{"all", 0, "", nil, nil, []string{"nothing to delete\n"}},
	{
		"the newest is cut", 1, segmentName(50, 1), cutShort,
		[]string{"50", "40", "30s"},
		[]string{"keep clock 50: damaged\n  " + segmentName(50, 1) + ", header: truncated", "keep clock 40: complete"},
	},
	{
		"a byte of the newest is another", 1, segmentName(50, 1), flipped(-16),
		[]string{"50", "40", "30s"},
		[]string{"keep clock 50: damaged\n  " + segmentName(50, 1) + ", bytes ", "keep clock 40: complete"},
	},
	{
		"an older one is cut", 1, segmentName(20, 1), cutShort,
		[]string{"50"},
		[]string{"keep clock 50: complete: ", " 4 checkpoints, 12 files in all, "},
	},
	{
		"a manifest that says nothing keeps all segments before it", 1, manifestName(50), cutShort,
		[]string{"50", "40", "30s", "20s", "10s"},
		[]string{"keep clock 50: damaged\n", " 3 checkpoints, 3 files in all, 0 B\n"},
	},
	{
		"an older manifest goes with all that only it needs", 2, manifestName(10), cutShort,
		[]string{"50", "40", "30s"},
		[]string{" 3 checkpoints, 7 files in all, "},
	},
}

// TestPrune checks that all checkpoints older than the newest whole ones are deleted, but no file that a remaining one
// needs, whole or not. A dry run prints the same and deletes nothing.
func TestPrune(t *testing.T) {
	for _, c := range pruneCases {
		t.Run(c.name, func(t *testing.T) {
			f, fsys := kept(t, 5)
			if c.file != "" {
				write(t, fsys, c.file, c.change(read(t, fsys, c.file)))
			}
			before := held(t, fsys)
			for _, dry := range []bool{true, false} {
				var out bytes.Buffer
				must(t, f.Prune(&out, c.keep, dry, false))
				for _, says := range c.says {
					if !strings.Contains(out.String(), says) {
						t.Errorf("no %q in\n%s", says, &out)
					}
				}
				want := before
				if !dry && c.stay != nil {
					want = holds(c.stay)
				}
				got := held(t, fsys)
				if !slices.Equal(got, want) {
					t.Errorf("dry %t: files %v, want %v", dry, got, want)
				}
				if dry {
					before = got
				}
			}
		})
	}
}

// TestPruneLoose checks that files of no checkpoint are deleted. In a directory without a run, files that a job may be
// about to publish stay.
func TestPruneLoose(t *testing.T) {
	for _, inRun := range []bool{true, false} {
		f, fsys := kept(t, 2)
		if !inRun {
			f.Run = ""
		}
		newer, started, older := segmentName(30, 0), "."+segmentName(30, 1)+".7-1.tmp", "."+manifestName(10)+".7-2.tmp"
		left := "g000001-c0000000010-s00000-e000002.segment" // written by a holder that was fenced
		for _, name := range []string{newer, started, older, left, "notes.txt"} {
			write(t, fsys, name, []byte("x"))
		}
		var out bytes.Buffer
		must(t, f.List(&out, false))
		if !strings.Contains(out.String(), "not part of a checkpoint, but being written or left over: 4 files (4 "+
			"B)\n") {
			t.Errorf("List:\n%s", &out)
		}
		must(t, f.Prune(&bytes.Buffer{}, 0, false, false))
		want := append(holds([]string{"10", "20"}), "notes.txt")
		if !inRun {
			want = append(want, newer, started)
		}
		slices.Sort(want)
		if got := held(t, fsys); !slices.Equal(got, want) {
			t.Errorf("in a run's directory: %t: files %v, want %v", inRun, got, want)
		}
	}
}

// TestPruneRefused checks invalid requests, and cases in which nothing may be deleted.
func TestPruneRefused(t *testing.T) {
	clock := perdure.Clock(20)
	for name, c := range map[string]struct {
		keep   int
		change func(f *Location, fsys *disk.Memory)
		want   string
		usage  bool
	}{
		"keep -1": {-1, func(*Location, *disk.Memory) {}, "--keep -1; choose 1 or more", true},
		"a clock": {1, func(f *Location, _ *disk.Memory) { f.Clock = &clock }, "remove @20", true},
		"none whole": {1, func(_ *Location, fsys *disk.Memory) {
			remove(t, fsys, segmentName(10, 0), segmentName(30, 0))
		}, "c holds no complete checkpoint; nothing was deleted", false},
		"another version's manifest": {1, func(_ *Location, fsys *disk.Memory) {
			write(t, fsys, manifestName(30), bytes.Replace(read(t, fsys, manifestName(30)), []byte("CHECKPOINT 1"),
				[]byte("CHECKPOINT 9"), 1))
		}, "(format 9, this one reads format 1); use the version that wrote it; nothing is deleted", false},
		"nothing": {1, func(_ *Location, fsys *disk.Memory) {
			remove(t, fsys, held(t, fsys)...)
		}, "c holds no checkpoint", false},
	} {
		f, fsys := kept(t, 3)
		c.change(f, fsys)
		before := held(t, fsys)
		err := f.Prune(&bytes.Buffer{}, c.keep, false, false)
		if !oneLine(err, c.want) || errors.Is(err, perdure.ErrUsage) != c.usage {
			t.Errorf("%s: %v; want %s", name, err, c.want)
		}
		if got := held(t, fsys); !slices.Equal(got, before) {
			t.Errorf("%s: files %v, want %v", name, got, before)
		}
	}
}

func remove(t *testing.T, fsys disk.FS, names ...string) {
	t.Helper()
	for _, name := range names {
		must(t, fsys.Remove(path.Join("c", name)))
	}
}

// TestPruneAlive checks that nothing is deleted while the run is running, even if only its coordinator is alive.
func TestPruneAlive(t *testing.T) {
	f, fsys := kept(t, 3)
	dir, err := rundir.Create(filepath.Join(t.TempDir(), "run"))
	must(t, err)
	f.Run = dir.Path()
	before := held(t, fsys)
	for _, dry := range []bool{true, false} {
		err := f.Prune(&bytes.Buffer{}, 1, dry, false)
		if !oneLine(err, "still running, in pid ") || !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("running run: %v", err)
		}
	}
	if got := held(t, fsys); !slices.Equal(got, before) {
		t.Errorf("files %v, want %v", got, before)
	}
	must(t, dir.Close())
	must(t, f.Prune(&bytes.Buffer{}, 1, false, false))
	if got := held(t, fsys); !slices.Equal(got, holds([]string{"30"})) {
		t.Errorf("after its end: files %v", got)
	}
}

// TestPruneClaimed checks that a store without a run's directory keeps all checkpoints while its run may be running,
// unless --force is set. The run has ended if it has left its model. A dry run deletes nothing.
func TestPruneClaimed(t *testing.T) {
	f, fsys := kept(t, 3)
	f.Run = ""
	body := []byte(`{"version":1,"id":"one","workload":"mf"}` + "\n")
	write(t, fsys, claimName, disk.Seal(claimKind, claimVersion, body))
	before := held(t, fsys)
	refused := func(want string) {
		t.Helper()
		err := f.Prune(&bytes.Buffer{}, 1, false, false)
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("claimed store: %v", err)
		}
		if now := held(t, fsys); !slices.Equal(now, before) {
			t.Errorf("files %v, want %v", now, before)
		}
	}
	refused("it belongs to job one (mf), which may still be running")
	must(t, f.Prune(&bytes.Buffer{}, 1, true, false))
	write(t, fsys, claimName, []byte("x"))
	refused("cannot read its " + claimName)
	write(t, fsys, rundir.ModelFile, []byte("x"))
	must(t, f.Prune(&bytes.Buffer{}, 2, false, false))
	remove(t, fsys, rundir.ModelFile)
	f.Force = true
	must(t, f.Prune(&bytes.Buffer{}, 1, false, false))
	if found, err := f.find(); err != nil || len(found.Checkpoints) != 1 {
		t.Errorf("%d checkpoints are left, %v", len(found.Checkpoints), err)
	}
}
