package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// ErrLog means that a shard cannot be rebuilt from the update log and its snapshots.
var ErrLog = errors.New("server: the update log")

// replay rebuilds a shard from its newest snapshot and the records after it in the update log, and then follows the
// log. It runs in its own goroutine.
type replay struct {
	s      *Server
	sh     *shard
	stream *shardstore.Stream // the shard's
	begun  time.Time
}

func newReplay(s *Server, sh *shard) *replay {
	return &replay{s: s, sh: sh, stream: sh.stream, begun: time.Now()}
}

// run replays until the shard is retired or the log cannot be read any further.
func (r *replay) run(v *protocol.View) {
	err := r.follow(v)
	if err == nil || r.stopped() || errors.Is(err, updatelog.ErrTrimmed) && r.s.reopenTrimmed(r.sh) {
		return
	}
	r.fail(err)
}

// stopped reports whether the shard is retired or the server ends.
func (r *replay) stopped() bool { return r.sh.retired() || r.stream.Stopped() }

func (r *replay) fail(err error) { r.s.fail(fmt.Errorf("%w: shard %d: %w", ErrLog, r.sh.id, err)) }

func (r *replay) follow(v *protocol.View) error {
	updates, err := r.s.updateLog()
	if err != nil {
		return err
	}
	r.stream.SetLog(updates)
	from, err := r.load(v)
	if err != nil {
		return err
	}
	next, err := r.stream.Open(from)
	if err != nil {
		return err
	}
	if !r.s.startReading(r.sh, from) {
		return nil
	}
	r.s.wg.Go(func() {
		if err := r.stream.AppendFacts(); err != nil {
			r.fail(err)
		}
	})
	r.s.wg.Go(r.stream.PollLength)
	r.s.cfg.Log.Info("reading the update log", "shard", r.sh.id, "from", from, "to", next, "loaded_in",
		time.Since(r.begun))
	return r.stream.Read(from, r.handleEntry, func(resume updatelog.Position) {
		r.sh.mu.Lock()
		first := r.stream.CaughtUpLocked(resume)
		r.sh.mu.Unlock()
		if !first {
			return
		}
		r.s.notify()
		r.s.cfg.Log.Info("read the update log", "shard", r.sh.id, "from", from, "to", next, "seconds",
			time.Since(r.begun).Seconds())
	})
}

// load sets the shard to its newest snapshot, or to its initial state if there is no snapshot. It returns the position
// to read from.
func (r *replay) load(v *protocol.View) (from updatelog.Position, err error) {
	var in *replica.IncomingSnapshot
	err = r.sh.saver.RetryTemporary(
		"cannot read a snapshot; training is paused until it can be read",
		func() (err error) {
			in, from, err = r.stream.Load(&r.sh.job, r.s.cfg.Log)
			return err
		},
	)
	if r.stopped() {
		return 0, context.Canceled
	}
	if err != nil {
		return 0, err
	}
	if in != nil {
		r.setSnapshot(in)
		return from, nil
	}
	var c replica.Content
	err = r.sh.saver.RetryTemporary(
		"cannot read a checkpoint; training is paused until it can be read",
		func() (err error) {
			c, err = r.sh.saver.Load(v)
			return err
		},
	)
	if r.stopped() {
		return 0, context.Canceled
	}
	if err == nil {
		r.sh.mu.Lock()
		if !r.sh.retired() {
			r.sh.setContentLocked(c, v)
		}
		r.sh.mu.Unlock()
	}
	return from, err
}

// snapshotRetries is how often, one second apart, a newer snapshot is looked up if the log starts after all known ones.
const snapshotRetries = 3

// reopenTrimmed recreates a shard whose log was trimmed before the trimmed records were read. In that case a server
// that held or holds the shard has written a newer snapshot. It reports whether that snapshot exists.
func (s *Server) reopenTrimmed(sh *shard) bool {
	newer := sh.stream.NewerPosition()
	for range snapshotRetries { // the store's listing may lag
		if newer > 0 || sh.retired() {
			break
		}
		sh.stream.Sleep(time.Second)
		newer = sh.stream.NewerPosition()
	}
	if newer == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shards[sh.id] != sh {
		return true // this server no longer holds the shard
	}
	s.cfg.Log.Info("the update log was trimmed; reading from a newer snapshot", "shard", sh.id, "position", newer)
	sh.retireLocked()
	for c := range s.conns { // generation and epoch stay the same for readers, so they must open the shard again
		if !c.server {
			c.closeAsync()
		}
	}
	if at, held := s.chainPositionLocked(s.view, sh.id); held {
		s.addShardLocked(sh.id, at)
	}
	return true
}

// startReading lets a shard follow the current view before it reads its log from a position. It reports whether the
// server still holds the shard.
func (s *Server) startReading(sh *shard, from updatelog.Position) bool {
	sh.mu.Lock()
	sh.stream.BeginLocked(from)
	sh.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shards[sh.id] != sh {
		return false
	}
	if at, held := s.chainPositionLocked(s.view, sh.id); held {
		s.followViewLocked(sh, at)
	}
	s.notify()
	return true
}

// updateLog returns the update log. The first caller opens it.
func (s *Server) updateLog() (updatelog.Log, error) {
	s.openLogMu.Lock()
	defer s.openLogMu.Unlock()
	if s.updates != nil {
		return s.updates, nil
	}
	if s.cfg.OpenLog == nil {
		return nil, fmt.Errorf("%w: this server was started without an update log", perdure.ErrUsage)
	}
	job := s.jobSpec()
	updates, err := s.cfg.OpenLog(s.ctx, updatelog.WithToken(job.Log, s.cfg.Keys.LogToken(job)), updatelog.Options{
		Job: job.ID, Shards: job.Shards, Status: s.onLogStatus,
		OnLost: func(shard int, err error) { s.fail(fmt.Errorf("%w: shard %d: %w", ErrLog, shard, err)) },
	})
	if err != nil {
		return nil, err
	}
	s.updates = updates
	return updates, nil
}

// onLogStatus is called when the update log stops and resumes accepting records.
func (s *Server) onLogStatus(shard int, why error) {
	s.mu.Lock()
	sh := s.shards[perdure.ShardID(shard)]
	s.mu.Unlock()
	switch news := s.waits.Record(shard, why); {
	case news && why != nil:
		s.cfg.Log.Warn("waiting for the update log", "shard", shard, "why", why)
	case news:
		s.cfg.Log.Info("the update log accepts records again", "shard", shard)
	}
	s.notify()
	if sh != nil {
		sh.makeLogSpace(errors.Is(why, updatelog.ErrFull))
	}
}

// setSnapshot sets the shard to a snapshot.
func (r *replay) setSnapshot(in *replica.IncomingSnapshot) {
	sh := r.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return
	}
	sh.rep.InstallSnapshot(in)
	sh.slots.grow(len(sh.rep.State.Applied()))
	sh.link.Start()
	sh.followLocked(sh.view, &sh.position)
}

// handleEntry processes entries of the update log in order.
func (r *replay) handleEntry(e updatelog.Entry) error {
	sh := r.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return context.Canceled
	}
	if err := r.appendRecordLocked(e.Payload); err != nil {
		return fmt.Errorf(
			"record %d of stream %s: %w; the log is intact up to this record, but cannot be read beyond it: start a "+
				"new job", e.Position, updatelog.StreamName(sh.job.ID, int(sh.id)), err)
	}
	r.stream.AppliedLocked(&e)
	sh.advanceLocked()
	sh.saveSnapshotLocked()
	return nil
}

// appendRecordLocked appends a record to the shard's log. The caller must hold the shard's lock.
func (r *replay) appendRecordLocked(record []byte) error {
	sh, buffers := r.sh, &r.s.buffers
	e, counts, err := r.stream.EntryLocked(record, &sh.link, &sh.rep.State, len(sh.view.Tables),
		r.s.cfg.mutations.Generations)
	if err != nil || !counts {
		return err
	}
	if e.Frame.Kind == wire.KindUpdate && buffers.Wants(e.Frame.Body) { // the memory is shared
		e.Frame.Body = append(buffers.Payload(len(e.Frame.Body))[:0], e.Frame.Body...)
	}
	sh.link.Append(e)
	return nil
}
