package checkpoints

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/settings"
)

// This file reconstructs the rows that a job's selector would have saved in another run, up to a cut. The choice of
// each round depends only on the rows at its clock and on earlier choices, so it can be computed if the checkpoints of
// these clocks are kept.

// round is the number of rounds of saves due at a clock, and the checkpoint of that clock.
type round struct {
	n int64
	m *checkpoint.Manifest
}

// rewind returns the rounds of a job up to a cut, or the reason why they cannot be reconstructed.
func (f *Location) rewind(k *checkpoint.Info, job *perdure.JobSpec) (all []round, why string, err error) {
	due := recovery.RoundsOf(job.Recovery)
	sparse := slices.ContainsFunc(k.Manifest.Tables, func(t perdure.TableSpec) bool { return t.Sparse })
	switch {
	case due.Timed():
		return nil, "the times of its earlier saves are not known", nil
	case job.Recovery.Selector == perdure.SelectUsed:
		return nil, "checkpoints do not record how often rows were updated", nil
	case k.Manifest.Job.Init != "":
		return nil, "the run started with a model, and rows that were never saved are in none of its files", nil
	case sparse:
		return nil, "some tables are sparse", nil
	}
	found, err := f.find()
	if err != nil {
		return nil, "", err
	}
	kept := map[perdure.Clock]*checkpoint.Manifest{}
	for i := range found.Checkpoints {
		if one := &found.Checkpoints[i]; one.Number == 0 && one.IsComplete() && one.Generation <= k.Generation {
			kept[one.Cut] = &one.Manifest
		}
	}
	for clock := perdure.Clock(1); clock <= k.Cut; clock++ {
		n := due.Done(clock) - due.Done(clock-1)
		if n == 0 {
			continue
		}
		m := kept[clock]
		if m == nil {
			return nil, fmt.Sprintf("no checkpoint of clock %d is kept", clock), nil
		}
		all = append(all, round{n, m})
	}
	return all, "", nil
}

// forkSelected writes the cut, and in addition a running checkpoint of the rows that the job's selector would have
// saved so far. If they are not known, it writes only a running checkpoint of all rows.
func (f *Location) forkSelected(
	k *checkpoint.Info,
	to *Location,
	job *perdure.JobSpec,
) (*settings.RunningCheckpoint, error) {
	due, why, err := f.rewind(k, job)
	if err != nil {
		return nil, err
	}
	if why != "" {
		saved, err := f.forkRows(k, to, job)
		if err == nil {
			saved.Note = fmt.Sprintf("all rows count as saved at clock %d: the earlier saves of %s are not "+
				"reconstructed "+
				"because %s", k.Cut, job.Recovery, why)
		}
		return saved, err
	}
	if err := f.forkCut(&k.Manifest, to, job); err != nil {
		return nil, err
	}
	var all [][]protocol.SavedFile
	var states [][]checkpoint.FileRef
	for shard := range perdure.ShardID(job.Shards) {
		r := newReplayedShard(f, &k.Manifest, to.Store, job, shard)
		for _, round := range due {
			if err := r.save(&round); err != nil {
				return nil, err
			}
		}
		all, states = append(all, r.saved.Files()), append(states, r.saved.States())
	}
	saved, err := f.publish(&k.Manifest, to, job, all, states)
	if err == nil {
		saved.Current = true
	}
	return saved, err
}

// replayedShard is a shard of the job as if it had run from the start.
type replayedShard struct {
	from  store.Store
	shard perdure.ShardID
	parts []*table.Part
	saved *PartialCheckpoint
}

func newReplayedShard(f *Location, m *checkpoint.Manifest, to store.Store, job *perdure.JobSpec, shard perdure.ShardID,
) *replayedShard {
	r := &replayedShard{from: f.Store, shard: shard}
	for t, spec := range m.Tables {
		first, rows := placement.Range(&spec, job.Shards, shard)
		r.parts = append(r.parts, table.New(spec, perdure.TableID(t), job.Seed, first, rows))
	}
	r.saved = NewPartialCheckpoint(to, job, shard, r.parts)
	return r
}

// save advances the shard to the clock of a round, and saves the rows that its ledger chooses.
func (r *replayedShard) save(round *round) error {
	for _, p := range r.parts { // notifies observers that all rows are about to change
		all := []table.Run{{Rows: p.Rows}}
		if err := p.Overlay(0, all, func(int, []byte) error { return nil }); err != nil {
			return err
		}
	}
	at := 0
	s, err := checkpoint.Restore(r.from, *round.m, r.shard, func(perdure.TableSpec, int64, int64) (table.Image, error) {
		at++
		return r.parts[at-1].Image(), nil
	})
	if err != nil {
		return err
	}
	return r.saved.Save(r.parts, round.n, s)
}
