package shardstore

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/table"
)

// Load reads the shard's content at the cut of a view from its checkpoint. At clock 0 without an initial model, the
// content is empty.
func (s *Saver) Load(v *protocol.View) (replica.Content, error) {
	switch rows := recovery.RoundsOf(s.Job.Recovery).Any(); {
	case rows && !v.Shards[s.Shard].Lost && v.Cut > 0:
		return s.loadFork(v)
	case rows:
		return s.loadRows(v)
	}
	return s.loadCut(v)
}

// loadCut reads the shard's content at the cut of a view.
func (s *Saver) loadCut(v *protocol.View) (replica.Content, error) {
	job, id := s.Job, s.Shard
	c := replica.Content{States: make([][]byte, job.Slots), Applied: make([]perdure.Clock, job.Slots)}
	at := v.RestoredAt(id)
	if at == 0 && job.Init == "" {
		return c, nil // its tables are log entries
	}
	// A generation starts from a checkpoint of an earlier one, but a shard may also be restored from the current one.
	upTo := v.Generation
	if !v.Shards[id].Restored {
		upTo--
	}
	m, err := checkpoint.LatestOfCut(s.Store, at, upTo)
	if err == nil {
		err = m.CheckJob(job.ID)
	}
	if err != nil {
		return c, err
	}
	blank := func(spec perdure.TableSpec, first, rows int64) (table.Image, error) {
		p, err := blankPart(job, v, id, len(c.Parts), spec, first, rows)
		if err != nil {
			return table.Image{}, err
		}
		c.Parts = append(c.Parts, p)
		return p.Image(), nil
	}
	seg, err := checkpoint.Restore(s.Store, m, id, blank)
	if err != nil {
		return c, err
	}
	if len(seg.Applied) < job.Slots || len(seg.Applied) > len(v.Slots) {
		return c, fmt.Errorf("invalid segment: it has %d slots, but the job has %d", len(seg.Applied), len(v.Slots))
	}
	c.States = make([][]byte, len(seg.Applied))
	for _, p := range c.Parts {
		if err := p.FinishRestore(); err != nil {
			return c, err
		}
	}
	copy(c.States, seg.States)
	c.Applied, c.Seq = seg.Applied, seg.Seq
	return c, nil
}

// blankPart returns an empty part for a table's rows of a segment, after checking that they are the rows of this shard.
func blankPart(job *perdure.JobSpec, v *protocol.View, id perdure.ShardID, t int, spec perdure.TableSpec, first,
	rows int64,
) (*table.Part, error) {
	if t >= len(v.Tables) || v.Tables[t] != spec {
		return nil, fmt.Errorf("invalid segment: table %s differs from the job's", spec.Name)
	}
	if !spec.Sparse {
		from, n := placement.Range(&spec, job.Shards, id)
		if first != int64(from) || rows != int64(n) {
			return nil, fmt.Errorf("invalid segment: it has rows %d to %d of table %s, but the shard has %d to %d",
				first,
				first+rows-1, spec.Name, from, int(from)+n-1)
		}
	}
	p := table.NewUninitialized(spec, perdure.TableID(t), job.Seed, perdure.RowID(first), int(rows))
	return p, nil
}
