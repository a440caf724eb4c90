package coordinator

import (
	"context"
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
)

// A coordinator that starts with an older copy of the job record would issue revisions, generations, epochs and
// incarnations a second time, with other meanings. The coordinator saves each record before anything acts on it.
// Anything newer than the record therefore proves that the record is such a copy, and the coordinator ends.

// initialView identifies the view in the record that a coordinator has loaded.
type initialView struct {
	revision   uint64
	generation perdure.Generation
	durable    perdure.Clock
}

func newInitialView(v *protocol.View) initialView {
	return initialView{v.Revision, v.Generation, v.Durable}
}

// checkView returns an error if a process acts on a view newer than the record. This coordinator must not have sent a
// view to that process.
func (v *initialView) checkView(h *wire.Hello) error {
	if h.Revision <= v.revision {
		return nil
	}
	return fmt.Errorf("the job record is an older copy: %s:%d uses revision %d of the view, but this record has "+
		"revision %d; restore the newest record, or stop all servers and workers before you start a coordinator with "+
		"this one", h.Role, h.Index, h.Revision, v.revision)
}

// olderRecordError returns the error of a coordinator with an older record. Starting it again does not help.
func olderRecordError(why error) error {
	return fmt.Errorf("coordinator: %w: %w", perdure.ErrUsage, why)
}

// checkHello refuses a process that acts on a newer view. If it is a server, the coordinator ends without any further
// decision. The refusal is temporary: the process keeps its state until a coordinator with the newest record starts.
// Programs are not trusted, so a worker or an observer cannot end the coordinator.
func (v *initialView) checkHello(m *member, c *Coordinator) *wire.Refusal {
	if _, met := c.shutdown.answered[m.hello.Process]; met {
		return nil // this coordinator may have sent it the view
	}
	err := v.checkView(&m.hello)
	if err == nil {
		return nil
	}
	if m.hello.Role == wire.RoleServer {
		c.endErr = olderRecordError(err)
	}
	return &wire.Refusal{Temporary: true, Reason: err.Error()}
}

// storedCheckpoints describes the checkpoints that the job's store has when a coordinator starts.
type storedCheckpoints struct {
	// generation and cut are those of the newest checkpoint; 0: the store has no checkpoint.
	generation perdure.Generation
	cut        perdure.Clock
	durable    perdure.Clock // the record's View.Durable at the start
	isMissing  bool          // the store lacks a checkpoint of clock durable
	running    uint64        // number of the newest running checkpoint; 0: no such checkpoint exists
}

// check returns an error if the record cannot have led to these checkpoints. A single newer checkpoint proves nothing:
// the coordinator may have died between publishing and recording it.
func (s *storedCheckpoints) check(f *membership.JobRecord) error {
	v, found := &f.View, ""
	newer := s.cut > v.Durable
	switch {
	case newer && !f.Placed():
		found = fmt.Sprintf("the store has a checkpoint of clock %d, but according to the record the job has not "+
			"started", s.cut)
	case s.generation > v.Generation:
		found = fmt.Sprintf("the store has a checkpoint of generation %d, but the record has generation %d",
			s.generation, v.Generation)
	case s.running > f.Running.Number:
		found = fmt.Sprintf("the store has running checkpoint %d, but the record's newest is %d", s.running,
			f.Running.Number)
	case newer && s.isMissing && s.durable == v.Durable:
		found = fmt.Sprintf("the store has a checkpoint of clock %d, but lacks that of clock %d, which the record "+
			"needs", s.cut, v.Durable)
	default:
		return nil
	}
	return fmt.Errorf("the job record is older than the job's checkpoints: %s; restore a newer record, or restore "+
		"the checkpoints of the same backup as well", found)
}

// readStored reads which checkpoints a store has.
func (v *initialView) readStored(in store.Store) (s storedCheckpoints, err error) {
	none := func(err error) bool { return errors.Is(err, checkpoint.ErrNoCheckpoint) }
	m, err := checkpoint.Latest(in)
	if err != nil && !none(err) {
		return s, err
	}
	r, err := checkpoint.LatestRunning(in)
	if err != nil && !none(err) {
		return s, err
	}
	s = storedCheckpoints{generation: m.Generation, cut: m.Cut, durable: v.durable, running: r.Number}
	if s.cut > v.durable && v.durable > 0 {
		_, err = checkpoint.LatestOfCut(in, v.durable, v.generation)
		s.isMissing = none(err)
	}
	return s, nil
}

// checkStored compares the record with the store, and ends the coordinator if the record is older. The loop does not
// wait for the store.
func (v *initialView) checkStored(ctx context.Context, c *Coordinator) {
	if c.cfg.Store == nil || !recovery.Of(c.job.Recovery).Traits().SavesAtEnd() {
		return
	}
	var stored storedCheckpoints
	err := disk.Retry{MaxAttempts: saveTries, Pause: savePause}.Do(ctx, func() (err error) {
		stored, err = v.readStored(c.cfg.Store)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			c.cfg.Log.Warn("cannot compare the job record with the checkpoints", "err", err)
		}
		return
	}
	c.inbox.doSaved(ctx, func() {
		// If the record has advanced since the store was read, it has also led to these checkpoints.
		if err := stored.check(c.core.Record()); err != nil && c.endErr == nil {
			c.endErr = olderRecordError(err)
		}
	})
}
