package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// ErrLog means that a shard cannot be made of the update log and its snapshots.
var ErrLog = errors.New("server: the update log")

// replay makes a shard of its newest snapshot and of what follows in its stream, and goes on with
// whatever comes there. It runs in a goroutine of its own.
type replay struct {
	s      *Server
	sh     *shard
	stream *shardstore.Stream // the shard's
	begun  time.Time
}

func newReplay(s *Server, sh *shard) *replay {
	return &replay{s: s, sh: sh, stream: sh.stream, begun: time.Now()}
}

// run runs until the shard is retired, or nothing more can be read.
func (r *replay) run(v *words.View) {
	err := r.follow(v)
	if err == nil || r.over() || errors.Is(err, updatelog.ErrTrimmed) && r.s.reopens(r.sh) {
		return
	}
	r.fail(err)
}

// over reports whether the shard is not here any more, or the server ends.
func (r *replay) over() bool { return r.sh.retired() || r.stream.Ended() }

func (r *replay) fail(err error) { r.s.fail(fmt.Errorf("%w: shard %d: %w", ErrLog, r.sh.id, err)) }

func (r *replay) follow(v *words.View) error {
	updates, err := r.s.updateLog()
	if err != nil {
		return err
	}
	r.stream.Use(updates)
	from, err := r.load(v)
	if err != nil {
		return err
	}
	next, err := r.stream.Open(from)
	if err != nil {
		return err
	}
	if !r.s.beginReading(r.sh, from) {
		return nil
	}
	r.s.wg.Go(func() {
		if err := r.stream.AppendFacts(); err != nil {
			r.fail(err)
		}
	})
	r.s.wg.Go(r.stream.AskLength)
	r.s.cfg.Log.Info("reading the update log", "shard", r.sh.id, "from", from, "to", next, "loaded_in",
		time.Since(r.begun))
	return r.stream.Read(from, r.takeEntry, func(resume updatelog.Position) {
		r.sh.mu.Lock()
		first := r.stream.CaughtUp(resume)
		r.sh.mu.Unlock()
		if !first {
			return
		}
		r.s.notify()
		r.s.cfg.Log.Info("read the update log", "shard", r.sh.id, "from", from, "to", next, "seconds",
			time.Since(r.begun).Seconds())
	})
}

// load makes the shard what its newest snapshot says, or, where there is none, what it is before its
// first record. It returns where to read from.
func (r *replay) load(v *words.View) (from updatelog.Position, err error) {
	var in *replica.Incoming
	err = r.sh.saver.Await("cannot read a snapshot; training waits", func() (err error) {
		in, from, err = r.stream.Load(&r.sh.job, r.s.cfg.Log)
		return err
	})
	if r.over() {
		return 0, context.Canceled
	}
	if err != nil {
		return 0, err
	}
	if in != nil {
		r.resume(in)
		return from, nil
	}
	var c replica.Content
	err = r.sh.saver.Await("cannot read a checkpoint; training waits", func() (err error) {
		c, err = r.sh.saver.Load(v)
		return err
	})
	if r.over() {
		return 0, context.Canceled
	}
	if err == nil {
		r.sh.mu.Lock()
		if !r.sh.retired() {
			r.sh.fill(c, v)
		}
		r.sh.mu.Unlock()
	}
	return from, err
}

// lookAgain is how often a newer snapshot is looked for again, a second apart, where the log begins behind all.
const lookAgain = 3

// reopens has a shard made anew whose stream was cut before it had read what was cut off:
// another server that held it, or holds it, has written a newer snapshot since. It
// reports whether there is one.
func (s *Server) reopens(sh *shard) bool {
	newer := sh.stream.Newer()
	for range lookAgain { // the store may list late
		if newer > 0 || sh.retired() {
			break
		}
		sh.stream.Pause(time.Second)
		newer = sh.stream.Newer()
	}
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
	for c := range s.conns { // it is the same life to those who have opened it: they open it again
		if !c.server {
			c.end()
		}
	}
	if at, held := s.placeOf(s.view, sh.id); held {
		s.begins(sh.id, at)
	}
	return true
}

// beginReading lets a shard follow the present view that is to read its stream from a position,
// if it is here still.
func (s *Server) beginReading(sh *shard, from updatelog.Position) bool {
	sh.mu.Lock()
	sh.stream.Begin(from)
	sh.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shards[sh.id] != sh {
		return false
	}
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

// resume makes the shard what a snapshot of its stream says.
func (r *replay) resume(in *replica.Incoming) {
	sh := r.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return
	}
	sh.rep.Adopt(in)
	sh.slots.grow(len(sh.rep.State.Applied()))
	sh.link.Begin()
	sh.follow(sh.view, &sh.at)
}

// takeEntry takes what was read from the stream, in its order.
func (r *replay) takeEntry(e updatelog.Entry) error {
	sh := r.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return context.Canceled
	}
	if err := r.takeRecord(e.Payload); err != nil {
		return fmt.Errorf("record %d of stream %s: %w; all before it is whole, and nothing after it can be used: "+
			"begin the job again", e.Position, updatelog.StreamName(sh.job.ID, int(sh.id)), err)
	}
	r.stream.Taken(&e)
	sh.advance()
	sh.saveSnapshot()
	return nil
}

// takeRecord takes a record into the log. It needs the shard's lock.
func (r *replay) takeRecord(record []byte) error {
	sh, buffers := r.sh, &r.s.buffers
	e, counts, err := r.stream.Entry(record, &sh.link, &sh.rep.State, len(sh.view.Tables), r.s.cfg.weak.Generations)
	if err != nil || !counts {
		return err
	}
	if e.Frame.Kind == wire.KindUpdate && buffers.Wants(e.Frame.Body) { // it is not this server's alone
		e.Frame.Body = append(buffers.Payload(len(e.Frame.Body))[:0], e.Frame.Body...)
	}
	sh.link.Append(e)
	return nil
}
