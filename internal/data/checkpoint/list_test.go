package checkpoint

import (
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// TestLook: List determines a store's contents from names and sizes.
func TestLook(t *testing.T) {
	fsys := newFolder(t)
	if found, err := List(
		ckpt(fsys),
	); err != nil ||
		len(found.Checkpoints)+len(found.Unreferenced)+len(found.Other) > 0 {
		t.Errorf("an empty store has %+v, %v", found, err)
	}
	published(t, fsys, 1, 20)
	cut := published(t, fsys, 1, 40).Segments[1].File
	published(t, fsys, 2, 30)
	odd := key{1, 10}.manifest()
	started := "." + key{2, 50}.manifest() + ".7-1.tmp"
	loose := key{2, 30}.segment(0, 9)
	for _, name := range []string{cut, odd, started, loose, "notes"} {
		overwrite(t, fsys, "ckpt/"+name, []byte("x"))
	}
	found, err := List(ckpt(fsys))
	must(t, err)
	var kept, wrong []string
	for i := range found.Checkpoints {
		k := &found.Checkpoints[i]
		kept = append(kept, k.File)
		for _, d := range k.Defects() {
			wrong = append(wrong, d.String())
		}
		if k.IsComplete() != (len(k.Defects()) == 0) {
			t.Errorf("%s is whole: %t, but its defects are %v", k.File, k.IsComplete(), k.Defects())
		}
	}
	if want := []string{
		key{2, 30}.manifest(), key{1, 40}.manifest(), key{1, 20}.manifest(), odd,
	}; !slices.Equal(kept, want) {
		t.Errorf("kept %v, want %v", kept, want)
	}
	if len(wrong) != 2 || !strings.HasPrefix(wrong[0], cut+": it has 1 bytes, not ") ||
		!strings.HasPrefix(wrong[1], odd+": it does not begin with ") {
		t.Errorf("defects %q", wrong)
	}
	if len(found.Unreferenced) != 2 || found.Unreferenced[0].File != started || found.Unreferenced[1].File != loose ||
		found.Unreferenced[1].Bytes != 1 || !slices.Equal(found.Other, []string{"notes"}) {
		t.Errorf("loose files %v, other files %v", found.Unreferenced, found.Other)
	}
}

// TestLookRunning: running checkpoints are found by their numbers. Files that an unreadable one may need remain:
// segments of rows that are newer than those of the one before it.
func TestLookRunning(t *testing.T) {
	fsys := newFolder(t)
	published(t, fsys, 1, 20)
	publishedRunning(t, fsys, 1, 2)
	publishedRunning(t, fsys, 1, 4) // names files 3 and 4
	publishedRunning(t, fsys, 1, 7)
	file := func(number uint64) string { return rowsKey{1, 1, number}.segment(1) }
	started := "." + file(8) + ".7-1.tmp"
	for _, name := range []string{file(3), RunningFile(7), started, file(9)} {
		overwrite(t, fsys, "ckpt/"+name, []byte("x"))
	}
	found, err := List(ckpt(fsys))
	must(t, err)
	var kept, wrong []string
	for i := range found.Checkpoints {
		kept = append(kept, found.Checkpoints[i].File)
		for _, d := range found.Checkpoints[i].Defects() {
			wrong = append(wrong, d.File)
		}
	}
	want := []string{RunningFile(7), RunningFile(4), RunningFile(2), key{1, 20}.manifest()}
	if !slices.Equal(kept, want) {
		t.Errorf("kept %v, want %v", kept, want)
	}
	if !slices.Equal(wrong, []string{RunningFile(7), file(3)}) {
		t.Errorf("defects in %v", wrong)
	}
	k := &found.Checkpoints[1]
	if k.Cut != 20 || k.Number != 4 || len(k.Files()) != 4 || k.CheckJob("job-1") != nil || k.CheckJob("x") == nil {
		t.Errorf("%+v", k)
	}
	for _, c := range []struct {
		n         int
		newer     bool
		stay, not []string
	}{
		{0, false, nil, []string{file(1), file(7), started, file(9)}},
		{1, false, []string{file(1), file(3), file(4), file(7), file(9)}, []string{started}},
		{2, false, []string{file(3), file(4), file(7), file(9)}, []string{file(2), started}},
		{2, true, []string{file(3), file(4), file(7), file(9), started}, []string{file(2)}},
		{4, true, []string{file(1), file(2), file(6), started}, nil},
	} {
		r := found.PlanRemoval(c.n, c.newer)
		for _, name := range c.stay {
			if slices.Contains(r.Files, name) {
				t.Errorf("keeping %d (%t): %s would be deleted", c.n, c.newer, name)
			}
		}
		for _, name := range c.not {
			if !slices.Contains(r.Files, name) {
				t.Errorf("keeping %d (%t): %s would remain", c.n, c.newer, name)
			}
		}
	}
	clock, err := SegmentClock(ckpt(fsys), FileRef{File: file(4)})
	if err != nil || clock != 20 {
		t.Errorf("it was started at clock %d, %v", clock, err)
	}
	furthest, err := MaxClock(ckpt(fsys), &found.Checkpoints[1].Running) // its newest files are readable
	if err != nil || furthest != 3 {
		t.Errorf("some shard has %d clocks, %v", furthest, err)
	}
	_, err = SegmentClock(ckpt(fsys), FileRef{File: file(3)})
	wantErr(t, err, ErrCorrupt, file(3))
}

// TestAudit: an Audit reports where a file is damaged, even in more than one place, and compares the tables' rows with
// the manifest.
func TestAudit(t *testing.T) {
	fsys := newFolder(t)
	m := published(t, fsys, 1, 20)
	audit := NewAudit(ckpt(fsys))
	rows, wrong, whole := audit.Checkpoint(m)
	size := m.Segments[0].Bytes + m.Segments[1].Bytes
	if !whole || len(wrong) > 0 || !slices.Equal(rows, []int64{6, 40}) || audit.Bytes != size || audit.Files != 2 {
		t.Errorf("rows %v, wrong %v; %d bytes of %d files were read", rows, wrong, audit.Bytes, audit.Files)
	}
	more, err := Rows(ckpt(fsys), m)
	if err != nil || !slices.Equal(more, rows) {
		t.Errorf("from the start of the files: rows %v, %v", more, err)
	}
	for name, change := range map[string]func(m *Manifest){
		"it has 3 rows from row 0 of table w; of the table's 6 rows, shard 0 must have 2 from row " +
			"0": func(m *Manifest) {
			m.Job.Shards = 3
		},
		"its table 1 is e, which differs from that table in g000001-c0000000020.manifest": func(m *Manifest) {
			m.Tables[1].Dim = 3
		},
		"it is not the segment that g000001-c0000000020.manifest names": func(m *Manifest) {
			m.Segments[1].Seq++
		},
	} {
		other := m
		other.Tables, other.Segments = slices.Clone(m.Tables), slices.Clone(m.Segments)
		change(&other)
		_, wrong, whole := NewAudit(ckpt(fsys)).Checkpoint(other)
		if whole || !slices.ContainsFunc(wrong, func(d Defect) bool { return strings.Contains(d.String(), name) }) {
			t.Errorf("%s: whole %t, wrong %v", name, whole, wrong)
		}
	}
	file := "ckpt/" + m.Segments[1].File
	b, err := fsys.ReadFile(file)
	must(t, err)
	b[len(b)-9] ^= 1   // the last section ends with 4 zeros, and a checksum of 4 bytes
	b[len(b)-500] ^= 1 // another section
	overwrite(t, fsys, file, b)
	if _, wrong, whole = NewAudit(ckpt(fsys)).Checkpoint(m); whole || len(wrong) != 2 ||
		!strings.Contains(wrong[1].String(), "state plane 3 of table e") {
		t.Errorf("whole: %t; wrong: %v", whole, wrong)
	}
}

// removals deletes checkpoints with a crash at each step and counts the remaining ones that lack a file.
func removals(t *testing.T, remove func(fsys disk.FS, r Removal) error) (broken int) {
	t.Helper()
	for step := 1; ; step++ {
		finished := false
		for seed := range uint64(10) {
			fsys := newFolder(t)
			for _, cut := range []perdure.Clock{20, 40, 60} {
				published(t, fsys, 1, cut)
			}
			found, err := List(ckpt(fsys))
			must(t, err)
			fsys.FailAfter(step)
			finished = remove(fsys, found.PlanRemoval(1, false)) == nil
			fsys.Crash(rand.New(rand.NewPCG(seed, uint64(step))))
			found, err = List(ckpt(fsys))
			must(t, err)
			if found.Checkpoints[0].Cut != 60 {
				t.Fatalf("step %d: the newest has clock %d", step, found.Checkpoints[0].Cut)
			}
			for i := range found.Checkpoints {
				if !found.Checkpoints[i].IsComplete() {
					broken++
				}
			}
		}
		if finished {
			return broken
		}
	}
}

// TestRemoveCrashes: after a power failure during a deletion, every checkpoint whose manifest remains is complete.
// Negative control: the opposite order must be detected.
func TestRemoveCrashes(t *testing.T) {
	if n := removals(t, func(fsys disk.FS, r Removal) error { return Remove(ckpt(fsys), r) }); n > 0 {
		t.Errorf("%d times a remaining checkpoint lacks files", n)
	}
	wrong := removals(t, func(fsys disk.FS, r Removal) error {
		for _, name := range slices.Concat(r.Files, r.Manifests) {
			if err := fsys.Remove(path.Join("ckpt", name)); err != nil {
				return err
			}
		}
		return fsys.SyncDir("ckpt")
	})
	if wrong == 0 {
		t.Error("deleting the manifests last was not detected")
	}
}
