package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// writeRows writes a shard's next segment of selected rows: two rows of a dense table and two of a sparse one, with
// values that identify its number.
func writeRows(fsys disk.FS, generation perdure.Generation, shard perdure.ShardID, number uint64) (FileRef, error) {
	spec, sparse := testTable("w", 6, 3), testSparse("e", 2)
	first, last := table.Run{First: 0, Rows: 1}, table.Run{First: 2, Rows: 1}
	img := randomImage(rand.New(rand.NewPCG(number, uint64(shard))), sparse, 3)
	ref, err := WriteSegment(ckpt(fsys), &Segment{
		Job: "job-1", Generation: generation, Epoch: 1, Cut: perdure.Clock(5 * number), Shard: shard, Seq: 15 * number,
		Seed: 7, Number: number, Applied: []perdure.Clock{1, 2, 3}, States: [][]byte{nil, []byte("state"), nil},
		Tables: []TableRows{
			{Spec: spec, First: int64(shard) * 3, Stream: streamOf(spec,
				dense(3, slices.Repeat([]float32{float32(number)}, 9)...), first, last)},
			{Spec: sparse, Stream: streamOf(sparse, img, first, last)},
		},
	})
	return ref.Self(), err
}

// saveRunning writes the segments of a running checkpoint: for each shard a new one and, unless it is the first, one
// that the previous checkpoint had also.
func saveRunning(fsys disk.FS, generation perdure.Generation, number uint64) (Running, error) {
	m := Running{
		Number: number, Job: testJob(), Generation: generation, Clock: perdure.Clock(5 * number),
		Tables:  []perdure.TableSpec{testTable("w", 6, 3), testSparse("e", 2)},
		SavedAt: time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	for shard := range perdure.ShardID(2) {
		s := RunningShard{Shard: shard}
		for n := max(1, number-1); n <= number; n++ {
			f, err := writeRows(fsys, generation, shard, n)
			if err != nil {
				return m, err
			}
			s.Files = append(s.Files, f)
		}
		m.Shards = append(m.Shards, s)
	}
	return m, nil
}

func publishRunning(fsys disk.FS, generation perdure.Generation, number uint64) (Running, error) {
	m, err := saveRunning(fsys, generation, number)
	if err != nil {
		return m, err
	}
	return m, PublishRunning(ckpt(fsys), m)
}

func publishedRunning(t testing.TB, fsys disk.FS, generation perdure.Generation, number uint64) Running {
	t.Helper()
	m, err := publishRunning(fsys, generation, number)
	must(t, err)
	return m
}

func wantRunning(t testing.TB, fsys disk.FS, generation perdure.Generation, number uint64) {
	t.Helper()
	m, err := LatestRunning(ckpt(fsys))
	if err != nil || m.Generation != generation || m.Number != number {
		t.Errorf("LatestRunning gives generation %d, number %d, %v; want %d, %d", m.Generation, m.Number, err,
			generation, number)
	}
}

func TestRunningGolden(t *testing.T) {
	fsys := newFolder(t)
	m := publishedRunning(t, fsys, 2, 3)
	b, err := fsys.ReadFile("ckpt/r000000000003.running")
	must(t, err)
	golden(t, "testdata/running.golden", b)
	b, err = fsys.ReadFile("ckpt/s00001-g000002-e000001-n000000000003.rows")
	must(t, err)
	golden(t, "testdata/segment-chosen.golden", b)
	got, err := LatestRunning(ckpt(fsys))
	must(t, err)
	if fmt.Sprint(got) != fmt.Sprint(m) {
		t.Errorf("published %+v, read %+v", m, got)
	}
	must(t, verifyRunning(fsys, got))
	must(t, got.CheckJob("job-1"))
	wantErr(t, got.CheckJob("job-2"), ErrOtherJob, m.name())
}

// TestRunningIsTheHighestNumber: a stale coordinator can publish neither a lower number, nor a lower generation, nor a
// different manifest with the same number.
func TestRunningIsTheHighestNumber(t *testing.T) {
	fsys := newFolder(t)
	_, err := LatestRunning(ckpt(fsys))
	wantErr(t, err, ErrNoCheckpoint, "ckpt holds no checkpoint")
	_, _, err = LatestCompleteRunning(store.NewDir(fsys, "nowhere"))
	wantErr(t, err, ErrNoCheckpoint, "nowhere")
	publishedRunning(t, fsys, 1, 2)
	m := publishedRunning(t, fsys, 2, 9)
	wantRunning(t, fsys, 2, 9)
	must(t, PublishRunning(ckpt(fsys), m))
	for what, c := range map[string]struct {
		generation perdure.Generation
		number     uint64
		want       string
	}{
		"an earlier number":                       {2, 8, "r000000000008.running: r000000000009.running is newer"},
		"an earlier number of a later generation": {3, 8, "r000000000008.running: r000000000009.running is newer"},
		"an earlier generation":                   {1, 10, "running has generation 2, but the new manifest has 1"},
		"the same number of a later generation":   {3, 9, "r000000000009.running: a different manifest"},
	} {
		if _, err := publishRunning(fsys, c.generation, c.number); !errors.Is(err, perdure.ErrFenced) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", what, err, c.want)
		}
	}
	other := m
	other.Clock++
	wantErr(t, PublishRunning(ckpt(fsys), other), perdure.ErrFenced, "a different manifest")
	wantRunning(t, fsys, 2, 9)

	for _, version := range []int{RunningVersion - 1, RunningVersion + 1} {
		overwrite(t, fsys, "ckpt/"+m.name(), disk.Seal(runningKind, version, []byte("{}")))
		_, err = LatestRunning(ckpt(fsys))
		wantErr(t, err, ErrOtherVersion, fmt.Sprintf("%s: written by another version of Perdure (format %d, "+
			"this one reads format %d); use the version that wrote it", m.name(), version, RunningVersion))
		_, _, err = LatestCompleteRunning(ckpt(fsys))
		wantErr(t, err, ErrOtherVersion, m.name())
	}
	overwrite(t, fsys, "ckpt/"+m.name(), []byte("nothing"))
	wantRunning(t, fsys, 1, 2)
	must(t, fsys.Rename("ckpt/r000000000002.running", "ckpt/r000000000003.running"))
	_, err = LatestRunning(ckpt(fsys))
	wantErr(t, err, ErrNoCheckpoint, m.name())
}

func TestPublishRunningRefuses(t *testing.T) {
	for what, c := range map[string]struct {
		spoil func(fsys disk.FS, m *Running)
		want  string
	}{
		"a shard is missing": {func(_ disk.FS, m *Running) { m.Shards = m.Shards[:1] }, "1 shards, but the job has 2"},
		"a shard twice": {
			func(_ disk.FS, m *Running) { m.Shards[1] = m.Shards[0] },
			"shard 0 is at position 1 of 2",
		},
		"exchanged segments": {func(_ disk.FS, m *Running) {
			m.Shards[0].Files, m.Shards[1].Files = m.Shards[1].Files, m.Shards[0].Files
		}, "segment of selected rows of shard 0"},
		"a segment of a checkpoint": {func(_ disk.FS, m *Running) {
			m.Shards[0].Files[0].File = "g000001-c0000000020-s00000-e000001.segment"
		}, `"g000001-c0000000020-s00000-e000001.segment" is not a segment of selected rows`},
		"a segment twice": {func(_ disk.FS, m *Running) {
			m.Shards[0].Files[1] = m.Shards[0].Files[0]
		}, "s00000-g000001-e000001-n000000000003.rows is listed twice"},
		"the older one last": {func(_ disk.FS, m *Running) { slices.Reverse(m.Shards[1].Files) }, "but is older"},
		"of a later generation": {
			func(_ disk.FS, m *Running) { m.Generation = 0 },
			"n000000000004.rows belongs to a later generation than 0",
		},
		"a missing segment": {func(fsys disk.FS, m *Running) {
			_ = fsys.Remove("ckpt/" + m.Shards[1].Files[0].File)
		}, "s00001-g000001-e000001-n000000000003.rows is missing"},
		"a short segment": {
			func(_ disk.FS, m *Running) { m.Shards[0].Files[1].Bytes++ },
			"s00000-g000001-e000001-n000000000004.rows: damaged: ",
		},
		"no number": {func(_ disk.FS, m *Running) { m.Number = 0 }, "number 0"},
		"another job": {
			func(_ disk.FS, m *Running) { m.Job.ID = "job-2" },
			`belongs to another job: "job-1", not "job-2"`,
		},
		"a bad job":   {func(_ disk.FS, m *Running) { m.Job.Slots = 0 }, "number of workers 0"},
		"a bad table": {func(_ disk.FS, m *Running) { m.Tables[0].Dim = 0 }, "w"},
	} {
		fsys := newFolder(t)
		publishedRunning(t, fsys, 1, 2)
		m, err := saveRunning(fsys, 1, 4)
		must(t, err)
		c.spoil(fsys, &m)
		err = PublishRunning(ckpt(fsys), m)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want %q", what, err, c.want)
		}
		wantRunning(t, fsys, 1, 2)
	}
}

// TestWholeRunning: if the newest running checkpoint names missing or damaged files, these are reported by name and the
// next older complete one is returned.
func TestWholeRunning(t *testing.T) {
	for what, c := range map[string]struct {
		spoil func(fsys disk.FS, m *Running)
		want  string // expected defects; "" if none
		found uint64 // 0: none
	}{
		"nothing": {func(disk.FS, *Running) {}, "", 6},
		"its manifest is damaged": {
			func(fsys disk.FS, m *Running) { flipLast(t, fsys, "ckpt/"+m.name()) },
			"r000000000006.running: checksum mismatch", 4,
		},
		"a segment is missing": {func(fsys disk.FS, m *Running) {
			must(t, fsys.Remove("ckpt/"+m.Shards[1].Files[1].File))
		}, "s00001-g000001-e000001-n000000000006.rows: it is missing", 4},
		"a segment is damaged": {func(fsys disk.FS, m *Running) {
			flipLast(t, fsys, "ckpt/"+m.Shards[0].Files[1].File)
		}, "s00000-g000001-e000001-n000000000006.rows, bytes ", 4},
		"a segment is another one": {func(fsys disk.FS, m *Running) {
			b, err := fsys.ReadFile("ckpt/" + m.Shards[0].Files[0].File)
			must(t, err)
			overwrite(t, fsys, "ckpt/"+m.Shards[0].Files[1].File, b)
		}, "s00000-g000001-e000001-n000000000006.rows: it is not the segment", 4},
		"both are damaged": {func(fsys disk.FS, m *Running) {
			flipLast(t, fsys, "ckpt/"+m.name())
			flipLast(t, fsys, "ckpt/s00000-g000001-e000001-n000000000004.rows")
		}, "r000000000006.running: checksum mismatch … s00000-g000001-e000001-n000000000004.rows, bytes ", 0},
	} {
		fsys := newFolder(t)
		publishedRunning(t, fsys, 1, 4)
		m := publishedRunning(t, fsys, 1, 6)
		c.spoil(fsys, &m)
		got, passed, err := LatestCompleteRunning(ckpt(fsys))
		var said []string
		for _, d := range passed {
			said = append(said, d.String())
		}
		all := strings.Join(said, " ")
		for word := range strings.SplitSeq(c.want, " … ") {
			if !strings.Contains(all, word) {
				t.Errorf("%s: skipped %q; want %q", what, all, c.want)
			}
		}
		if got.Number != c.found || (err == nil) != (c.found > 0) || err != nil && !errors.Is(err, ErrNoCheckpoint) ||
			c.want == "" && len(passed) > 0 {
			t.Errorf("%s: number %d, %v, skipped %q; want %d", what, got.Number, err, all, c.found)
		}
	}
}

// TestRunningOfOtherTables: tables that do not match the manifest are rejected with the reason.
func TestRunningOfOtherTables(t *testing.T) {
	fsys := newFolder(t)
	m := publishedRunning(t, fsys, 1, 2)
	m.Tables = slices.Clone(m.Tables)
	m.Tables[0].Rows = 8
	wantErr(t, verifyRunning(fsys, m), ErrCorrupt,
		"its table 0 is w, which differs from that table in r000000000002.running")
	m.Number = 0
	wantErr(t, verifyRunning(fsys, m), ErrCorrupt, "number 0")
}

func TestPruneRunning(t *testing.T) {
	fsys := newFolder(t)
	published(t, fsys, 1, 20)
	publishedRunning(t, fsys, 1, 2)
	publishedRunning(t, fsys, 2, 4)
	keep := publishedRunning(t, fsys, 2, 6) // names files 5 and 6
	newer := publishedRunning(t, fsys, 2, 7)
	rows := func(generation perdure.Generation, number uint64) string {
		return rowsKey{generation, 1, number}.segment(0)
	}
	temporary := func(name string) string { return "." + name + ".7-1.tmp" }
	_, err := writeRows(fsys, 2, 0, 9) // in flight
	must(t, err)
	for _, name := range []string{
		"notes", temporary("notes"), temporary(rows(1, 8)), temporary(rows(2, 6)), temporary(rows(2, 7)),
		temporary(RunningFile(6)), temporary(RunningFile(7)),
	} {
		overwrite(t, fsys, "ckpt/"+name, nil)
	}
	must(t, PruneRunning(ckpt(fsys), keep, 2))
	got, err := fsys.List("ckpt")
	must(t, err)
	want := []string{
		temporary("notes"), temporary(RunningFile(7)), temporary(rows(2, 7)),
		"g000001-c0000000020-s00000-e000001.segment", "g000001-c0000000020-s00001-e000001.segment",
		"g000001-c0000000020.manifest", "notes", RunningFile(4), RunningFile(6), RunningFile(7),
		rows(2, 3), rows(2, 4), rows(2, 5), rows(2, 6), rows(2, 7), rows(2, 9), // of 4 also
	}
	for number := uint64(3); number <= 7; number++ {
		want = append(want, rowsKey{2, 1, number}.segment(1))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("left\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	must(t, verifyRunning(fsys, mustLatest(t, fsys)))
	overwrite(t, fsys, "ckpt/"+RunningFile(6), []byte("damaged"))
	must(t, PruneRunning(ckpt(fsys), newer, 2)) // 4 is the newest earlier checkpoint that is readable
	must(t, verifyRunning(fsys, mustLatest(t, fsys)))
	must(t, fsys.Remove("ckpt/"+RunningFile(7)))
	if m, passed, err := LatestCompleteRunning(ckpt(fsys)); err != nil || m.Number != 4 || len(passed) != 1 {
		t.Errorf("previous checkpoint: %+v, %v, %v", m, passed, err)
	}

	keep.Number = 5 // never published
	if err := PruneRunning(ckpt(fsys), keep, 2); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("pruning before a missing manifest gives %v", err)
	}
}

// verifyRunning reads all segments of a running checkpoint and returns the first defect.
func verifyRunning(fsys disk.FS, m Running) error {
	if err := m.check(); err != nil {
		return corrupt("%v", err)
	}
	if wrong, whole := NewAudit(ckpt(fsys)).Running(m); !whole {
		return fmt.Errorf("%s: %w", wrong[0].File, wrong[0].Err)
	}
	return nil
}

func mustLatest(t testing.TB, fsys disk.FS) Running {
	t.Helper()
	m, err := LatestRunning(ckpt(fsys))
	must(t, err)
	return m
}

// runningCrashes replaces running checkpoint 3 by checkpoint 4, which shares a file with it.
func runningCrashes(replace func(fsys *disk.Memory) (bool, error)) replacing {
	return replacing{
		old:     func(t testing.TB, fsys disk.FS) { publishedRunning(t, fsys, 1, 3) },
		replace: replace,
		left: func(fsys disk.FS) (bool, error) {
			m, passed, err := LatestCompleteRunning(ckpt(fsys))
			if err == nil && len(passed) > 0 {
				err = fmt.Errorf("%v was skipped", passed)
			}
			if err == nil && m.Number != 3 && m.Number != 4 {
				err = fmt.Errorf("number %d", m.Number)
			}
			return m.Number == 4, err
		},
	}
}

// next writes the two segments that running checkpoint 4 has in addition to those of 3.
func next(fsys disk.FS) (m Running, err error) {
	m, err = LatestRunning(ckpt(fsys))
	if err != nil {
		return m, err
	}
	m.Number, m.Clock = 4, 20
	for i := range m.Shards {
		s := &m.Shards[i]
		f, err := writeRows(fsys, 1, s.Shard, 4)
		if err != nil {
			return m, err
		}
		s.Files = append(s.Files[1:], f)
	}
	return m, nil
}

// TestRunningCrashesAtEveryStep: a crash at any step of writing, publishing and pruning leaves the old running
// checkpoint or the new one complete. Wrong orders are detected.
func TestRunningCrashesAtEveryStep(t *testing.T) {
	bad := runningCrashes(func(fsys *disk.Memory) (bool, error) {
		m, err := next(fsys)
		if err == nil {
			err = PublishRunning(ckpt(fsys), m)
		}
		if err != nil {
			return false, err
		}
		return true, PruneRunning(ckpt(fsys), m, 2)
	}).crashEverywhere(t)
	if bad != nil {
		t.Errorf("%d times, first %s", len(bad), bad[0])
	}
	for what, replace := range map[string]func(fsys *disk.Memory) (bool, error){
		"old files deleted first": func(fsys *disk.Memory) (bool, error) {
			m, err := next(fsys)
			if err == nil {
				err = fsys.Remove("ckpt/" + rowsKey{1, 1, 2}.segment(0))
			}
			if err == nil {
				err = PublishRunning(ckpt(fsys), m)
			}
			return err == nil, err
		},
		"manifest first": func(fsys *disk.Memory) (bool, error) {
			scratch := newFolder(t)
			publishedRunning(t, scratch, 1, 3)
			m, err := next(scratch)
			must(t, err)
			sealed, err := m.encode()
			must(t, err)
			if err := disk.WriteFile(fsys, "ckpt/"+m.name(), func(w io.Writer) error {
				_, err := w.Write(sealed)
				return err
			}); err != nil {
				return false, err
			}
			for _, s := range m.Shards {
				if _, err := writeRows(fsys, 1, s.Shard, 4); err != nil {
					return false, err
				}
			}
			return true, nil
		},
	} {
		if runningCrashes(replace).crashEverywhere(t) == nil {
			t.Errorf("%s: not detected", what)
		}
	}
}
