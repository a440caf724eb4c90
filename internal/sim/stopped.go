package sim

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/proc/coordinator"
)

// pollInterval is the interval at which Shutdown asks whether everything is saved.
const pollInterval = 20 * time.Millisecond

// Stop ends a cluster's run before its job is done.
type Stop struct {
	Cluster      *Cluster
	hasShutDown  atomic.Bool
	hasKilledAll atomic.Bool
}

// Shutdown ends the run gracefully, as a supervisor does. If the recovery strategy makes a last save, Shutdown requests
// it until it exists. Then Shutdown stops all processes.
func (s *Stop) Shutdown() {
	c := s.Cluster
	c.fault("the run ends gracefully")
	if !recovery.Of(c.o.Job.Recovery).Traits().SavesAtEnd() && c.ctx.Err() == nil {
		s.hasShutDown.Store(true)
		c.stop(errDone)
		return
	}
	for {
		closed := false
		if co := c.hosts.Leader(); co != nil {
			ctx, cancel := context.WithTimeout(c.ctx, time.Second)
			_ = co.Ask(ctx, func(core *membership.Core, _ coordinator.Latest) { // a dead coordinator does not answer
				core.RequestFinalCheckpoint()
				closed = core.FinalCheckpointDone()
			})
			cancel()
		}
		if closed && c.ctx.Err() == nil {
			s.hasShutDown.Store(true)
			c.stop(errDone)
			return
		}
		select {
		case <-time.After(pollInterval):
		case <-c.ctx.Done():
			return
		}
	}
}

// KillAll kills all processes simultaneously.
func (s *Stop) KillAll() {
	c := s.Cluster
	if c.ctx.Err() != nil {
		return
	}
	c.fault("all processes die")
	s.hasKilledAll.Store(true)
	c.mu.Lock()
	c.allKilled = true
	procs := slices.Collect(maps.Values(c.processes))
	c.mu.Unlock()
	for _, p := range procs {
		p.Kill()
	}
	c.stop(errDone)
}

// HasShutDown reports whether Shutdown has ended the run.
func (s *Stop) HasShutDown() bool { return s.hasShutDown.Load() }

// HasKilledAll reports whether KillAll has ended the run.
func (s *Stop) HasKilledAll() bool { return s.hasKilledAll.Load() }

// CheckStopped checks the files that a gracefully ended run leaves, in jobs that save each row separately. There must
// be a manifest of the named clock, with one file per shard. A file has exactly each slot's clocks below that clock,
// plus those that the shard's base included when it was lost. Its rows lack exactly the updates that are counted as
// lost. A calm run, without deaths or handovers, must not lose any.
func (h *History) CheckStopped(f *membership.JobRecord, fs disk.FS, calm bool) error {
	last := f.Final
	if last == nil || !last.Named || last.Cut == 0 {
		return nil // no slot had begun
	}
	if calm && f.UpdatesLost > 0 {
		return violated("the run was ended at clock %d with %d lost updates, although no process died", last.Cut,
			f.UpdatesLost)
	}
	m, _, err := checkpoint.LatestCompleteRunning(store.NewDir(fs, "checkpoint"))
	if err != nil {
		return violated("the run was ended at clock %d, but left no complete checkpoint: %v", last.Cut, err)
	}
	if m.Clock != last.Cut {
		return violated("the run was ended at clock %d, but its last manifest is of clock %d", last.Cut, m.Clock)
	}
	for i := range m.Shards {
		if err := h.checkStoppedShard(f, perdure.ShardID(i), m.Shards[i].Files, fs); err != nil {
			return err
		}
	}
	return nil
}

// checkStoppedShard checks the file of one shard.
func (h *History) checkStoppedShard(f *membership.JobRecord, shard perdure.ShardID, files []checkpoint.FileRef,
	fs disk.FS,
) error {
	cut := f.Final.Cut
	if len(files) != 1 {
		return violated("the run was ended at clock %d, but shard %d has %d files, want 1", cut, shard, len(files))
	}
	parts, layers, history, err := h.aux.lineage.read(&f.View, shard,
		[]protocol.SavedFile{protocol.SavedFile(files[0])}, fs)
	if err != nil {
		return err
	}
	seg, rows := layers.Segments[0], map[int][]uint64{}
	base, ended := h.aux.lineage.baseOf(shard, lifeID{seg.Generation, seg.Epoch})
	for p, n := range seg.Applied {
		most := cut
		if p < len(base) {
			most = max(cut, base[p])
		}
		if f.View.Slots[p].Has(cut-1) && (n < cut || n > most) {
			return violated("the run was ended at clock %d, but the file of shard %d has %d clocks of slot %d", cut,
				shard, n, p)
		}
	}
	if ended {
		return nil // lost after this save; the count of lost updates includes its next life
	}
	values := make([]float32, h.spec.Dim)
	for row, id := range h.ids {
		if h.shard(row) != shard {
			continue
		}
		if err := parts[history].ReadRows(values, id, []perdure.RowID{id}, 1); err != nil {
			return err
		}
		rows[row] = make([]uint64, h.slots)
		for p := range h.slots {
			if rows[row][p], err = clocksIn("a saved row", values[p*columns:]); err != nil {
				return err
			}
		}
	}
	return h.aux.lineage.final(shard, rows, cut, f.ShardLost[shard])
}
