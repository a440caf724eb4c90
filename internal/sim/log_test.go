package sim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/sim"
)

// logged runs a job with one server, an update log, and a snapshot every snapshot bytes of the log. weaken, if not nil,
// changes the simulation's options. After 200 ms, and so after some clocks, logged calls what to inject a fault. It
// returns the error that the job ended with, or a violation found in the final state.
func logged(t *testing.T, snapshot int64, weaken func(*sim.Options),
	what func(ctx context.Context, c *sim.Cluster, job perdure.JobSpec),
) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		job := perdure.JobSpec{
			ID: "logged", Seed: 1, Slots: 2, Servers: 1, Shards: 2, Clocks: clocks,
			Consistency: perdure.Consistency{Kind: perdure.SSP, Staleness: 1},
			Recovery:    perdure.Recovery{Kind: perdure.RecoverStateless},
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		o := sim.Options{Seed: 1, Job: job, SnapshotBytes: snapshot}
		if weaken != nil {
			weaken(&o)
		}
		job = o.Job
		h := sim.NewHistory(job, false, job.Slots, nil)
		h.Pace = 20 * time.Millisecond
		o.Program, o.Events = h.Program, h
		c := sim.Start(ctx, o)
		go func() {
			select {
			case <-time.After(200 * time.Millisecond):
				what(ctx, c, job)
			case <-ctx.Done():
			}
		}()
		if err = h.Result(c.Wait()); err == nil {
			err = final(c, h, scenario{job: job})
		}
	})
	return err
}

// TestUnusableLog checks that a server that cannot be rebuilt reports the location of the fault and what to do.
func TestUnusableLog(t *testing.T) {
	for _, test := range []struct {
		name     string
		snapshot int64 // bytes of the log between snapshots
		harm     func(c *sim.Cluster, job perdure.JobSpec)
		is       error
		says     []string
	}{
		{"a damaged record", 1 << 20, func(c *sim.Cluster, job perdure.JobSpec) {
			c.Log().Alter(job.ID, 1, 7, func(b []byte) { b[len(b)-1] ^= 1 })
		}, updatelog.ErrDamaged, []string{"record 7", "shard 1"}},
		{"another log, older than the snapshots", 1 << 10, func(c *sim.Cluster, _ perdure.JobSpec) {
			c.ReplaceLog()
		}, nil, []string{"the snapshot contains all records before", "use the job's original log"}},
		{"a log that lost its end without a death", 1 << 20, func(c *sim.Cluster, job perdure.JobSpec) {
			c.Log().TruncateFrom(job.ID, 1, 7)
		}, updatelog.ErrDamaged, []string{"record 7", "shard 1", "it was acknowledged"}},
		{"an update in other pieces", 1 << 20, func(c *sim.Cluster, job perdure.JobSpec) {
			put(context.Background(), c, job,
				wire.Header{
					Kind: wire.KindUpdate, Generation: 1, Epoch: 1, Incarnation: 1, Clock: 1, Clocks: 1000,
					Parts: 1,
				})
		}, nil, []string{"clocks 1 to 1000", "the update is rejected", "start a new job"}},
		{"another log", 1 << 20, func(c *sim.Cluster, _ perdure.JobSpec) {
			c.ReplaceLog()
		}, nil, []string{"the log has lost some"}},
		{"lost snapshots", 1 << 10, func(c *sim.Cluster, _ perdure.JobSpec) {
			names, _ := c.Disk().List("snapshots")
			for _, name := range names {
				_ = c.Disk().Remove("snapshots/" + name)
			}
		}, nil, []string{"are gone", "newer snapshots"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := logged(t, test.snapshot, nil, func(_ context.Context, c *sim.Cluster, job perdure.JobSpec) {
				test.harm(c, job)
				if !strings.Contains(test.name, "without a death") {
					c.Kill("server:0", 0)
				}
			})
			if err == nil || test.is != nil && !errors.Is(err, test.is) {
				t.Fatalf("the job ended with %v", err)
			}
			for _, text := range test.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q does not contain %q", err, text)
				}
			}
		})
	}
}

// TestDamagedSnapshot checks that a damaged snapshot is replaced by the previous one and the log.
func TestDamagedSnapshot(t *testing.T) {
	err := logged(t, 1<<10, nil, func(_ context.Context, c *sim.Cluster, _ perdure.JobSpec) {
		c.Kill("server:0", time.Millisecond)
		names, _ := c.Disk().List("snapshots")
		if len(names) < 4 {
			panic(fmt.Sprintf("snapshots %v", names))
		}
		for i, name := range names { // the second of each shard is the newer
			if i%2 == 0 {
				continue
			}
			b, err := c.Disk().ReadFile("snapshots/" + name)
			if err != nil {
				panic(err)
			}
			b[len(b)/2] ^= 1
			f, err := c.Disk().Create("snapshots/" + name)
			if err != nil {
				panic(err)
			}
			_, _ = f.Write(b)
			_ = f.Close()
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// lateLists is a store that lists no objects before a given time, as an eventually consistent store may.
type lateLists struct {
	store.Store
	until *atomic.Int64
}

func (l lateLists) List(prefix string) ([]store.Entry, error) {
	if time.Now().UnixNano() < l.until.Load() {
		return nil, nil
	}
	return l.Store.List(prefix)
}

// TestLateSnapshots starts a server while the store does not yet list the snapshot up to which the log was truncated.
// The server waits for the snapshot, and then answers clients that have opened the shard meanwhile.
func TestLateSnapshots(t *testing.T) {
	var until atomic.Int64
	err := logged(t, 1<<10, func(o *sim.Options) {
		o.Snapshots = func(in store.Store) store.Store { return lateLists{in, &until} }
	}, func(_ context.Context, c *sim.Cluster, _ perdure.JobSpec) {
		until.Store(time.Now().Add(2500 * time.Millisecond).UnixNano())
		c.Kill("server:0", time.Millisecond)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFullLog fills a log while a snapshot is written or cannot be written. The log has capacity again after the
// snapshot, although no later record triggers one.
func TestFullLog(t *testing.T) {
	for name, harm := range map[string]func(c *sim.Cluster){
		"a slow disk": func(*sim.Cluster) {},
		"a full disk": func(c *sim.Cluster) { c.FillDisk(3 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			err := logged(t, 1<<20, func(o *sim.Options) {
				o.LogBytes = 2 * int64(o.Job.Shards) << 10
				o.Sync = time.Second
			}, func(_ context.Context, c *sim.Cluster, _ perdure.JobSpec) { harm(c) })
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBacklog checks workers that continue while their only server is unavailable for long, and fill the log. They then
// wait and report it. When a server returns, all pending updates are sent in order, and none is missing.
func TestBacklog(t *testing.T) {
	var said bytes.Buffer
	err := logged(t, 1<<20, func(o *sim.Options) {
		o.Job.Consistency = perdure.Consistency{Kind: perdure.ASP}
		o.Job.OnOutage = perdure.OnOutage{Continue: true, Clocks: 1000}
		o.LogBytes = 2 * int64(o.Job.Shards) << 10
		o.Log = slog.New(slog.NewTextHandler(&said, nil))
	}, func(_ context.Context, c *sim.Cluster, _ perdure.JobSpec) { c.Kill("server:0", 20*time.Second) })
	if err != nil {
		t.Errorf("%v\n%s", err, &said)
	}
	for _, text := range []string{
		"updates wait for the update log", "the log is full",
		"resumed writing updates to the update log",
	} {
		if !strings.Contains(said.String(), text) {
			t.Errorf("no log message: %s", text)
		}
	}
}

// TestSavesOn checks that after a server is replaced, the new process continues to write snapshots, and to truncate the
// log up to them.
func TestSavesOn(t *testing.T) {
	err := logged(t, 1<<10, nil, func(ctx context.Context, c *sim.Cluster, job perdure.JobSpec) {
		l, err := c.Log().Open(updatelog.Options{Job: job.ID, Shards: job.Shards})
		if err != nil {
			panic(err)
		}
		defer l.Close()
		c.Kill("server:0", 10*time.Millisecond)
		before, _, _ := l.Extent(ctx, 0)
		<-time.After(150 * time.Millisecond)
		if after, _, err := l.Extent(ctx, 0); after <= before || err != nil {
			t.Errorf("the log was not truncated: it began at record %d, now at %d: %v", before, after, err)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// late kills the server, waits until its successor has started the second epoch, and then appends a record to shard 0's
// log as if the head of the first epoch had sent it late. The record would end the job at clock 12, which is already
// past.
func late(ctx context.Context, c *sim.Cluster, job perdure.JobSpec) {
	c.Kill("server:0", time.Millisecond)
	<-time.After(100 * time.Millisecond)
	put(ctx, c, job, wire.Header{
		Kind: wire.KindEnd, Generation: 1, Epoch: 1, Request: 1000, Clock: 12,
		Slot: perdure.NoSlot,
	})
}

// lateBase does the same as late with another record: a base, which would raise each slot's count to all clocks except
// the last.
func lateBase(ctx context.Context, c *sim.Cluster, job perdure.JobSpec) {
	c.Kill("server:0", time.Millisecond)
	<-time.After(100 * time.Millisecond)
	base := wire.State{Applied: []perdure.Clock{clocks - 1, clocks - 1}}
	put(ctx, c, job, wire.Header{Kind: wire.KindBase, Generation: 1, Epoch: 1, Request: 1000, Slot: perdure.NoSlot},
		wire.AppendState(nil, &base)...)
}

// put appends a frame with header h and this payload to the log of shard 0, and waits until the log has answered.
func put(ctx context.Context, c *sim.Cluster, job perdure.JobSpec, h wire.Header, payload ...byte) {
	l, err := c.Log().Open(updatelog.Options{Job: job.ID, Shards: job.Shards})
	if err != nil {
		panic(err)
	}
	defer l.Close()
	f := wire.Frame{Header: h, Payload: payload}
	done := make(chan error, 1)
	if err := l.Append(ctx, 0, [][]byte{wire.Append(nil, &f)},
		func(_ updatelog.Position, err error) { done <- err }); err != nil {
		panic(err)
	}
	<-done
}

// TestLateFacts checks that records appended by a replaced head have no effect.
func TestLateFacts(t *testing.T) {
	for _, what := range []func(context.Context, *sim.Cluster, perdure.JobSpec){late, lateBase} {
		if err := logged(t, 1<<20, nil, what); err != nil {
			t.Error(err)
		}
	}
}

// TestLateFactsWeakened is the negative control: if epochs are ignored, the records have an effect.
func TestLateFactsWeakened(t *testing.T) {
	err := logged(t, 1<<20, func(o *sim.Options) { o.Mutations.Generations = true }, lateBase)
	var v *sim.Violation
	if !errors.As(err, &v) {
		t.Errorf("no violation found: %v", err)
	}
	t.Log(err)
}
