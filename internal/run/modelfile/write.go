package modelfile

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// Write writes the model as the initial state of a job, at clock 0 of the generation before its first. That is a
// checkpoint or, if the strategy saves rows separately, the first running checkpoint, whose files are returned by
// shard. The state of update rules is initial: see [table.NewFromRows]. The model must fit the tables.
func (m *Model) Write(to store.Store, job *perdure.JobSpec, specs []perdure.TableSpec, now time.Time,
) (saved [][]protocol.SavedFile, err error) {
	if err := to.Prepare(); err != nil {
		return nil, err
	}
	byRow := recovery.RoundsOf(job.Recovery).Any()
	cut := checkpoint.Manifest{Job: *job, Tables: specs, SavedAt: now.UTC()}
	rows := checkpoint.Running{Number: 1, Job: *job, Tables: specs, SavedAt: now.UTC()}
	for shard := range perdure.ShardID(job.Shards) {
		s := &checkpoint.Segment{
			Job: job.ID, Epoch: 1, Shard: shard, Seed: job.Seed, Applied: make([]perdure.Clock, job.Slots),
		}
		if byRow {
			s.Number = rows.Number
		}
		for t := range specs {
			p := m.part(job, perdure.TableID(t), &specs[t], shard)
			s.Tables = append(s.Tables, checkpoint.TableRows{Spec: specs[t], First: int64(p.First), Image: p.Image()})
		}
		ref, err := checkpoint.WriteSegment(to, s)
		if err != nil {
			return nil, err
		}
		cut.Segments = append(cut.Segments, ref)
		files := []checkpoint.FileRef{ref.Self()}
		rows.Shards = append(rows.Shards, checkpoint.RunningShard{Shard: shard, Files: files})
		saved = append(saved, []protocol.SavedFile{protocol.SavedFile(ref.Self())})
	}
	if byRow {
		return saved, checkpoint.PublishRunning(to, rows)
	}
	return nil, checkpoint.Publish(to, cut)
}

// part returns a shard's part of a table.
func (m *Model) part(job *perdure.JobSpec, id perdure.TableID, spec *perdure.TableSpec, shard perdure.ShardID,
) *table.Part {
	values := m.find(spec.Name).Data
	if !spec.Sparse {
		first, n := placement.Range(spec, job.Shards, shard)
		return table.NewFromRows(*spec, id, job.Seed, first, nil, values[int(first)*spec.Dim:][:n*spec.Dim])
	}
	var ids []perdure.RowID
	var rows []float32
	for i, number := range m.find(spec.Name + safetensors.IDsSuffix).Ints {
		if id := perdure.RowID(number); placement.ShardOf(spec, job.Shards, id) == shard {
			ids, rows = append(ids, id), append(rows, values[i*spec.Dim:][:spec.Dim]...)
		}
	}
	return table.NewFromRows(*spec, id, job.Seed, 0, ids, rows)
}
