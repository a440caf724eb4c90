package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

func testJob() perdure.JobSpec {
	seal, err := perdure.NewSeal(map[string]any{"job": map[string]any{
		"workload": "softmax", "seed": 7,
		"stale_scale": "",
	}, "data": "sha256:ab", "params": map[string]any{"Rate": 0.05}})
	if err != nil {
		panic(err)
	}
	return perdure.JobSpec{
		Seal: seal,

		ID: "job-1", Workload: "softmax", Seed: 7, Slots: 3, Servers: 2, Shards: 2, Clocks: 100,
		Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 20},
	}
}

// save writes both segments of a checkpoint, with values that identify its cut.
func save(fsys disk.FS, generation perdure.Generation, cut perdure.Clock) (Manifest, error) {
	spec, sparse := testTable("w", 6, 3), testSparse("e", 2)
	m := Manifest{
		Job: testJob(), Generation: generation, Cut: cut, Tables: []perdure.TableSpec{spec, sparse},
		SavedAt: time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	for shard := range perdure.ShardID(2) {
		values := slices.Repeat([]float32{float32(cut)}, 9)
		img := randomImage(rand.New(rand.NewPCG(uint64(cut), uint64(shard))), sparse, 20)
		ref, err := WriteSegment(ckpt(fsys), &Segment{
			Job: "job-1", Generation: generation, Epoch: 1, Cut: cut, Shard: shard, Seq: uint64(cut) * 3,
			Applied: []perdure.Clock{cut, cut, cut},
			Tables: []TableRows{
				{Spec: spec, First: int64(shard) * 3, Image: dense(3, values...)},
				{Spec: sparse, Image: img},
			},
		})
		if err != nil {
			return m, err
		}
		m.Segments = append(m.Segments, ref)
	}
	return m, nil
}

func publish(fsys disk.FS, generation perdure.Generation, cut perdure.Clock) (Manifest, error) {
	m, err := save(fsys, generation, cut)
	if err != nil {
		return m, err
	}
	return m, Publish(ckpt(fsys), m)
}

func newFolder(t testing.TB) *disk.Memory {
	fsys := disk.NewMemory()
	must(t, fsys.MkdirAll("ckpt"))
	return fsys
}

func published(t testing.TB, fsys disk.FS, generation perdure.Generation, cut perdure.Clock) Manifest {
	t.Helper()
	m, err := publish(fsys, generation, cut)
	must(t, err)
	return m
}

func wantLatest(t testing.TB, fsys disk.FS, generation perdure.Generation, cut perdure.Clock) {
	t.Helper()
	m, err := Latest(ckpt(fsys))
	if err != nil || m.Generation != generation || m.Cut != cut {
		t.Errorf("Latest gives generation %d, cut %d, %v; want %d, %d", m.Generation, m.Cut, err, generation, cut)
	}
}

// ckpt returns the store that the tests use.
func ckpt(fsys disk.FS) store.Store { return store.NewDir(fsys, "ckpt") }

func overwrite(t testing.TB, fsys disk.FS, name string, content []byte) {
	t.Helper()
	f, err := fsys.Create(name)
	must(t, err)
	_, err = f.Write(content)
	must(t, err)
	must(t, f.Close())
}

func flipLast(t testing.TB, fsys disk.FS, name string) {
	t.Helper()
	b, err := fsys.ReadFile(name)
	must(t, err)
	b[len(b)-1] ^= 1
	overwrite(t, fsys, name, b)
}

func TestManifestGolden(t *testing.T) {
	fsys := newFolder(t)
	m := published(t, fsys, 2, 40)
	b, err := fsys.ReadFile("ckpt/g000002-c0000000040.manifest")
	must(t, err)
	golden(t, "testdata/manifest.golden", b)
	got, err := Latest(ckpt(fsys))
	must(t, err)
	if fmt.Sprint(got) != fmt.Sprint(m) {
		t.Errorf("published %+v, read %+v", m, got)
	}
}

func TestManifestRefusesEveryChange(t *testing.T) {
	fsys := newFolder(t)
	m := published(t, fsys, 2, 40)
	running := publishedRunning(t, fsys, 2, 1)
	for name, decode := range map[string]func([]byte) error{
		m.key().manifest(): func(b []byte) error { _, err := decodeManifest(b); return err },
		running.name():     func(b []byte) error { _, err := decodeRunning(b); return err },
	} {
		good, err := fsys.ReadFile("ckpt/" + name)
		must(t, err)
		must(t, decode(good))
		for i := range good {
			for bit := range 8 {
				b := bytes.Clone(good)
				b[i] ^= 1 << bit
				if err := decode(b); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrOtherVersion) {
					t.Fatalf("%s: bit %d of byte %d flipped gives %v", name, bit, i, err)
				}
			}
			if err := decode(good[:i]); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: truncated to %d gives %v", name, i, err)
			}
		}
	}
}

func TestLatestIsTheHighestGenerationThenCut(t *testing.T) {
	fsys := newFolder(t)
	_, err := Latest(ckpt(fsys))
	wantErr(t, err, ErrNoCheckpoint, "ckpt holds no checkpoint")
	_, err = Latest(store.NewDir(fsys, "nowhere"))
	wantErr(t, err, ErrNoCheckpoint, "nowhere")
	published(t, fsys, 1, 20)
	published(t, fsys, 1, 100)
	wantLatest(t, fsys, 1, 100)
	m := published(t, fsys, 2, 40)
	wantLatest(t, fsys, 2, 40)
	_, err = publish(fsys, 1, 120)
	wantErr(t, err, perdure.ErrFenced, "g000001-c0000000120.manifest: g000002-c0000000040.manifest is newer")
	must(t, Publish(ckpt(fsys), m))

	name := "ckpt/" + m.key().manifest()
	for _, version := range []int{ManifestVersion - 1, ManifestVersion + 1} {
		overwrite(t, fsys, name, disk.Seal(manifestKind, version, []byte("{}")))
		_, err = Latest(ckpt(fsys))
		wantErr(t, err, ErrOtherVersion, fmt.Sprintf("%s: written by another version of Perdure (format %d, "+
			"this one reads format %d); use the version that wrote it", name, version, ManifestVersion))
	}

	overwrite(t, fsys, name, []byte("nothing"))
	wantLatest(t, fsys, 1, 100)
	for cut, want := range map[perdure.Clock]perdure.Generation{m.Cut: m.Generation, 100: 1, 20: 1} {
		got, err := LatestOfCut(ckpt(fsys), cut, want)
		if cut == m.Cut {
			wantErr(t, err, ErrCorrupt, name)
		} else if err != nil || got.Cut != cut || got.Generation != want {
			t.Errorf("of clock %d: %v, %v", cut, got.key(), err)
		}
	}
	_, err = LatestOfCut(ckpt(fsys), 20, 0)
	wantErr(t, err, ErrNoCheckpoint, "clock 20")
}

func TestNothingButDamage(t *testing.T) {
	fsys := newFolder(t)
	m := published(t, fsys, 1, 20)
	flipLast(t, fsys, "ckpt/"+m.key().manifest())
	_, err := Latest(ckpt(fsys))
	wantErr(t, err, ErrNoCheckpoint, m.key().manifest())
	wantErr(t, err, ErrCorrupt, "checksum mismatch")
}

func TestManifestUnderAnotherName(t *testing.T) {
	fsys := newFolder(t)
	m := published(t, fsys, 1, 20)
	must(t, fsys.Rename("ckpt/"+m.key().manifest(), "ckpt/g000001-c0000000040.manifest"))
	_, err := Latest(ckpt(fsys))
	wantErr(t, err, ErrCorrupt, "g000001-c0000000040.manifest: damaged: it describes g000001-c0000000020.manifest")
}

func TestPublishRefuses(t *testing.T) {
	for what, c := range map[string]struct {
		spoil func(fsys disk.FS, m *Manifest)
		want  string
	}{
		"a shard without segment": {
			func(_ disk.FS, m *Manifest) { m.Segments = m.Segments[:1] },
			"1 segments for 2 shards",
		},
		"a shard with two": {
			func(_ disk.FS, m *Manifest) { m.Segments[1] = m.Segments[0] },
			"each shard must have exactly one",
		},
		"segments of another cut": {func(_ disk.FS, m *Manifest) { m.Cut++ }, "is not a segment of shard 0 at"},
		"exchanged segments": {func(_ disk.FS, m *Manifest) {
			m.Segments[0].File, m.Segments[1].File = m.Segments[1].File, m.Segments[0].File
		}, "is not a segment of shard 0 at"},
		"a missing segment": {
			func(fsys disk.FS, m *Manifest) { _ = fsys.Remove("ckpt/" + m.Segments[1].File) },
			"s00001-e000001.segment is missing",
		},
		"a short segment": {
			func(_ disk.FS, m *Manifest) { m.Segments[0].Bytes++ },
			"s00000-e000001.segment: damaged: ",
		},
		"another job": {
			func(_ disk.FS, m *Manifest) { m.Job.ID = "job-2" },
			`belongs to another job: "job-1", not "job-2"`,
		},
		"a bad job": {func(_ disk.FS, m *Manifest) { m.Job.Slots = 0 }, "number of workers 0"},
		"no strategy": {
			func(_ disk.FS, m *Manifest) { m.Job.Recovery = perdure.Recovery{} },
			"unknown recovery strategy",
		},
	} {
		fsys := newFolder(t)
		published(t, fsys, 1, 20)
		m, err := save(fsys, 1, 40)
		must(t, err)
		c.spoil(fsys, &m)
		err = Publish(ckpt(fsys), m)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want %q", what, err, c.want)
		}
		wantLatest(t, fsys, 1, 20)
	}
}

func TestRestoreAndVerify(t *testing.T) {
	fsys := newFolder(t)
	m := published(t, fsys, 1, 20)
	must(t, Verify(ckpt(fsys), m))
	must(t, m.CheckJob("job-1"))
	wantErr(t, m.CheckJob("job-2"), ErrOtherJob, m.key().manifest())
	s, err := Restore(ckpt(fsys), m, 1, nil)
	must(t, err)
	if s.Shard != 1 || s.Tables[0].First != 3 || s.Tables[0].Image.Planes[0][0][8] != 20 {
		t.Errorf("restored %+v", s)
	}
	_, err = Restore(ckpt(fsys), m, 2, nil)
	wantErr(t, err, ErrCorrupt, "segment of shard 2")

	// A valid segment that is not the published one.
	file := "ckpt/" + m.Segments[1].File
	_, err = WriteSegment(ckpt(fsys), &Segment{Job: "job-2", Generation: 1, Epoch: 1, Cut: 20, Shard: 1})
	must(t, err)
	wantErr(t, Verify(ckpt(fsys), m), ErrOtherJob, file)
	_, err = WriteSegment(ckpt(fsys), &Segment{Job: "job-1", Generation: 1, Epoch: 1, Cut: 20, Shard: 1, Seq: 60})
	must(t, err)
	wantErr(t, Verify(ckpt(fsys), m), ErrCorrupt,
		file+": damaged: it is not the segment that "+m.key().manifest()+" names")

	flipLast(t, fsys, file)
	wantErr(t, Verify(ckpt(fsys), m), ErrCorrupt, file)
	must(t, fsys.Remove(file))
	wantErr(t, Verify(ckpt(fsys), m), fs.ErrNotExist, file+" is missing")
}

// TestSegmentsOfOneShape: a manifest distinguishes its segments from others with the same names, sizes and counts,
// whether another process wrote them for the same cut or they belong to other shards.
func TestSegmentsOfOneShape(t *testing.T) {
	fsys := newFolder(t)
	m := published(t, fsys, 1, 20)
	files := []string{"ckpt/" + m.Segments[0].File, "ckpt/" + m.Segments[1].File}
	var was [2][]byte
	for i, file := range files {
		b, err := fsys.ReadFile(file)
		must(t, err)
		was[i] = b
	}
	if len(was[0]) != len(was[1]) {
		t.Fatalf("segments have %d and %d bytes; want equal sizes", len(was[0]), len(was[1]))
	}
	for i, file := range files { // as after an error when copying a directory
		overwrite(t, fsys, file, was[1-i])
	}
	wantErr(t, Verify(ckpt(fsys), m), ErrCorrupt,
		files[0]+": damaged: it is not the segment that "+m.key().manifest()+" names")

	overwrite(t, fsys, files[0], was[0])
	s, err := readSegment(fsys, files[0], nil)
	must(t, err)
	s.Tables[0].Image.Planes[0][0][0]++
	_, err = WriteSegment(ckpt(fsys), s)
	must(t, err)
	_, err = Restore(ckpt(fsys), m, 0, nil)
	wantErr(t, err, ErrCorrupt, files[0]+": damaged: it is not the segment that "+m.key().manifest()+" names")
}

func TestPrune(t *testing.T) {
	fsys := newFolder(t)
	published(t, fsys, 1, 20)
	published(t, fsys, 1, 40)
	keep := published(t, fsys, 2, 30)
	_, err := save(fsys, 2, 40) // in flight
	must(t, err)
	if _, err := WriteSegment(ckpt(fsys), &Segment{Generation: 2, Cut: 30, Epoch: 2}); err != nil {
		t.Fatal(err)
	}
	temporary := func(k key) string { return "." + k.segment(0, 1) + ".7-1.tmp" }
	for _, name := range []string{
		"notes", ".notes.7-1.tmp", temporary(key{1, 40}), temporary(key{2, 30}),
		temporary(key{2, 40}),
	} {
		overwrite(t, fsys, "ckpt/"+name, nil)
	}
	must(t, Prune(ckpt(fsys), keep, 1))
	got, err := fsys.List("ckpt")
	must(t, err)
	want := []string{
		temporary(key{2, 30}), temporary(key{2, 40}), ".notes.7-1.tmp",
		"g000002-c0000000030-s00000-e000001.segment", "g000002-c0000000030-s00001-e000001.segment",
		"g000002-c0000000030.manifest",
		"g000002-c0000000040-s00000-e000001.segment", "g000002-c0000000040-s00001-e000001.segment", "notes",
	}
	if !slices.Equal(got, want) {
		t.Errorf("left\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	must(t, Verify(ckpt(fsys), keep))

	keep.Cut = 35 // never published
	if err := Prune(ckpt(fsys), keep, 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("pruning before a missing manifest gives %v", err)
	}
	wantLatest(t, fsys, 2, 30)
}

// replacing replaces one checkpoint by another.
type replacing struct {
	old     func(t testing.TB, fsys disk.FS)
	replace func(fsys *disk.Memory) (safe bool, err error)
	// left reports whether the store holds the new checkpoint, and checks that it is complete.
	left func(fsys disk.FS) (isNew bool, err error)
}

// crashEverywhere runs replace with a crash at each of its steps and returns the faults it found.
func (c replacing) crashEverywhere(t *testing.T) (bad []string) {
	t.Helper()
	for step := 1; ; step++ {
		var finished bool
		for seed := range uint64(15) {
			fsys := newFolder(t)
			c.old(t, fsys)
			fsys.FailAfter(step)
			safe, err := c.replace(fsys)
			if err != nil && !errors.Is(err, disk.ErrCrashed) {
				t.Fatal(err)
			}
			finished = err == nil
			fsys.Crash(rand.New(rand.NewPCG(seed, uint64(step))))
			isNew, err := c.left(fsys)
			if err != nil || safe && !isNew {
				bad = append(bad, fmt.Sprintf("step %d, seed %d: the new one %v, published %v, %v", step, seed, isNew,
					safe, err))
			}
		}
		if finished {
			return bad
		}
	}
}

// crashEverywhere injects crashes while checkpoint 40 replaces checkpoint 20.
func crashEverywhere(t *testing.T, replace func(fsys *disk.Memory) (safe bool, err error)) (bad []string) {
	t.Helper()
	return replacing{
		old:     func(t testing.TB, fsys disk.FS) { published(t, fsys, 1, 20) },
		replace: replace,
		left: func(fsys disk.FS) (bool, error) {
			m, err := Latest(ckpt(fsys))
			if err == nil {
				err = Verify(ckpt(fsys), m)
			}
			if err == nil && m.Cut != 20 && m.Cut != 40 {
				err = fmt.Errorf("cut %d", m.Cut)
			}
			return m.Cut == 40, err
		},
	}.crashEverywhere(t)
}

func TestCrashAtEveryStep(t *testing.T) {
	bad := crashEverywhere(t, func(fsys *disk.Memory) (bool, error) {
		m, err := publish(fsys, 1, 40)
		if err != nil {
			return false, err
		}
		return true, Prune(ckpt(fsys), m, 1)
	})
	if bad != nil {
		t.Errorf("%d times, first %s", len(bad), bad[0])
	}
}

// TestSegmentCrashesAtEveryStep: a segment that takes several writes is stored completely or not at all, and an older
// file of that name stays intact.
func TestSegmentCrashesAtEveryStep(t *testing.T) {
	spec := testSparse("e", 8)
	old := &Segment{Job: "j", Tables: []TableRows{{Spec: spec, Image: newImage(spec, 1)}}}
	s := &Segment{Job: "j", Tables: []TableRows{{
		Spec:  spec,
		Image: randomImage(rand.New(rand.NewPCG(1, 1)), spec, 3000),
	}}}
	for step := 1; ; step++ {
		finished := false
		for seed := range uint64(5) {
			fsys := newFolder(t)
			_, err := WriteSegment(ckpt(fsys), old)
			must(t, err)
			fsys.FailAfter(step)
			ref, err := WriteSegment(ckpt(fsys), s)
			finished = err == nil
			fsys.Crash(rand.New(rand.NewPCG(seed, uint64(step))))
			got, err := readSegment(fsys, "ckpt/"+key{}.segment(0, 0), nil)
			must(t, err)
			if !sameImage(got.Tables[0].Image, s.Tables[0].Image) &&
				(finished || !sameImage(got.Tables[0].Image, old.Tables[0].Image)) {
				t.Errorf("step %d, seed %d: neither the old segment nor %s", step, seed, ref.File)
			}
		}
		if finished {
			if step < 8 { // create, at least 6 writes, sync, rename, sync
				t.Errorf("only %d steps", step)
			}
			return
		}
	}
}

// Negative controls: the harness above must detect each of these wrong orders.
func TestCrashesCatchWrongOrders(t *testing.T) {
	for what, replace := range map[string]func(fsys *disk.Memory) (bool, error){
		"old one deleted first": func(fsys *disk.Memory) (bool, error) {
			if err := fsys.Remove("ckpt/" + key{1, 20}.manifest()); err != nil {
				return false, err
			}
			_, err := publish(fsys, 1, 40)
			return err == nil, err
		},
		"manifest first": func(fsys *disk.Memory) (bool, error) {
			scratch := newFolder(t)
			m := published(t, scratch, 1, 40)
			sealed, err := m.encode()
			must(t, err)
			f, err := fsys.Create("ckpt/" + m.key().manifest())
			if err != nil {
				return false, err
			}
			if _, err := f.Write(sealed); err != nil {
				return false, err
			}
			if err := f.Sync(); err != nil {
				return false, err
			}
			_, err = publish(fsys, 1, 40)
			return err == nil, err
		},
	} {
		if crashEverywhere(t, replace) == nil {
			t.Errorf("%s: not detected", what)
		}
	}
}

// TestWhatLatestGivesIsDurable: a process dies between renaming the manifest and syncing the directory. Its successor
// reads the manifest, and then the power fails.
func TestWhatLatestGivesIsDurable(t *testing.T) {
	for step := 1; ; step++ {
		finished := false
		for seed := range uint64(15) {
			fsys := newFolder(t)
			published(t, fsys, 1, 20)
			fsys.FailAfter(step)
			_, err := publish(fsys, 1, 40)
			finished = err == nil
			fsys.FailAfter(0)
			before, err := Latest(ckpt(fsys))
			must(t, err)
			fsys.Crash(rand.New(rand.NewPCG(seed, uint64(step))))
			wantLatest(t, fsys, before.Generation, before.Cut)
		}
		if finished || t.Failed() {
			return
		}
	}
}

func FuzzManifest(f *testing.F) {
	fsys := newFolder(f)
	m := published(f, fsys, 2, 40)
	b, err := fsys.ReadFile("ckpt/" + m.key().manifest())
	must(f, err)
	f.Add(b)
	f.Add(b[bytes.IndexByte(b, '\n')+1:])
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, disk.Seal(manifestKind, ManifestVersion, b)} {
			m, err := decodeManifest(b)
			if err != nil {
				if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrOtherVersion) {
					t.Fatalf("an error of no kind: %v", err)
				}
				continue
			}
			if _, err := m.encode(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
