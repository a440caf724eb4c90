package coordinator

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/data/checkpoint"
)

// The registry names the files of a running checkpoint; they are what counts. A manifest
// repeats it, for those who have no registry, and what neither needs is deleted after it.

// running returns the manifest of the running checkpoint that is to be published.
func running(f *membership.Facts, p *membership.Publish) checkpoint.Running {
	m := checkpoint.Running{
		Number: p.Running.Number, Generation: p.Generation, Job: f.Job, Tables: f.View.Tables, Clock: p.Cut,
	}
	if f.View.Roster > 0 {
		m.Slots, m.PastClocks = f.View.Spans(), f.PastClocks
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

// publishRunning writes a running checkpoint's manifest, and deletes what nobody needs any
// more. The registry names the files already. A coordinator that has lost its registry does no harm
// here: an older manifest is refused where there is a newer one, and no file that is newer than
// those of the manifest is deleted.
func (c *Coordinator) publishRunning(ctx context.Context, p membership.Publish, m checkpoint.Running) {
	m.SavedAt = time.Now().UTC()
	for i := range m.Shards {
		if s := &m.Shards[i]; weaken.Of(ctx).Named && len(s.Files) > 1 {
			s.Files = s.Files[len(s.Files)-1:]
		}
	}
	err := checkpoint.PublishRunning(c.cfg.Store, m)
	published := err == nil
	if err != nil {
		c.cfg.Log.Error("cannot publish the running checkpoint; the next one is tried", "clock", p.Cut, "err", err)
	} else if c.cfg.Keep > 0 { // the one before stays, too: whoever finds this one damaged goes on from that
		if err = checkpoint.PruneRunning(c.cfg.Store, m, max(2, c.cfg.Keep)); err != nil {
			c.cfg.Log.Warn("cannot delete what a running checkpoint needs no more", "err", err)
		}
	}
	c.inbox.do(ctx, func() {
		c.core.Published(p.Generation, p.Cut, p.Last && published) // no roll-back ever goes to it
	})
}
