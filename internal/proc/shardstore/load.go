package shardstore

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/table"
)

// Load reads what the shard held at the cut that a view says: from its checkpoint, or, at clock 0 and
// where the job begins with no model, nothing.
func (s *Saver) Load(v *words.View) (replica.Content, error) {
	switch rows := recovery.RoundsOf(s.Job.Recovery).Any(); {
	case rows && !v.Shards[s.Shard].Lost && v.Cut > 0:
		return s.loadFork(v)
	case rows:
		return s.loadRows(v)
	}
	return s.loadCut(v)
}

// loadCut reads what the shard held at the cut that a view says.
func (s *Saver) loadCut(v *words.View) (replica.Content, error) {
	job, id := s.Job, s.Shard
	c := replica.Content{States: make([][]byte, job.Slots), Applied: make([]perdure.Clock, job.Slots)}
	at := v.RestoredAt(id)
	if at == 0 && job.Init == "" {
		return c, nil // its tables are entries of the log
	}
	// A generation begins with what an earlier one has saved; a shard is restored from its own, too.
	upTo := v.Generation
	if !v.Shards[id].Restored {
		upTo--
	}
	m, err := checkpoint.Of(s.Store, at, upTo)
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
		return c, fmt.Errorf("segment of %d slots in a job of %d", len(seg.Applied), len(v.Slots))
	}
	c.States = make([][]byte, len(seg.Applied))
	for _, p := range c.Parts {
		if err := p.Restored(); err != nil {
			return c, err
		}
	}
	copy(c.States, seg.States)
	c.Applied, c.Seq = seg.Applied, seg.Seq
	return c, nil
}

// blankPart makes the part that a table's rows of a segment are read into, after
// checking that they are what the shard holds.
func blankPart(job *perdure.JobSpec, v *words.View, id perdure.ShardID, t int, spec perdure.TableSpec, first,
	rows int64,
) (*table.Part, error) {
	if t >= len(v.Tables) || v.Tables[t] != spec {
		return nil, fmt.Errorf("segment has a table %s that is not the job's", spec.Name)
	}
	if !spec.Sparse {
		from, n := placement.Range(&spec, job.Shards, id)
		if first != int64(from) || rows != int64(n) {
			return nil, fmt.Errorf("segment holds rows %d to %d of table %s, the shard %d to %d", first, first+rows-1,
				spec.Name, from, int(from)+n-1)
		}
	}
	p := table.Blank(spec, perdure.TableID(t), job.Seed, perdure.RowID(first), int(rows))
	return p, nil
}
