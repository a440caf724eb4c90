package checkpoint

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/table"
)

// rowsOfTwo returns a store with a running checkpoint of two files per shard, those of shard 1, and a function that
// restores shard 1.
func rowsOfTwo(t *testing.T) (fsys *disk.Memory, files []FileRef, restore func([]FileRef) error) {
	t.Helper()
	fsys = newFolder(t)
	m := publishedRunning(t, fsys, 1, 2)
	restore = func(files []FileRef) error {
		_, err := RestoreRows(ckpt(fsys), "job-1", 1, files, partsOfTwo())
		return err
	}
	must(t, restore(m.Shards[1].Files))
	return fsys, m.Shards[1].Files, restore
}

// partsOfTwo returns shard 1's parts with initial rows.
func partsOfTwo() []*table.Part {
	return []*table.Part{
		table.New(testTable("w", 6, 3), 0, 7, 3, 3), table.New(testSparse("e", 2), 1, 7, 0, 0),
	}
}

// TestRowsRefuseEveryChange: readers reject any file of selected rows with a changed byte, a truncated one or a missing
// one, and name it.
func TestRowsRefuseEveryChange(t *testing.T) {
	fsys, files, restore := rowsOfTwo(t)
	for _, f := range files {
		name := "ckpt/" + f.File
		good, err := fsys.ReadFile(name)
		must(t, err)
		m := mustLatest(t, fsys)
		refused := func(what string, i int, b []byte) {
			t.Helper()
			overwrite(t, fsys, name, b)
			for how, err := range map[string]error{
				"restored": restore(files), "verified": verifyRunning(fsys, m),
			} {
				if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrOtherVersion) ||
					!strings.Contains(err.Error(), f.File) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("%s: %s %d gives, %s, %v", f.File, what, i, how, err)
				}
			}
		}
		for i := range good {
			refused("truncated to", i, good[:i])
			b := bytes.Clone(good)
			b[i] ^= 1 << (i % 8)
			refused("flipped a bit of byte", i, b)
		}
		refused("extended by", 1, append(bytes.Clone(good), 0))
		must(t, fsys.Remove(name))
		wantErr(t, restore(files), ErrCorrupt, f.File+" is missing")
		wantErr(t, verifyRunning(fsys, m), ErrCorrupt, f.File)
		overwrite(t, fsys, name, good)
	}
	must(t, restore(files))
}

// TestRowsThatAreNotMeant: valid files that are not the expected ones are rejected with the reason.
func TestRowsThatAreNotMeant(t *testing.T) {
	fsys, files, restore := rowsOfTwo(t)
	wantErr(t, restore([]FileRef{files[1], files[0]}), ErrCorrupt, files[0].File+" is listed after "+files[1].File)
	wantErr(t, restore([]FileRef{files[0], files[0]}), ErrCorrupt, files[0].File+" is listed twice")
	wantErr(t, restore([]FileRef{{File: "../" + files[0].File}}), ErrCorrupt, "is not a segment of selected rows")
	wantErr(t, restore([]FileRef{{File: strings.Replace(files[0].File, "n0", "n", 1)}}), ErrCorrupt,
		"is not a segment of selected rows")
	other := slices.Clone(files)
	other[1].CRC++
	wantErr(t, restore(other), ErrCorrupt, files[1].File+": damaged: it is not the segment")
	other[1].Bytes++
	wantErr(t, restore(other), ErrCorrupt, files[1].File+": damaged: ")
	_, err := RestoreRows(ckpt(fsys), "job-2", 1, files, partsOfTwo())
	wantErr(t, err, ErrOtherJob, files[1].File+`: belongs to another job: "job-1", not "job-2"`)
	_, err = RestoreRows(ckpt(fsys), "job-1", 0, files, partsOfTwo())
	wantErr(t, err, ErrCorrupt, "segment of selected rows of shard 0")
	_, err = RestoreRows(ckpt(fsys), "job-1", 1, files, partsOfTwo()[:1])
	wantErr(t, err, ErrCorrupt, files[1].File+": damaged: table 1 is e, but the job has only 1")
	swapped := partsOfTwo()
	slices.Reverse(swapped)
	_, err = RestoreRows(ckpt(fsys), "job-1", 1, files, swapped)
	wantErr(t, err, ErrCorrupt, files[1].File+": damaged: table 0 is w, which differs from the job's table e")
	shifted := partsOfTwo()
	shifted[0] = table.New(shifted[0].Spec, 0, 7, 2, 3)
	_, err = RestoreRows(ckpt(fsys), "job-1", 1, files, shifted)
	wantErr(t, err, ErrCorrupt,
		files[1].File+": damaged: table w has 3 rows from row 3, but the shard has 3 from row 2")

	// Files under the name of another one: of the same shard, of another shard, and of another kind.
	under := func(name, as string) {
		t.Helper()
		b, err := fsys.ReadFile("ckpt/" + name)
		must(t, err)
		overwrite(t, fsys, "ckpt/"+as, b)
	}
	refOf := func(name string) FileRef {
		t.Helper()
		b, err := fsys.ReadFile("ckpt/" + name)
		must(t, err)
		return FileRef{name, int64(len(b)), sumOf(b)}
	}
	for _, of := range []string{files[1].File, rowsKey{1, 1, 1}.segment(0)} {
		under(of, files[0].File)
		wantErr(t, restore([]FileRef{refOf(files[0].File)}), ErrCorrupt, files[0].File)
	}
	spec := testTable("w", 6, 3)
	plain, err := WriteSegment(ckpt(fsys), &Segment{
		Job: "job-1", Generation: 1, Epoch: 1, Cut: 5, Shard: 1,
		Tables: []TableRows{{Spec: spec, First: 3, Image: newImage(spec, 3)}},
	})
	must(t, err)
	under(plain.File, files[0].File)
	wantErr(t, restore([]FileRef{refOf(files[0].File)}), ErrCorrupt,
		files[0].File+": damaged: it is a segment of a checkpoint")

	chosen, err := WriteSegment(ckpt(fsys), &Segment{
		Job: "job-1", Generation: 1, Epoch: 1, Cut: 5, Shard: 1,
		Number: 9, Tables: []TableRows{{Spec: spec, First: 3, Image: newImage(spec, 3)}},
	})
	must(t, err)
	under(chosen.File, plain.File)
	chosen.File = plain.File
	job := testJob()
	_, err = Restore(ckpt(fsys), Manifest{Job: job, Generation: 1, Cut: 5, Segments: []SegmentRef{chosen}}, 1, nil)
	wantErr(t, err, ErrCorrupt, plain.File+": damaged: it has only selected rows")
}

// TestRowsThatCannotBe: impossible segments of selected rows are rejected even if all checksums are correct.
func TestRowsThatCannotBe(t *testing.T) {
	fsys, files, restore := rowsOfTwo(t)
	spec, sparse := testTable("w", 6, 3), testSparse("e", 2)
	img := newImage(sparse, 2)
	img.IDs[0][0], img.IDs[0][1] = 7, 7
	ref, err := WriteSegment(ckpt(fsys), &Segment{
		Job: "job-1", Generation: 1, Epoch: 1, Shard: 1, Number: 3,
		Tables: []TableRows{
			{Spec: spec, First: 3, Stream: streamOf(spec, newImage(spec, 3))},
			{Spec: sparse, Image: img},
		},
	})
	must(t, err)
	wantErr(t, restore([]FileRef{ref.Self()}), ErrCorrupt, ref.File+": damaged: table e contains a row twice")

	b, err := fsys.ReadFile("ckpt/" + files[0].File)
	must(t, err)
	for at, change := range map[int]struct {
		to   byte
		want string
	}{
		72: {0, "invalid header: kind 3"},   // no number
		10: {2, "invalid header: kind 2"},   // a number, but not a segment of selected rows
		11: {1, "invalid header: kind 259"}, // no kind
		79: {1, "it is not the segment"},    // another number
	} {
		changed := bytes.Clone(b)
		changed[at] = change.to
		overwrite(t, fsys, "ckpt/"+files[0].File, reseal(changed))
		wantErr(t, restore(files), ErrCorrupt, change.want)
	}
	for what, s := range map[string]*Segment{
		"it follows one": {Number: 1, Follows: &files[0]},
		"its image":      {Number: 1, Tables: []TableRows{{Spec: spec, Image: newImage(sparse, 1)}}},
	} {
		if _, err := WriteSegment(ckpt(newFolder(t)), s); err == nil {
			t.Errorf("%s: it was written", what)
		}
	}
}

// TestRowsOfNoFile: without files, a shard is restored to its initial rows.
func TestRowsOfNoFile(t *testing.T) {
	parts := partsOfTwo()
	want := rowsBytes(parts)
	l, err := RestoreRows(ckpt(newFolder(t)), "job-1", 1, nil, parts)
	must(t, err)
	if len(l.Segments) != 0 || !slices.Equal(l.FileIndex[0], []int32{-1, -1, -1}) || len(l.FileIndex[1]) != 0 ||
		rowsBytes(parts) != want {
		t.Errorf("%+v", l)
	}
}

func rowsBytes(parts []*table.Part) (all string) {
	for _, p := range parts {
		ids, rows := rowsOf(p)
		for _, id := range ids {
			all += rows[id]
		}
	}
	return all
}

// TestChosenRowsRefuseEveryChange: the segment reader also rejects damaged segments of selected rows.
func TestChosenRowsRefuseEveryChange(t *testing.T) {
	fsys := newFolder(t)
	f, err := writeRows(fsys, 2, 1, 3)
	must(t, err)
	chosen, err := fsys.ReadFile("ckpt/" + f.File)
	must(t, err)
	look := func(int, metaTable, []table.Run) (rowWriter, error) { return nil, nil }
	s, sum, err := readFile(ckpt(fsys), f.File, look)
	must(t, err)
	if s.Number != 3 || s.Seed != 7 || sum != f.CRC || s.Follows != nil || len(s.Applied) != 3 ||
		string(s.States[1]) != "state" || s.Cut != perdure.Clock(15) {
		t.Errorf("read %+v", s)
	}
	refusesEveryChange(t, chosen)
}
