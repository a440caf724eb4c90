package checkpoint

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// BenchmarkWrite writes 256 MB of rows: as a segment of a snapshot that is copied piece by piece under a lock, and as a
// plain file.
func BenchmarkWrite(b *testing.B) {
	const rows, dim = 250_000, 256
	spec := testTable("w", rows, dim)
	p := table.New(spec, 0, 1, 0, rows)
	b.Run("segment", func(b *testing.B) {
		dir := b.TempDir()
		var mu sync.Mutex
		room := make([]byte, chunkBytes)
		b.SetBytes(rows * dim * 4)
		for b.Loop() {
			snapshot := p.Snapshot()
			_, err := WriteSegment(store.NewDir(disk.OS(), dir),
				&Segment{
					Job: "j", Cut: 1, Applied: []perdure.Clock{1},
					Tables: []TableRows{{Spec: spec, Stream: &Stream{
						Rows: rows, Runs: snapshot.Runs(),
						Next: func() ([]byte, error) {
							mu.Lock()
							defer mu.Unlock()
							piece, _ := snapshot.Next(len(room), nil)
							return room[:copy(room, piece)], nil
						},
					}}},
				})
			if err != nil {
				b.Fatal(err)
			}
			snapshot.Close()
		}
	})
	b.Run("plain", func(b *testing.B) {
		b.SetBytes(rows * dim * 4)
		piece := make([]byte, 1<<20)
		for b.Loop() {
			f, err := os.Create(filepath.Join(b.TempDir(), "plain"))
			for left := rows * dim * 4; left > 0 && err == nil; left -= len(piece) {
				_, err = f.Write(piece[:min(left, len(piece))])
			}
			if err == nil {
				err = f.Sync()
			}
			if err != nil || f.Close() != nil {
				b.Fatal(err)
			}
		}
	})
}
