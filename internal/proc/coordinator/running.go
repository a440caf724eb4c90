package coordinator

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/data/checkpoint"
)

// The registry is authoritative for the files of a partial checkpoint. A manifest repeats their names for readers
// without the registry. Files that neither needs are deleted after the manifest is written.

// runningManifest returns the manifest of a partial checkpoint.
func runningManifest(f *membership.JobRecord, p *membership.Publish) checkpoint.Running {
	m := checkpoint.Running{
		Number: p.Running.Number, Generation: p.Generation, Job: f.Job, Tables: f.View.Tables, Clock: p.Cut,
	}
	if f.View.Roster > 0 {
		m.Slots, m.PastClocks = f.View.Intervals(), f.PastClocks
	}
	for i, files := range p.Running.Files {
		s := checkpoint.RunningShard{Shard: perdure.ShardID(i)}
		for _, file := range files {
			s.Files = append(s.Files, checkpoint.FileRef(file))
		}
		for _, file := range p.Running.StatesOf(i) {
			s.States = append(s.States, checkpoint.FileRef(file))
		}
		m.Shards = append(m.Shards, s)
	}
	return m
}

// publishRunning writes the manifest of a partial checkpoint and deletes files that are no longer needed. The registry
// already names the files. A coordinator that has lost its lease does no harm here: the store rejects an older manifest
// if a newer one exists, and files newer than the manifest's are not deleted.
func (c *Coordinator) publishRunning(ctx context.Context, p membership.Publish, m checkpoint.Running) {
	m.SavedAt = time.Now().UTC()
	for i := range m.Shards {
		if s := &m.Shards[i]; mutation.Of(ctx).FileRetention && len(s.Files) > 1 {
			s.Files = s.Files[len(s.Files)-1:]
		}
	}
	err := checkpoint.PublishRunning(c.cfg.Store, m)
	published := err == nil
	if err != nil {
		c.cfg.Log.Error("cannot publish a partial checkpoint; continuing with the next one", "clock", p.Cut, "err", err)
	} else if c.cfg.Keep > 0 { // the previous one also stays, as a fallback if this one is damaged
		if err = checkpoint.PruneRunning(c.cfg.Store, m, max(2, c.cfg.Keep)); err != nil {
			c.cfg.Log.Warn("cannot delete old files of the partial checkpoint", "err", err)
		}
	}
	c.inbox.doSaved(ctx, func() {
		c.core.Published(&p, published)
	})
}
