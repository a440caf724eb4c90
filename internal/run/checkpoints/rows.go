package checkpoints

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// Each row of a running checkpoint has its own clock: that of the file that contains it.

// ages caches the clocks of files, which several running checkpoints may name.
type ages struct {
	*Location
	clocks map[string]*perdure.Clock // nil: unreadable
}

func (f *Location) ages() *ages { return &ages{f, map[string]*perdure.Clock{}} }

// of returns the clock of a file of rows.
func (a *ages) of(file checkpoint.FileRef) *perdure.Clock {
	if c, known := a.clocks[file.File]; known {
		return c
	}
	c, err := checkpoint.SegmentClock(a.Store, file)
	a.clocks[file.File] = &c
	if err != nil {
		a.clocks[file.File] = nil
	}
	return a.clocks[file.File]
}

// oldest returns the number of clocks between the oldest file of a running checkpoint and the checkpoint. It returns
// nil for other checkpoints, and if there are no files or some cannot be read.
func (a *ages) oldest(k *checkpoint.Info) *perdure.Clock {
	files := k.Files()
	if k.Number == 0 || k.Err != nil || len(files) == 0 {
		return nil
	}
	most := perdure.Clock(0)
	for _, file := range files {
		c := a.of(file)
		if c == nil {
			return nil
		}
		most = max(most, k.Cut-*c)
	}
	return &most
}

// restoredShard is a shard restored from a running checkpoint.
type restoredShard struct {
	parts  []*table.Part
	layers *checkpoint.RowOrigins
}

// restore returns a shard's rows as last saved. Rows that were never saved have their initial values.
func (f *Location) restore(m *checkpoint.Running, shard perdure.ShardID) (*restoredShard, error) {
	return restoreRows(f.Store, &m.Job, shard, m.Shards[shard].Files, m.Tables)
}

// restoreRows returns the shard's rows as in the files; the others have their initial values.
func restoreRows(in store.Store, job *perdure.JobSpec, shard perdure.ShardID, files []checkpoint.FileRef,
	specs []perdure.TableSpec,
) (*restoredShard, error) {
	r := &restoredShard{}
	for t, spec := range specs {
		first, rows := placement.Range(&spec, job.Shards, shard)
		r.parts = append(r.parts, table.NewUninitialized(spec, perdure.TableID(t), job.Seed, first, rows))
	}
	var err error
	r.layers, err = checkpoint.RestoreRows(in, job.ID, shard, files, r.parts)
	return r, err
}

// count returns the number of rows in none of the shard's files, and the number in each file.
func (r *restoredShard) count() (initial int64, in []int64) {
	in = make([]int64, len(r.layers.Segments))
	for _, rows := range r.layers.FileIndex {
		for _, file := range rows {
			if file < 0 {
				initial++
			} else {
				in[file]++
			}
		}
	}
	return initial, in
}
