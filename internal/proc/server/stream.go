package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/stream"
)

// ErrLog means that a shard cannot be made of the update log and its snapshots.
var ErrLog = errors.New("server: the update log")

// logged is what a shard has under the strategy stateless. Its log is its stream of the
// update log, to which workers append what they would send to a head, and from which
// every server that holds the shard takes it, in the same order. So two servers compute
// the same, and what a server has is nowhere but in the stream.
//
// What the head makes of the view, it appends too, and it takes effect when it is read
// back. The first of an epoch is a Life: from there on, facts of earlier epochs count for
// nobody, whoever appends them late. A shard serves in an epoch once it has read that
// epoch's Life: all is before that which any server has shown in an earlier one. Facts
// are numbered, and one follows another only when the log has that: an append that was
// repeated counts once.
//
// Entries may come twice: their senders repeat them, and who begins at a snapshot is
// given some that it holds. The applied vector, and facts' numbers, tell.
type logged struct {
	ctx    context.Context // the shard's life
	cancel context.CancelFunc

	// Guarded by shard.mu.
	resume updatelog.Position // of what is not in the state, the first may be there
	level  bool               // all is that was in the stream when it was opened
	newest uint64             // the position of the newest snapshot that there was then
	facts  stream.Facts
	saves  stream.Saves
	length stream.Length
	wake   chan struct{} // capacity 1: there is a fact to be appended
}

func newLogged(ctx context.Context, l stream.Limits) *logged {
	st := &logged{wake: make(chan struct{}, 1), saves: stream.NewSaves(l)}
	st.ctx, st.cancel = context.WithCancel(ctx)
	return st
}

// lives reports whether the shard may serve in its epoch, and has the epoch begin if it is
// the head's. It needs sh.mu.
func (sh *shard) lives() bool {
	st := sh.stream
	if sh.link.Place().Head && st.facts.Begins(sh.name.Epoch) {
		sh.enqueue(sh.name.Frame(wire.KindLife))
	}
	return st.facts.Life().Epoch == sh.name.Epoch && !sh.link.Place().Joining
}

// enqueue has a fact appended to the stream. It needs sh.mu.
func (sh *shard) enqueue(f wire.Frame) {
	st := sh.stream
	st.facts.Add(f, sh.name.Epoch)
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// joined reports whether a server that is to take a shard over has read all that was in
// its stream. It needs sh.mu.
func (sh *shard) joined() bool {
	if sh.stream != nil {
		return sh.link.Place().Joining && sh.stream.level
	}
	return sh.link.Joined()
}

// replay makes the shard of its newest snapshot and of what follows in its stream, and
// goes on with whatever comes there. It runs in a goroutine of its own.
func (sh *shard) replay(v *perdure.View) {
	err := sh.follows(v)
	if err == nil || sh.stream.ctx.Err() != nil || errors.Is(err, updatelog.ErrTrimmed) && sh.s.reopens(sh) {
		return
	}
	sh.s.fail(fmt.Errorf("%w: shard %d: %w", ErrLog, sh.id, err))
}

// reopens has a shard made anew whose stream was cut before it had read what was cut off:
// another server that held it, or holds it, has written a newer snapshot since. It
// reports whether there is one.
func (s *Server) reopens(sh *shard) bool {
	files, err := checkpoint.Snapshots(s.cfg.Disk, s.cfg.SnapshotDir, sh.id)
	if err != nil || len(files) == 0 || files[0].Position <= sh.stream.newest {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shards[sh.id] != sh {
		return true // it is not this server's any more
	}
	s.cfg.Log.Info("the update log was cut; reading from a newer snapshot", "shard", sh.id, "position",
		files[0].Position)
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
	begin := time.Now()
	from, err := sh.loadSnapshot(v)
	if err != nil {
		return err
	}
	first, next, err := updates.Extent(st.ctx, int(sh.id))
	switch {
	case err != nil:
		return err
	case from > next:
		return fmt.Errorf("the snapshot holds all before record %d, and the log ends before record %d: "+
			"what was in it is gone, or it is another one; "+
			"give the job the log that it had", from, next)
	case from < first:
		return fmt.Errorf("%w: the newest snapshot that can be used holds all before record %d, "+
			"and the log begins at record %d; "+
			"bring the newer snapshots back to %s, or begin the job again", updatelog.ErrTrimmed, from, first,
			s.cfg.SnapshotDir)
	}
	if !s.reads(sh, from) {
		return nil
	}
	s.wg.Go(sh.appendFacts)
	s.wg.Go(sh.askLength)
	s.cfg.Log.Info("reading the update log", "shard", sh.id, "from", from, "to", next, "loaded_in", time.Since(begin))
	return updates.Read(st.ctx, int(sh.id), from, sh.takeEntry, func(resume updatelog.Position) {
		sh.caughtUp(resume)
		if begin.IsZero() {
			return
		}
		s.cfg.Log.Info("read the update log", "shard", sh.id, "from", from, "to", next, "seconds",
			time.Since(begin).Seconds())
		begin = time.Time{}
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
	sh.stream.resume = from
	sh.stream.length.Taken(from - 1)
	sh.mu.Unlock()
	if at, held := s.placeOf(s.view, sh.id); held {
		s.bring(sh, at)
	}
	s.notify()
	return true
}

// caughtUp notes that all that was in the stream is in the state.
func (sh *shard) caughtUp(resume updatelog.Position) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	st := sh.stream
	st.length.Taken(resume - 1)
	st.resume = max(st.resume, resume)
	if !st.level {
		st.level = true
		sh.s.notify()
	}
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
	s := sh.s
	files, err := checkpoint.Snapshots(s.cfg.Disk, s.cfg.SnapshotDir, sh.id)
	if err != nil {
		return 0, err
	}
	if len(files) > 0 {
		sh.stream.newest = files[0].Position
	}
	for i, file := range files {
		in := replica.NewIncoming(&sh.job, sh.id)
		err = checkpoint.ReadSnapshot(s.cfg.Disk, s.cfg.SnapshotDir, file.Name, sh.job.ID, sh.id,
			func(about *checkpoint.Snapshot, r io.Reader) error {
				return fromFile(in, about, r)
			})
		if err == nil {
			sh.mu.Lock()
			defer sh.mu.Unlock()
			sh.view = v
			sh.stream.saves.Restore(files[i:])
			sh.loaded(in)
			return updatelog.Position(file.Position), nil
		}
		if errors.Is(err, checkpoint.ErrOtherJob) {
			return 0, err
		}
		s.cfg.Log.Warn("cannot use a snapshot; an older one may do", "shard", sh.id, "err", err)
	}
	c, err := s.loadContent(sh.id, v)
	if err == nil {
		sh.fill(c, v)
	}
	return 1, err
}

// loaded needs sh.mu.
func (sh *shard) loaded(in *replica.Incoming) {
	sh.adopt(in)
	sh.stream.facts.Restore(in.Life())
	sh.link.Begin()
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
	sh.stream.resume = e.Resume
	sh.stream.length.Taken(e.Position)
	sh.stream.saves.Count(&e)
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
	case sh.stream.facts.Take(f, sh.s.cfg.weak.Generations):
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

// appendFacts appends to the stream what is in the queue, one after the other.
func (sh *shard) appendFacts() {
	st := sh.stream
	for st.ctx.Err() == nil {
		sh.mu.Lock()
		f, ok := st.facts.Next()
		sh.mu.Unlock()
		if !ok {
			select {
			case <-st.wake:
			case <-st.ctx.Done():
			}
			continue
		}
		if err := sh.appendNow(wire.Append(nil, &f)); err != nil {
			if st.ctx.Err() == nil {
				sh.s.fail(fmt.Errorf("%w: shard %d: %w", ErrLog, sh.id, err))
			}
			return
		}
		sh.mu.Lock()
		st.facts.Appended(&f)
		sh.mu.Unlock()
	}
}

// appendNow appends an entry, and waits until the log has it.
func (sh *shard) appendNow(b []byte) error {
	done := make(chan error, 1)
	err := sh.s.updates.Append(sh.stream.ctx, int(sh.id), [][]byte{b},
		func(_ updatelog.Position, err error) { done <- err })
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-sh.stream.ctx.Done():
		return sh.stream.ctx.Err()
	}
}

// askLength asks for the length of the shard's stream, again and again.
func (sh *shard) askLength() {
	st := sh.stream
	tick := time.NewTicker(stream.LookEvery)
	defer tick.Stop()
	for {
		_, next, err := sh.s.updates.Extent(st.ctx, int(sh.id)) // waits while the log is away
		if err != nil {
			return // the shard is not here any more; or who reads finds it out too
		}
		sh.mu.Lock()
		st.length.Heard(next-1, time.Now())
		sh.mu.Unlock()
		select {
		case <-tick.C:
		case <-st.ctx.Done():
			return
		}
	}
}

// unread returns how many records the shard's rows lack; nil: that is not known. It needs
// sh.mu.
func (sh *shard) unread() *int64 {
	if sh.stream == nil {
		return nil
	}
	return sh.stream.length.Unread(time.Now())
}
