package worker

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/data/wire"
)

// Package reads decides how a read is served. The functions here wait for its calls, and send the requests that it
// produces.

// reads returns the configuration of package reads for the job.
func (cfg *Config) reads(job *perdure.JobSpec, slot perdure.Slot) reads.Config {
	return reads.Config{
		Slot: slot, Slots: job.Slots, Exact: cfg.Observer, Bytes: cfg.CacheBytes,
		OnOutage: job.OnOutage, OutageRows: job.OutageRows,
	}
}

// setReadProgress passes the current clock and view to package reads.
func (l *locked) setReadProgress() {
	now := reads.Progress{
		Clock: l.out.Clock(), End: l.view.End, MinReadClock: consistency.AnyClock, Intervals: l.out.Intervals(),
	}
	if l.view.Tentative { // the end may be taken back: a slot that joins after it reads as if training continued
		now.End = l.job.Clocks
	}
	if l.slot >= 0 && int(l.slot) < len(l.view.Slots) && l.out.Mode() == perdure.ClockTwoStep {
		now.MinReadClock = l.view.Slots[l.slot].Start
	}
	if l.slot >= 0 && now.End > 0 && now.Clock >= now.End {
		now.MinReadClock = now.End // the job's final rows, under any model
	}
	l.reads.SetProgress(now)
}

// read reads rows into dst, and returns the clocks of these rows. If e is not float32, servers round them.
func (t *Table) read(ctx context.Context, rows *wire.Rows, dst []float32, e perdure.Encoding) (reads.Clocks, error) {
	l := t.c.lock()
	defer t.c.mu.Unlock()
	l.time.Begin(time.Now())
	for {
		if err := cmp.Or(t.awaitStart(ctx, l), l.usable()); err != nil {
			return reads.Clocks{}, err
		}
		var call *reads.Call
		if e == perdure.EncodingFloat32 {
			call = t.rows.Read(rows, dst, l.out)
		} else {
			call = l.reads.ReadRounded(t.rows, rows, dst, e)
		}
		if !call.Done() { // most calls find all rows in the cache
			if err := l.await(ctx, call, l.usable); l.cfg.readsOn(err) {
				continue
			} else if err != nil {
				return reads.Clocks{}, err
			}
		}
		if of, again, err := call.End(rows); !again {
			return of, err
		}
	}
}

// awaitStart waits until the updates of the slot's earlier processes are in the rows.
func (*Table) awaitStart(ctx context.Context, l *locked) error {
	if l.out.Ticks().MayRead() {
		return nil
	}
	start := time.Now()
	defer func() { l.time.Blocked(time.Since(start), 0, false, 0) }()
	return l.waits.Until(ctx, func() (bool, error) { return l.out.Ticks().MayRead(), l.usable() })
}

// readsOn reports whether a read that ended with err is repeated. An observer has nothing that a rollback could undo.
func (cfg *Config) readsOn(err error) bool {
	return cfg.Observer && errors.Is(err, perdure.ErrRolledBack)
}

// await sends a call's requests and waits until all are answered, check fails, or the job rolls back. After an error
// nothing writes to the call's memory any longer.
func (l *locked) await(ctx context.Context, call *reads.Call, check func() error) error {
	if call.Done() {
		return nil
	}
	l.carryOut()
	start := l.outages.waits()
	defer func() {
		held, pushed, late := call.Waited()
		const us = time.Microsecond
		l.time.Blocked(time.Since(start), time.Duration(held)*us, pushed, time.Duration(late)*us)
		l.outages.waited(start)
	}()
	err := l.waits.Until(ctx, func() (bool, error) {
		if err := check(); err != nil {
			return false, err
		}
		if call.RolledBack() {
			return false, perdure.ErrRolledBack
		}
		return call.Done(), nil
	})
	if err != nil {
		l.abandon(call)
	}
	return err
}

// abandon gives up a call and waits until no answer is being received into its memory.
func (l *locked) abandon(call *reads.Call) {
	call.Abandon()
	l.waits.WaitWhile(func() bool {
		l.carryOut()
		return call.IsReceiving()
	})
}

// carryOut carries out all pending work of package reads.
func (l *locked) carryOut() {
	if l.gather() {
		l.servers.flush()
	}
}

// gather carries out the pending work of package reads, except that it only queues frames for servers. It reports
// whether it queued any.
func (l *locked) gather() (some bool) {
	due := l.reads.TakeActions()
	for i := range due.Frames {
		sh := l.shards[due.Frames[i].Shard]
		f := sh.frame(due.Frames[i].Kind)
		f.Request, f.Clock = due.Frames[i].Request, due.Frames[i].Clock
		f.Flags, f.Payload = due.Frames[i].Flags, due.Frames[i].Payload
		if f.Kind == wire.KindLoad {
			f.Slot = due.Frames[i].Slot
		}
		sh.reader.batch = append(sh.reader.batch, f)
	}
	for _, from := range due.Close {
		l.servers.closeSource(from)
	}
	if due.Wake {
		l.waits.Wake()
	}
	return len(due.Frames) > 0
}

// settle records that a connection no longer receives into a reader's memory.
func (l *locked) settle(p *peer) {
	if l.reads.EndReceive(&p.answers) {
		l.waits.Wake()
	}
}
