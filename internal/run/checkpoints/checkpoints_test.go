package checkpoints

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var bsp = perdure.Consistency{Kind: perdure.BSP}

// tables are a dense one and a sparse one. Shard s has the rows s, s+2, … of the latter.
var tables = []perdure.TableSpec{
	{Name: "w", Rows: 9, Dim: 2, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: bsp},
	{Name: "s", Sparse: true, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: bsp},
}

var testJob = perdure.JobSpec{
	ID: "first", Workload: "own", Slots: 1, Servers: 1, Shards: 2, Consistency: bsp,
	Recovery: perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 10},
}

// saved is the time of the checkpoint of clock 0.
var saved = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// value returns the value of a table at a cut.
func value(cut perdure.Clock, row, col int) float32 { return float32(int(cut)*1000 + row*10 + col) }

// segment returns a shard's segment of a cut. A segment that follows another has only the first row of the dense table,
// and all of the sparse one.
func segment(cut perdure.Clock, shard perdure.ShardID, follows *checkpoint.FileRef) *checkpoint.Segment {
	s := &checkpoint.Segment{
		Job: testJob.ID, Generation: 1, Epoch: 1, Cut: cut, Shard: shard, Seq: uint64(cut),
		Applied: []perdure.Clock{cut}, Follows: follows,
	}
	first, rows := placement.Range(&tables[0], testJob.Shards, shard)
	w := make([]float32, 0, 2*rows)
	for i := range rows {
		at := cut
		if follows != nil && i > 0 {
			at -= 10 // unchanged
		}
		w = append(w, value(at, int(first)+i, 0), value(at, int(first)+i, 1))
	}
	ids, values := []perdure.RowID{7, 3}, []float32{value(cut, 7, 0), value(cut, 3, 0)}
	for i := range ids {
		ids[i] += perdure.RowID(10 * shard)
	}
	s.Tables = []checkpoint.TableRows{
		{Spec: tables[0], First: int64(first), Image: table.Image{Rows: rows, Planes: [][][]float32{{w}}}},
		{Spec: tables[1], Image: table.Image{Rows: 2, IDs: [][]perdure.RowID{ids}, Planes: [][][]float32{{values}}}},
	}
	if follows != nil {
		s.Tables[0].Stream = stream(rows, floats(w[:2]))
		s.Tables[1].Stream = stream(2, numbers(ids), floats(values))
		s.Tables[1].Stream.Runs[0].Rows = 2
	}
	return s
}

// stream returns the first row of a table in the format of a file.
func stream(rows int, columns ...[]byte) *checkpoint.Stream {
	next := func() (b []byte, err error) {
		b, columns = columns[0], columns[1:]
		return b, nil
	}
	return &checkpoint.Stream{Rows: int64(rows), Runs: []table.Run{{Rows: 1}}, Next: next}
}

func floats(v []float32) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func numbers(v []perdure.RowID) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, uint64(x))
	}
	return b
}

// kept creates a directory with checkpoints of the clocks 10, 20 and so on. Every second one follows the previous one.
func kept(t *testing.T, n int) (*Location, *disk.Memory) {
	t.Helper()
	fsys := disk.NewMemory()
	must(t, fsys.MkdirAll("c"))
	save(t, fsys, n)
	return &Location{Store: store.NewDir(fsys, "c"), Run: t.TempDir(), Now: saved.Add(time.Hour)}, fsys
}

func save(t *testing.T, fsys disk.FS, n int) {
	t.Helper()
	var before []checkpoint.SegmentRef
	for i := range n {
		cut := perdure.Clock(10 * (i + 1))
		m := checkpoint.Manifest{
			Job: testJob, Generation: 1, Cut: cut, Tables: tables,
			SavedAt: saved.Add(time.Duration(cut) * time.Second),
		}
		for shard := range perdure.ShardID(2) {
			var follows *checkpoint.FileRef
			if i%2 == 1 {
				self := before[shard].Self()
				follows = &self
			}
			ref, err := checkpoint.WriteSegment(store.NewDir(fsys, "c"), segment(cut, shard, follows))
			must(t, err)
			if follows != nil {
				ref.Base = []checkpoint.FileRef{*follows}
			}
			m.Segments = append(m.Segments, ref)
		}
		must(t, checkpoint.Publish(store.NewDir(fsys, "c"), m))
		before = m.Segments
	}
}

// segmentName and manifestName return the names of a segment and of a manifest.
func segmentName(cut, shard int) string {
	return fmt.Sprintf("g000001-c%010d-s%05d-e000001.segment", cut, shard)
}
func manifestName(cut int) string { return fmt.Sprintf("g000001-c%010d.manifest", cut) }

func read(t *testing.T, fsys disk.FS, name string) []byte {
	t.Helper()
	b, err := fsys.ReadFile(path.Join("c", name))
	must(t, err)
	return b
}

func write(t *testing.T, fsys disk.FS, name string, b []byte) {
	t.Helper()
	f, err := fsys.Create(path.Join("c", name))
	must(t, err)
	_, err = f.Write(b)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
	must(t, fsys.SyncDir("c"))
}

// TestPruneCrashes crashes the file system at every step of Prune. After each crash the newest whole checkpoint must
// still be whole and no manifest may lack a segment. A second Prune must finish the work.
func TestPruneCrashes(t *testing.T) {
	for _, keep := range []int{0, 1, 2, 3} {
		for at := 1; ; at++ {
			f, fsys := kept(t, 5)
			_, err := checkpoint.WriteSegment(f.Store, segment(60, 0, nil))
			must(t, err)
			fsys.FailAfter(at)
			err = f.Prune(&bytes.Buffer{}, keep, false, false)
			fsys.Crash(rand.New(rand.NewPCG(uint64(keep), uint64(at))))
			found, lookErr := checkpoint.List(store.NewDir(fsys, "c"))
			must(t, lookErr)
			for i := range found.Checkpoints {
				if k := &found.Checkpoints[i]; !k.IsComplete() {
					t.Fatalf("keep %d, crash at step %d: clock %d lacks %v, %v", keep, at, k.Cut, k.Missing, k.Err)
				}
			}
			if len(found.Checkpoints) == 0 || found.Checkpoints[0].Cut != 50 {
				t.Fatalf("keep %d, crash at step %d: found %v", keep, at, found.Checkpoints)
			}
			must(t, f.Verify(&bytes.Buffer{}, false))
			must(t, f.Prune(&bytes.Buffer{}, keep, false, false))
			want := map[int][]string{
				0: {"10", "20", "30", "40", "50"}, 1: {"50"}, 2: {"40", "50", "30s"}, 3: {"30", "40", "50"},
			}[keep]
			if got := held(t, fsys); !slices.Equal(got, holds(want)) {
				t.Fatalf("keep %d, crash at step %d: files %v, want %v", keep, at, got, holds(want))
			}
			if err == nil {
				break
			}
		}
	}
}

func held(t *testing.T, fsys disk.FS) []string {
	t.Helper()
	names, err := fsys.List("c")
	must(t, err)
	return names
}

// holds returns the files of checkpoints. A name with the suffix s stands for segments only.
func holds(cuts []string) (names []string) {
	for _, text := range cuts {
		var cut int
		_, _ = fmt.Sscan(strings.TrimSuffix(text, "s"), &cut) // the cuts are numbers
		names = append(names, segmentName(cut, 0), segmentName(cut, 1))
		if !strings.HasSuffix(text, "s") {
			names = append(names, manifestName(cut))
		}
	}
	slices.Sort(names)
	return names
}
