package checkpoint

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// BenchmarkRows writes an eighth of 100 MB of rows, selected singly or in long runs, and for comparison a complete
// table of the same size. It restores each; the selected rows are restored over the initial rows of the 100 MB. Dense
// rows have 64 values, sparse ones 16 and Adam's state.
func BenchmarkRows(b *testing.B) {
	sparse := testSparse("e", 16)
	sparse.Init = perdure.Init{}
	dense := testTable("w", 400_000, 64)
	dense.Init = perdure.Init{}
	for _, spec := range []perdure.TableSpec{dense, sparse} {
		kind, rows := "dense", 400_000
		if spec.Sparse {
			kind = "sparse"
		}
		part := filledPart(b, spec, rows)
		eighth := spec
		eighth.Rows /= 8
		small := filledPart(b, eighth, rows/8)
		var single, long []table.Run
		for at := 0; at < rows; at += 8 {
			single = append(single, table.Run{First: at + at/8%7, Rows: 1})
		}
		for at := 0; at < rows; at += rows / 10 {
			long = append(long, table.Run{First: at, Rows: rows / 80})
		}
		b.Run(kind+"/plain", func(b *testing.B) { benchmarkRows(b, small, small, nil) })
		b.Run(kind+"/single", func(b *testing.B) { benchmarkRows(b, part, small, single) })
		b.Run(kind+"/long", func(b *testing.B) { benchmarkRows(b, part, small, long) })
	}
}

// filledPart returns a part with nonzero rows.
func filledPart(b *testing.B, spec perdure.TableSpec, rows int) *table.Part {
	b.Helper()
	p := table.New(spec, 0, 1, 0, rows)
	const batch = 10_000
	ids, delta := make([]perdure.RowID, batch), make([]float32, batch*spec.Dim)
	for i := range delta {
		delta[i] = float32(i)
	}
	for at := 0; at < rows; at += batch {
		for i := range ids {
			ids[i] = perdure.RowID(at + i)
		}
		must(b, p.ApplyRows(0, ids, batch, delta, 1))
	}
	return p
}

// benchmarkRows writes the part, or the rows of the given runs, and restores them. Selected dense rows are restored
// over a part that has all its rows, sparse ones into an empty part.
func benchmarkRows(b *testing.B, part, small *table.Part, runs []table.Run) {
	dir, job := b.TempDir(), testJob()
	job.Servers, job.Shards = 1, 1
	var ref SegmentRef
	room := make([]byte, 1<<20)
	write := func(b *testing.B) {
		s := &Segment{Job: job.ID}
		rows := part.Snapshot()
		if runs != nil {
			rows.Close()
			s.Number, rows = 1, part.SnapshotRuns(runs)
		}
		defer rows.Close()
		s.Tables = []TableRows{{Spec: part.Spec, Stream: &Stream{
			Rows: int64(rows.Rows()), Runs: rows.Runs(),
			Next: func() ([]byte, error) { // as a server does
				piece, live := rows.Next(len(room), func(int) []byte { return room })
				if live {
					piece = room[:copy(room, piece)]
				}
				return piece, nil
			},
		}}}
		var err error
		ref, err = WriteSegment(store.NewDir(disk.OS(), dir), s)
		must(b, err)
		b.SetBytes(ref.Bytes)
	}
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			write(b)
		}
	})
	b.Run("restore", func(b *testing.B) {
		write(b)
		m := Manifest{Job: job, Segments: []SegmentRef{ref}}
		for b.Loop() {
			if runs == nil {
				into := table.NewUninitialized(small.Spec, 0, 1, 0, small.Stored())
				_, err := Restore(store.NewDir(disk.OS(), dir), m, 0,
					func(perdure.TableSpec, int64, int64) (table.Image, error) { return into.Image(), nil })
				must(b, err)
				must(b, into.FinishRestore())
				continue
			}
			into := part
			if part.Spec.Sparse {
				into = table.NewUninitialized(part.Spec, 0, 1, 0, 0)
			}
			_, err := RestoreRows(store.NewDir(disk.OS(), dir), job.ID, 0, []FileRef{ref.Self()}, []*table.Part{into})
			must(b, err)
		}
	})
}

// BenchmarkRestart restores a shard of 100 MB: from one file of all rows, as for a checkpoint, and from 16 files of an
// eighth each, with rows selected singly or in runs of 64. Some rows are in several files; about an eighth are in none.
func BenchmarkRestart(b *testing.B) {
	const rows, dim = 400_000, 64
	spec := testTable("w", rows, dim)
	spec.Init = perdure.Init{Kind: perdure.InitUniform, Scale: 1}
	part := filledPart(b, spec, rows)
	job := testJob()
	job.Servers, job.Shards = 1, 1
	dir := b.TempDir()
	save := func(s *Segment, snapshot *table.Snapshot) FileRef {
		defer snapshot.Close()
		s.Job = job.ID
		s.Tables = []TableRows{{Spec: spec, Stream: &Stream{
			Rows: int64(snapshot.Rows()), Runs: snapshot.Runs(),
			Next: func() ([]byte, error) {
				piece, _ := snapshot.Next(1<<20, func(n int) []byte { return make([]byte, n) })
				return piece, nil
			},
		}}}
		ref, err := WriteSegment(store.NewDir(disk.OS(), dir), s)
		must(b, err)
		return ref.Self()
	}
	b.Run("checkpoint", func(b *testing.B) {
		ref := save(&Segment{}, part.Snapshot())
		segments := []SegmentRef{{File: ref.File, Bytes: ref.Bytes, CRC: ref.CRC}}
		m := Manifest{Job: job, Segments: segments}
		b.SetBytes(4 * rows * dim)
		for b.Loop() {
			into := table.NewUninitialized(spec, 0, 1, 0, rows)
			_, err := Restore(store.NewDir(disk.OS(), dir), m, 0,
				func(perdure.TableSpec, int64, int64) (table.Image, error) { return into.Image(), nil })
			must(b, err)
		}
	})
	for number, width := range []int{1, 64} {
		var files []FileRef
		for k := range uint64(16) {
			var runs []table.Run
			for at, n := 0, uint64(0); at < rows; at, n = at+width, n+1 {
				if h := (n*0x9e3779b97f4a7c15 ^ k*0xbf58476d1ce4e5b9) * 0x94d049bb133111eb; h>>61 == 0 {
					runs = append(runs, table.Run{First: at, Rows: width})
				}
			}
			files = append(files, save(&Segment{Epoch: perdure.Epoch(number), Number: k + 1}, part.SnapshotRuns(runs)))
		}
		b.Run(fmt.Sprintf("runs%d", width), func(b *testing.B) {
			b.SetBytes(4 * rows * dim)
			for b.Loop() {
				into := table.NewUninitialized(spec, 0, 1, 0, rows)
				_, err := RestoreRows(store.NewDir(disk.OS(), dir), job.ID, 0, files, []*table.Part{into})
				must(b, err)
			}
		})
	}
}
