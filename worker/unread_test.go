package worker_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/transport"
)

// slowLog is a log whose readers wait while the test holds gate. They record in taken the positions they have read.
type slowLog struct {
	updatelog.Log
	gate  chan struct{} // capacity 1
	taken *sync.Map     // by shard
}

func (l *slowLog) Read(
	ctx context.Context, shard int, from updatelog.Position, deliver func(updatelog.Entry) error,
	caughtUp func(updatelog.Position),
) error {
	return l.Log.Read(ctx, shard, from, func(e updatelog.Entry) error {
		select {
		case l.gate <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		l.taken.Store(shard, e.Position)
		err := deliver(e)
		<-l.gate
		return err
	}, caughtUp)
}

// says returns the number of log records that all servers together have not read, as reported to the coordinator. It
// returns nil if any server has not reported it.
func (c *cluster) says() (records *int64) {
	must := func(err error) {
		if err != nil {
			c.Fatal(err)
		}
	}
	must(c.Leader().Ask(c.ctx, func(core *membership.Core, _ coordinator.Latest) {
		n := int64(0)
		records = &n
		for i := range c.job.Servers {
			u := core.MemberStatus(membership.Server, i).Server.Unread()
			if u == nil {
				records = nil
				return
			}
			n += *u
		}
	}))
	return records
}

// TestUnread checks that servers report how many log records they have not read, as long as the log answers.
func TestUnread(t *testing.T) {
	job := jobOf("asp", "stateless", 1, 1000)
	inJob(t, transport.MemoryOptions{}, nil, job, func(c *cluster) {
		gate, taken := make(chan struct{}, 1), &sync.Map{}
		c.killAll()
		c.slow = func(l updatelog.Log) updatelog.Log { return &slowLog{l, gate, taken} }
		c.startAll()
		w := c.dial("worker:0", 0)
		table := c.table(w)
		step := func(n int) {
			for range n {
				c.inc(table, 1)
				c.clock(w, w.Now()+1)
				c.pass(10 * time.Millisecond)
			}
		}
		step(3)
		c.pass(1200 * time.Millisecond) // time for a check and a report
		if n := c.says(); n == nil || *n != 0 {
			t.Errorf("servers that keep up are %v records behind", n)
		}

		gate <- struct{}{}
		step(5)
		c.pass(1200 * time.Millisecond)
		want := int64(0)
		log, err := c.Logs().Open(updatelog.Options{Job: job.ID, Shards: job.Shards})
		if err != nil {
			t.Fatal(err)
		}
		for shard, at := range maps.Collect(taken.Range) {
			_, next, err := log.Extent(c.ctx, shard.(int))
			if err != nil {
				t.Fatal(err)
			}
			want += int64(next - 1 - at.(updatelog.Position))
		}
		if n := c.says(); n == nil || *n != want || want < int64(5*job.Shards) {
			t.Errorf("servers that stand still are %v records behind, not %d", n, want)
		}
		<-gate
		c.pass(1200 * time.Millisecond)
		if n := c.says(); n == nil || *n != 0 {
			t.Errorf("servers that have read all are %v records behind", n)
		}
		c.Logs().SetUnavailable(true)
		c.pass(5 * time.Second)
		if n := c.says(); n != nil {
			t.Errorf("while the log is away, servers are %d records behind", *n)
		}
		c.Logs().SetUnavailable(false)
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
}
