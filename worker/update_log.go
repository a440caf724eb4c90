package worker

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
)

// In a job with an update log, workers write updates and ticks to the log, and servers read them from it. A worker can
// therefore continue to write while a shard has no server. An update is safe, and under two-step clocks staged, once
// the log has acknowledged all of it. After that the worker keeps it only to show it on top of rows that do not contain
// it yet.

// updateLog is this client's writer of the job's update log.
type updateLog struct {
	log   updatelog.Log          // nil: updates go to servers
	waits *updatelog.WaitReasons // safe for concurrent use
	// appended is called without the lock when the log has an entry that completes an update, or when the log rejects
	// further entries.
	appended func(sh *shardLink, completes *outbox.Update, err error)
}

// openLog opens the job's update log with the run's secret.
func (c *Client) openLog(ctx context.Context, secret perdure.Secret) error {
	open, job := c.cfg.hooks.OpenLog, &c.job
	keys := wire.Keys{Job: secret}
	log, err := open(ctx, updatelog.WithToken(job.Log, keys.LogToken(job)), updatelog.Options{
		Job: job.ID, Shards: job.Shards, Status: c.noteLog,
		OnLost:      func(_ int, err error) { c.fail(logFailed(err)) },
		MaxInFlight: math.MaxInt, // the window is the limit, so Append never waits
	})
	if err != nil {
		return err
	}
	l := c.lock()
	defer c.mu.Unlock()
	l.log.log = log
	l.log.appended = func(sh *shardLink, u *outbox.Update, err error) {
		l := c.lock()
		defer c.mu.Unlock()
		l.logged(sh, u, err)
	}
	return nil
}

func logFailed(err error) error { return fmt.Errorf("worker: the update log: %w", err) }

// noteLog is called when the log stops taking entries, and when it takes them again.
func (c *Client) noteLog(shard int, why error) {
	switch news := c.logWaits.Record(shard, why); {
	case news && why != nil:
		c.cfg.Log.Warn("updates wait for the update log", "shard", shard, "why", why)
	case news:
		c.cfg.Log.Info("resumed writing updates to the update log", "shard", shard)
	}
}

// put appends those parts of a shard's updates to its stream that are not there yet. mayHold allows the newest update
// to wait, so that it can be merged with the next one.
func (u *updateLog) put(sh *shardLink, mayHold bool) error {
	entries := sh.out.LogRecords(sh.as, mayHold)
	for _, e := range entries {
		if err := u.append(sh, e.Frame, e.Completes); err != nil {
			return err
		}
	}
	switch {
	case !sh.out.IsHolding():
		sh.heldSince = time.Time{}
	case len(entries) > 0 || sh.heldSince.IsZero():
		sh.heldSince = time.Now()
	}
	return nil
}

// append appends a frame, which may complete an update, to a shard's stream.
func (u *updateLog) append(sh *shardLink, f wire.Frame, completes *outbox.Update) error {
	header, appended := make([]byte, wire.HeaderBytes), u.appended
	wire.PutHeader(header, &f)
	parts := [][]byte{header, f.Payload, f.Body}
	err := u.log.Append(context.Background(), int(sh.id), parts, func(_ updatelog.Position, err error) {
		runtime.KeepAlive(f.Release) // keeps the body's memory
		if err != nil || completes != nil {
			appended(sh, completes, err)
		}
	})
	if err != nil {
		return logFailed(err)
	}
	return nil
}

// holdsFor limits how long an update is held back from the log, in multiples of Config.OutageAfter. Other workers, for
// which the shard is available, may wait for its clocks.
const holdsFor = 10

// old returns a function that reports whether a shard's updates have been held back for so long that another process
// may wait for them. waits is true if this process itself waits, possibly for a process that waits for these updates.
func (u *updateLog) old(now time.Time, after time.Duration, waits bool) func(sh *shardLink) bool {
	return func(sh *shardLink) bool { return waits || now.Sub(sh.heldSince) >= holdsFor*after }
}

// everyShard selects all shards for flushHeld.
func everyShard(*shardLink) bool { return true }

// flushHeld appends held-back updates of the selected shards to the update log.
func (l *locked) flushHeld(which func(*shardLink) bool) {
	for _, sh := range l.shards {
		if sh.out.IsHolding() && which(sh) {
			l.failIf(l.log.put(sh, false))
		}
	}
}

// logged records that an update is in the log, or that the log rejects further entries.
func (l *locked) logged(sh *shardLink, u *outbox.Update, err error) {
	if err != nil {
		l.fail(logFailed(err))
		return
	}
	sh.out.RecordLogged(u)
	if l.out.Ticks().Advance() {
		l.sendTicks()
	}
	if l.out.CheckCutWanted() {
		l.notify()
	}
	l.waits.Wake()
}
