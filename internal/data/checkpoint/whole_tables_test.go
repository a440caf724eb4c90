package checkpoint

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// TestWholeTables: a segment of selected rows contains all rows of a whole table or none; one with some of them is
// rejected. A shard that holds no rows of the table can still write and read it.
func TestWholeTables(t *testing.T) {
	spec := testTable("w", 6, 3)
	spec.Whole, spec.Shard = true, 1
	for name, c := range map[string]struct {
		shard   perdure.ShardID
		runs    []table.Run
		of      int32 // index of the file that its rows came from
		refused string
	}{
		"all":        {1, []table.Run{{Rows: 6}}, 0, ""},
		"none":       {1, nil, -1, ""},
		"some":       {1, []table.Run{{First: 2, Rows: 4}}, 0, "table w has 4 of 6 selected rows in 1 runs"},
		"all in two": {1, []table.Run{{Rows: 3}, {First: 3, Rows: 3}}, 0, "in 2 runs; expected one"},
		"elsewhere":  {0, nil, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			fsys, rows := newFolder(t), 6
			if c.shard != spec.Shard {
				rows = 0
			}
			part := table.New(spec, 0, 7, 0, rows)
			snap := part.SnapshotRuns(c.runs)
			room := make([]byte, 1000)
			ref, err := WriteSegment(ckpt(fsys), &Segment{
				Job: "job-1", Generation: 1, Epoch: 1, Cut: 5, Shard: c.shard, Number: 1,
				Tables: []TableRows{{Spec: spec, Stream: &Stream{
					Rows: int64(rows), Runs: c.runs,
					Next: func() ([]byte, error) {
						b, _ := snap.Next(len(room), func(int) []byte { return room })
						return b, nil
					},
				}}},
			})
			must(t, err)
			snap.Close()
			to := table.NewUninitialized(spec, 0, 7, 0, rows)
			l, err := RestoreRows(ckpt(fsys), "job-1", c.shard, []FileRef{ref.Self()}, []*table.Part{to})
			if c.refused != "" {
				wantErr(t, err, ErrCorrupt, c.refused)
				return
			}
			must(t, err)
			if want := slices.Repeat([]int32{c.of}, rows); !slices.Equal(l.FileIndex[0], want) {
				t.Errorf("its rows came from files %v, want %v", l.FileIndex[0], want)
			}
			if !slices.Equal(slices.Concat(to.Image().Planes[0]...), slices.Concat(part.Image().Planes[0]...)) {
				t.Error("its rows differ")
			}
		})
	}
}
