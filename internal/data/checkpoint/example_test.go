package checkpoint_test

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// This example saves a job of one shard at clock 20 and restores it.
func Example() {
	fsys := disk.NewMemory() // or disk.OS()
	bsp := perdure.Consistency{Kind: perdure.BSP}
	spec := perdure.TableSpec{Name: "w", Rows: 2, Dim: 2, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: bsp}
	image := table.Image{Rows: 2, Planes: [][][]float32{{{1, 2}, {3, 4}}}} // in two pieces
	ref, err := checkpoint.WriteSegment(store.NewDir(fsys, "."), &checkpoint.Segment{
		Job: "j", Cut: 20, Applied: []perdure.Clock{20},
		Tables: []checkpoint.TableRows{{Spec: spec, Image: image}},
	})
	fmt.Println(ref.File, err)
	err = checkpoint.Publish(store.NewDir(fsys, "."), checkpoint.Manifest{
		Job: perdure.JobSpec{
			ID: "j", Slots: 1, Servers: 1, Shards: 1, Consistency: bsp,
			Recovery: perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 20},
		},
		Cut: 20, Tables: []perdure.TableSpec{spec}, Segments: []checkpoint.SegmentRef{ref},
	})
	fmt.Println(err)

	latest, err := checkpoint.Latest(store.NewDir(fsys, "."))
	fmt.Println(latest.Cut, err)
	segment, err := checkpoint.Restore(store.NewDir(fsys, "."), latest, 0, nil)
	fmt.Println(segment.Tables[0].Image.Planes, err)
	// Output:
	// g000000-c0000000020-s00000-e000000.segment <nil>
	// <nil>
	// 20 <nil>
	// [[[1 2 3 4]]] <nil>
}
