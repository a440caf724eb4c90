package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
)

// ErrLog means that a shard cannot be made of the update log and its snapshots.
var ErrLog = errors.New("server: the update log")

// joined reports whether a server that is to take a shard over has read all that was in
// its stream. It needs sh.mu.
func (sh *shard) joined() bool {
	if sh.stream != nil {
		return sh.link.Place().Joining && sh.stream.Level()
	}
	return sh.link.Joined()
}

// replay makes the shard of its newest snapshot and of what follows in its stream, and
// goes on with whatever comes there. It runs in a goroutine of its own.
func (sh *shard) replay(v *perdure.View) {
	err := sh.follows(v)
	if err == nil || sh.stream.Ended() || errors.Is(err, updatelog.ErrTrimmed) && sh.s.reopens(sh) {
		return
	}
	sh.s.fail(fmt.Errorf("%w: shard %d: %w", ErrLog, sh.id, err))
}

// reopens has a shard made anew whose stream was cut before it had read what was cut off:
// another server that held it, or holds it, has written a newer snapshot since. It
// reports whether there is one.
func (s *Server) reopens(sh *shard) bool {
	newer := sh.stream.Newer()
	if newer == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shards[sh.id] != sh {
		return true // it is not this server's any more
	}
	s.cfg.Log.Info("the update log was cut; reading from a newer snapshot", "shard", sh.id, "position", newer)
	sh.retire()
	delete(s.shards, sh.id)
	if at, held := s.placeOf(s.view, sh.id); held {
		s.opens(sh.id, at)
	}
	return true
}

func (sh *shard) follows(v *perdure.View) error {
	s, st := sh.s, sh.stream
	updates, err := s.updateLog()
	if err != nil {
		return err
	}
	st.Use(updates)
	begin := time.Now()
	from, err := sh.loadSnapshot(v)
	if err != nil {
		return err
	}
	next, err := st.Open(from)
	if err != nil {
		return err
	}
	if !s.reads(sh, from) {
		return nil
	}
	s.wg.Go(func() {
		if err := st.AppendFacts(); err != nil {
			s.fail(fmt.Errorf("%w: shard %d: %w", ErrLog, sh.id, err))
		}
	})
	s.wg.Go(st.AskLength)
	s.cfg.Log.Info("reading the update log", "shard", sh.id, "from", from, "to", next, "loaded_in", time.Since(begin))
	return st.Read(from, sh.takeEntry, func(resume updatelog.Position) {
		sh.mu.Lock()
		first := st.CaughtUp(resume)
		sh.mu.Unlock()
		if !first {
			return
		}
		s.notify()
		s.cfg.Log.Info("read the update log", "shard", sh.id, "from", from, "to", next, "seconds",
			time.Since(begin).Seconds())
	})
}

// reads lets a shard follow the present view that is to read its stream from a position,
// if it is here still.
func (s *Server) reads(sh *shard, from updatelog.Position) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shards[sh.id] != sh {
		return false
	}
	sh.mu.Lock()
	sh.stream.Begin(from)
	sh.mu.Unlock()
	if at, held := s.placeOf(s.view, sh.id); held {
		s.bring(sh, at)
	}
	s.notify()
	return true
}

// updateLog returns the way to the update log, which the first who asks opens.
func (s *Server) updateLog() (updatelog.Log, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.updates != nil {
		return s.updates, nil
	}
	if s.cfg.OpenLog == nil {
		return nil, fmt.Errorf("%w: nobody says where it is", perdure.ErrUsage)
	}
	job := s.jobSpec()
	updates, err := s.cfg.OpenLog(s.ctx, updatelog.Authorized(job.Log, s.cfg.Keys.LogToken(job)), updatelog.Options{
		Job: job.ID, Shards: job.Shards, Status: s.onLogStatus,
		Lost: func(shard int, err error) { s.fail(fmt.Errorf("%w: shard %d: %w", ErrLog, shard, err)) },
	})
	if err != nil {
		return nil, err
	}
	s.updates = updates
	return updates, nil
}

// onLogStatus is told when the log takes nothing, and when it does again.
func (s *Server) onLogStatus(shard int, why error) {
	s.mu.Lock()
	sh := s.shards[perdure.ShardID(shard)]
	s.mu.Unlock()
	switch news := s.waits.Note(shard, why); {
	case news && why != nil:
		s.cfg.Log.Warn("waiting for the update log", "shard", shard, "why", why)
	case news:
		s.cfg.Log.Info("the update log takes what waited", "shard", shard)
	}
	s.notify()
	if sh != nil {
		sh.makeLogRoom(errors.Is(why, updatelog.ErrFull))
	}
}

// loadSnapshot makes the shard what its newest snapshot says, or, where there is none, what it is
// before its first record. It returns where to read from.
func (sh *shard) loadSnapshot(v *perdure.View) (from updatelog.Position, err error) {
	in, from, err := sh.stream.Load(&sh.job, sh.s.cfg.Log)
	if err != nil {
		return 0, err
	}
	if in == nil {
		c, err := sh.s.loadContent(sh.id, v)
		if err == nil {
			sh.fill(c, v)
		}
		return from, err
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.view = v
	sh.adopt(in)
	sh.link.Begin()
	return from, nil
}

// takeEntry takes what was read from the stream, in its order.
func (sh *shard) takeEntry(e updatelog.Entry) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return context.Canceled
	}
	var f wire.Frame
	rest, err := wire.Decode(e.Payload, &f)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%w: %d bytes too many", wire.ErrPayload, len(rest))
	}
	if err == nil {
		err = sh.takeRecord(&f)
	}
	if err != nil {
		return fmt.Errorf("record %d: %w; all before it is whole, and nothing after it can be used: "+
			"begin the job again", e.Position, err)
	}
	sh.stream.Taken(&e)
	sh.advance()
	sh.saveSnapshot()
	return nil
}

// takeRecord needs sh.mu.
func (sh *shard) takeRecord(f *wire.Frame) error {
	if f.Shard != sh.id || f.Generation != sh.name.Generation {
		return fmt.Errorf("%w: it is of shard %d, generation %d, not of shard %d, generation %d", wire.ErrPayload,
			f.Shard, f.Generation, sh.id, sh.name.Generation)
	}
	e := replica.Entry{Frame: wire.Frame{Header: f.Header, Payload: f.Payload}}
	switch {
	case f.Kind == wire.KindUpdate || f.Kind == wire.KindTick:
		return sh.takeUpdate(f)
	case f.Kind == wire.KindAddTable && f.Slot >= 0: // a worker's: it has updates of it
	case sh.stream.Takes(f, sh.s.cfg.weak.Generations):
		e.Frame.Payload = append([]byte(nil), f.Payload...)
	default:
		return nil
	}
	sh.link.Append(e)
	sh.advance()
	return nil
}

// takeUpdate needs sh.mu.
func (sh *shard) takeUpdate(f *wire.Frame) error {
	if n := len(sh.rep.State.Applied()); f.Slot < 0 || int(f.Slot) >= n || f.Clock < 0 || f.Until() < 0 ||
		f.Parts > 0 && f.Part >= f.Parts {
		return fmt.Errorf("%w: it is of slot %d of %d, clock %d, part %d of %d", wire.ErrPayload, f.Slot, n, f.Clock,
			f.Part, f.Parts)
	}
	e := replica.Entry{Frame: wire.Frame{Header: f.Header}}
	if f.Kind == wire.KindUpdate && !sh.rep.State.Counted(f.Slot, f.Until()) {
		if err := sh.rep.State.CheckUpdate(f.Payload, len(sh.view.Tables)); err != nil {
			return err
		}
		e.Frame.Body = f.Payload
		if sh.s.buffers.Wants(f.Payload) { // it is not this server's alone
			e.Frame.Body = sh.s.buffers.Payload(len(f.Payload))
			copy(e.Frame.Body, f.Payload)
		}
	}
	sh.link.Append(e)
	return nil
}
