package checkpoints

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/scar"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/settings"
)

// This file has what a job's selector would have saved of the rows of another one, up to a cut that is kept: the choice
// of each round depends on the rows at its clock and on the choices before, so it can be made of checkpoints of these
// clocks.

// round is a number of rounds of saves that are due at one clock, and the checkpoint of that clock.
type round struct {
	n int64
	m *checkpoint.Manifest
}

// rewind returns the rounds of a job up to a cut, or why they cannot be made.
func (f *Folder) rewind(k *checkpoint.Kept, job *perdure.JobSpec) (rounds []round, why string, err error) {
	due := recovery.RoundsOf(job.Recovery)
	sparse := slices.ContainsFunc(k.Manifest.Tables, func(t perdure.TableSpec) bool { return t.Sparse })
	switch {
	case due.Timed():
		return nil, "it is not known when it would have saved", nil
	case job.Recovery.Selector == perdure.SelectUsed:
		return nil, "checkpoints do not say how often rows were updated", nil
	case k.Manifest.Job.Init != "":
		return nil, "the run began with a model, and rows that were never saved are in none of its files", nil
	case sparse:
		return nil, "some tables are sparse", nil
	}
	found, err := f.look()
	if err != nil {
		return nil, "", err
	}
	kept := map[perdure.Clock]*checkpoint.Manifest{}
	for i := range found.Kept {
		if one := &found.Kept[i]; one.Number == 0 && one.Whole() && one.Generation <= k.Generation {
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
		rounds = append(rounds, round{n, m})
	}
	return rounds, "", nil
}

// forkSelected writes the cut, and beside it a running checkpoint of what the job's selector would have saved by
// then; where that cannot be known, only one of all rows.
func (f *Folder) forkSelected(k *checkpoint.Kept, to *Folder, job *perdure.JobSpec) (*settings.Saved, error) {
	rounds, why, err := f.rewind(k, job)
	if err != nil {
		return nil, err
	}
	if why != "" {
		saved, err := f.forkRows(k, to, job)
		if err == nil {
			saved.Note = fmt.Sprintf("all rows count as saved at clock %d: what %s would have saved before is not "+
				"made, since %s", k.Cut, job.Recovery, why)
		}
		return saved, err
	}
	if err := f.forkCut(&k.Manifest, to, job); err != nil {
		return nil, err
	}
	var all [][]perdure.SavedFile
	var states [][]checkpoint.FileRef
	for shard := range perdure.ShardID(job.Shards) {
		r := newRewinding(f, &k.Manifest, to.Store, job, shard)
		for _, round := range rounds {
			if err := r.save(&round); err != nil {
				return nil, err
			}
		}
		all, states = append(all, slices.Clone(r.ledger.Files())), append(states, r.states)
	}
	saved, err := f.publish(&k.Manifest, to, job, all, states)
	if err == nil {
		saved.Current = true
	}
	return saved, err
}

// rewinding is the shard of a job that never was.
type rewinding struct {
	from, to store.Store
	job      *perdure.JobSpec
	shard    perdure.ShardID
	parts    []*table.Part
	ledger   *scar.Ledger
	saves    uint64
	files    []string             // that are there
	states   []checkpoint.FileRef // of slots, to which the newest one refers
}

func newRewinding(f *Folder, m *checkpoint.Manifest, to store.Store, job *perdure.JobSpec, shard perdure.ShardID,
) *rewinding {
	r := &rewinding{from: f.Store, to: to, job: job, shard: shard, ledger: scar.New(scar.Settings{
		Selector: job.Recovery.Selector, Share: job.Recovery.Share, Seed: job.Seed, Shard: shard,
	})}
	for t, spec := range m.Tables {
		id := perdure.TableID(t)
		first, rows := placement.Range(&spec, job.Shards, shard)
		p := table.New(spec, id, job.Seed, first, rows)
		r.parts = append(r.parts, p)
		r.ledger.Added(id, p)
	}
	return r
}

// save brings the shard to the clock of a round, and saves what its ledger chooses.
func (r *rewinding) save(round *round) error {
	for _, p := range r.parts { // whoever watches hears that all is about to change
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
	choice := r.ledger.Choose(r.parts, round.n)
	if choice.Bytes == 0 {
		r.ledger.Unwritten(choice)
		return nil
	}
	r.saves++
	s.Job, s.Epoch, s.Number, s.Tables = r.job.ID, 1, r.saves, nil
	for t, p := range r.parts {
		s.Tables = append(s.Tables, rowsOf(p, choice.Runs[t]))
	}
	ref, err := checkpoint.WriteSegment(r.to, s)
	if err != nil {
		return err
	}
	r.states = ref.States
	r.ledger.Written(choice, words.SegmentFile(ref.Self()))
	return r.drop(ref.File)
}

// drop deletes files that the running checkpoint needs no more, now that another one is there.
func (r *rewinding) drop(newest string) error {
	var stay, gone []string
	for _, name := range append(r.files, newest) {
		if slices.ContainsFunc(r.ledger.Files(), func(f words.SegmentFile) bool { return f.File == name }) {
			stay = append(stay, name)
		} else {
			gone = append(gone, name)
		}
	}
	r.files = stay
	return r.to.Delete(gone...)
}

// rowsOf are some rows of a table, to be written.
func rowsOf(p *table.Part, runs []table.Run) checkpoint.TableRows {
	rows := p.SnapshotOf(runs)
	room := make([]byte, pieceBytes)
	return checkpoint.TableRows{
		Spec: p.Spec, First: int64(p.First),
		Stream: &checkpoint.Stream{
			Rows: int64(rows.Rows()), Runs: rows.Runs(),
			Next: func() ([]byte, error) {
				b, _ := rows.Next(len(room), func(int) []byte { return room })
				return b, nil
			},
		},
	}
}
