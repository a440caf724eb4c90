package checkpoints

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/settings"
)

// Choose returns the checkpoint from which another run continues: that of f.Clock, or the newest. Its files exist, but
// their content is verified only when they are copied.
func (f *Location) Choose() (*checkpoint.Info, error) {
	if f.Run == "" {
		return nil, perdure.Usagef("%s is not in a run's directory and has no settings to continue with; specify a "+
			"run's directory", f.Store)
	}
	found, err := f.find()
	if err != nil {
		return nil, err
	}
	k, err := f.selectOne(found)
	if err == nil && !k.IsComplete() {
		err = fmt.Errorf("%s/%s%s", f.Store, k.Defects()[0], f.olderHint(&found, k))
	}
	return k, err
}

// Fork writes a checkpoint returned by Choose as a checkpoint of another job to the folder to. Files are rewritten,
// because each names its job. If the job saves rows individually, Fork writes a running checkpoint and returns the
// job's initial state. All rows of a cut count as saved at its clock.
func (f *Location) Fork(
	k *checkpoint.Info,
	to *Location,
	job *perdure.JobSpec,
) (saved *settings.RunningCheckpoint, err error) {
	switch rows := recovery.RoundsOf(job.Recovery).Any(); {
	case k.Number > 0 && !rows:
		return nil, perdure.Usagef("%s has rows of different clocks; to continue from it, use the recovery strategy "+
			"scar", k.File)
	case rows:
		saved, err = f.forkRows(k, to, job)
	default:
		err = f.forkCut(&k.Manifest, to, job)
	}
	if err != nil && f.isDeleted(k) {
		return nil, fmt.Errorf("%s: the run deleted %s while it was being read; keep more checkpoints with "+
			"--keep-checkpoints, or choose a newer one", f.Store, k.File)
	}
	return saved, err
}

// forkCut writes each shard's rows as one segment that follows no other.
func (f *Location) forkCut(m *checkpoint.Manifest, to *Location, job *perdure.JobSpec) error {
	fork := *m
	fork.Job, fork.Segments, fork.SavedAt = *job, nil, f.Now.UTC()
	for _, ref := range m.Segments {
		s, err := checkpoint.Restore(f.Store, *m, ref.Shard, nil)
		if err != nil {
			return err
		}
		s.Job = job.ID
		if ref, err = checkpoint.WriteSegment(to.Store, s); err != nil {
			return err
		}
		if err := f.copyStates(to, ref.States); err != nil {
			return err
		}
		fork.Segments = append(fork.Segments, ref)
	}
	return checkpoint.Publish(to.Store, fork)
}

// copyStates copies slot states.
func (f *Location) copyStates(to *Location, files []checkpoint.FileRef) error {
	for _, file := range files {
		if err := store.CopyState(f.Store, to.Store, protocol.SavedFile(file)); err != nil {
			return err
		}
	}
	return nil
}

// forkRows writes a running checkpoint, and copies the slot states to which its newest files refer. A job starts from
// it.
func (f *Location) forkRows(
	k *checkpoint.Info,
	to *Location,
	job *perdure.JobSpec,
) (*settings.RunningCheckpoint, error) {
	m := &k.Manifest
	fork := checkpoint.Running{
		Number: 1, Job: *job, Generation: m.Generation, Clock: m.Cut, Tables: m.Tables, Slots: m.Slots,
		PastClocks: m.PastClocks, SavedAt: f.Now.UTC(),
	}
	saved := &settings.RunningCheckpoint{Number: fork.Number}
	for shard := range perdure.ShardID(job.Shards) {
		layers, err := f.layers(k, shard)
		if err != nil {
			return nil, err
		}
		one := checkpoint.RunningShard{Shard: shard}
		var files []protocol.SavedFile
		for i, s := range layers {
			s.Job, s.Generation, s.Epoch, s.Number = job.ID, m.Generation, 1, uint64(i+1)
			ref, err := checkpoint.WriteSegment(to.Store, s)
			if err != nil {
				return nil, err
			}
			one.Files, one.States = append(one.Files, ref.Self()), ref.States
			files = append(files, protocol.SavedFile(ref.Self()))
		}
		if err := f.copyStates(to, one.States); err != nil {
			return nil, err
		}
		saved.ReferToStates(int(shard), job.Shards, one.States)
		saved.Files, fork.Shards = append(saved.Files, files), append(fork.Shards, one)
	}
	return saved, checkpoint.PublishRunning(to.Store, fork)
}

// layers returns the segments of a shard for a new running checkpoint. From a cut it returns one segment with all rows.
// From a running checkpoint it returns one segment for each file, with the rows that no newer file has. The newest
// segment is included even without rows, because it records the progress of the shard.
func (f *Location) layers(k *checkpoint.Info, shard perdure.ShardID) ([]*checkpoint.Segment, error) {
	if k.Number == 0 {
		s, err := checkpoint.Restore(f.Store, k.Manifest, shard, nil)
		return []*checkpoint.Segment{s}, err
	}
	r, err := f.restore(&k.Running, shard)
	if err != nil {
		return nil, err
	}
	_, in := r.count()
	var out []*checkpoint.Segment
	for i, s := range r.layers.Segments {
		if in[i] == 0 && i < len(in)-1 {
			continue
		}
		for t, p := range r.parts {
			s.Tables = append(s.Tables, SegmentRows(p, runsOf(r.layers.FileIndex[t], int32(i))))
		}
		out = append(out, s)
	}
	return out, nil
}

// runsOf returns the positions of the rows that come from a file.
func runsOf(of []int32, file int32) (runs []table.Run) {
	for at, is := range of {
		switch n := len(runs); {
		case is != file:
		case n > 0 && runs[n-1].First+runs[n-1].Rows == at:
			runs[n-1].Rows++
		default:
			runs = append(runs, table.Run{First: at, Rows: 1})
		}
	}
	return runs
}
