package server_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
)

// TestHeadThatIsCutOff checks that a head without contact to its chain neither acknowledges nor shows updates that the
// others lack. Frames that it sent earlier arrive late and change nothing.
func TestHeadThatIsCutOff(t *testing.T) {
	inFleet(t, "bsp", "chain:3", 1, 3, func(f *fleet) {
		f.chain(0, 1, 2)
		f.table(dense())
		old := f.works(0, 0)
		once([]*speaker{old}, 0, add(1))
		if got := old.counts(); got.Applied != 1 {
			t.Fatalf("a chain of three applies nothing: %+v", got)
		}
		cut := []string{host(1), host(2), "coordinator"}
		for _, other := range cut {
			f.Net.Cut(host(0), other, false)
		}
		once([]*speaker{old}, 1, add(10))
		f.pass(5 * time.Second)
		if got := old.counts(); got.Applied != 1 || got.Staged != 1 {
			t.Errorf("the head acknowledges an update that only it has: %+v", got)
		}
		if _, ok := old.row(2); ok {
			t.Error("the head shows an update that only it has")
		}
		f.chain(1, 2)
		f.pass(time.Second)
		w := f.works(1, 0)
		once([]*speaker{w}, 1, add(100))
		for _, other := range cut[:2] {
			f.Net.Heal(host(0), other) // frames in flight arrive, or their sender reconnects
		}
		f.pass(5 * time.Second)
		once([]*speaker{old}, 2, add(1000)) // a worker that knows the old view
		if got := old.counts(); got.Applied != 1 {
			t.Errorf("the former head acknowledges after it woke up: %+v", got)
		}
		if v, ok := old.row(0); ok && v != 1 {
			t.Errorf("the former head shows %v, want the row of its MinClock, 1", v)
		}
		for _, i := range []int{1, 2} {
			if v, ok := f.works(i, 0).row(2); !ok || v != 101 {
				t.Errorf("server %d has %v, %t; want 101", i, v, ok)
			}
		}
		f.Net.Heal(host(0), "coordinator")
		f.pass(5 * time.Second)
		if _, ok := old.row(0); ok || f.shard(0).Epoch != 0 {
			t.Errorf("the former head still answers, or has the shard: %+v", f.shard(0))
		}
		if held := f.end(1, 2); held[0] != held[1] {
			t.Errorf("one has\n%s, the other\n%s", held[0], held[1])
		}
	})
}

// TestEveryReplicaAnswersReads checks that every replica answers reads up to the clock that it knows to be committed.
// It delays the others until it receives the commit.
func TestEveryReplicaAnswersReads(t *testing.T) {
	inFleet(t, "ssp:1", "chain:3", 1, 3, func(f *fleet) {
		f.chain(0, 1, 2)
		f.table(dense())
		var rs []*speaker
		for i := range 3 {
			s := f.speak(i, wire.Hello{Role: wire.RoleObserver, Index: i})
			s.slot = perdure.NoSlot
			s.say(wire.KindOpen, 0, nil)
			rs = append(rs, s)
		}
		w := f.works(0, 0)
		f.Net.Cut(host(1), host(0), true) // the head sends but receives nothing
		w.say(wire.KindUpdate, 0, add(1))
		for i, r := range rs[1:] {
			if v, ok := r.row(1); !ok || v != 1 {
				t.Errorf("replica %d answers %v, %t; want 1", i+1, v, ok)
			}
		}
		if v, ok := rs[0].row(0); !ok || v != 0 || rs[0].last(wire.KindRows).Clock != 0 {
			t.Errorf("the head answers %v, %t; want 0, of clock 0", v, ok)
		}
		if v, ok := rs[0].row(1); ok {
			t.Errorf("the head answers %v for a clock that it does not know to be committed", v)
		}
		before := rs[0].count(wire.KindRows)
		f.Net.Heal(host(1), host(0))
		f.pass(3 * time.Second)
		if rs[0].count(wire.KindRows) != before+1 || rs[0].last(wire.KindRows).Clock != 1 {
			t.Errorf("the read that waited was answered with %+v", rs[0].last(wire.KindRows))
		}
	})
}

// TestReplicaThatWakes checks that a replica which was frozen, and wakes up with old rows in an old epoch, labels them
// with their clock and answers no read that needs a newer one. A reader with an old view waits rather than violate its
// bound, and a reader that has seen newer rows never reads older ones.
func TestReplicaThatWakes(t *testing.T) {
	inFleet(t, "ssp:1", "chain:3", 2, 3, func(f *fleet) {
		f.chain(0, 1, 2)
		f.table(dense())
		reader, err := f.NewProcess("reader").Dial(f.ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		table, err := reader.Table(f.ctx, f.view.Tables[0])
		if err != nil {
			t.Fatal(err)
		}
		value := func(wait time.Duration) (float32, bool) {
			ctx, cancel := context.WithTimeout(f.ctx, wait)
			defer cancel()
			got := make([]float32, 1)
			table.Forget()
			err := table.GetRun(ctx, 0, got)
			return got[0], err == nil
		}
		writer := f.works(0, 0)
		writer.say(wire.KindUpdate, 0, add(1))
		if _, err := reader.Clock(f.ctx); err != nil {
			t.Fatal(err)
		}
		if v, ok := value(time.Second); !ok || v != 1 {
			t.Fatalf("the reader has %v, %t; want 1", v, ok)
		}
		f.pass(100 * time.Millisecond) // until all replicas have both slots' first clock
		for _, other := range []string{host(0), host(2), "coordinator"} {
			f.Net.Cut(host(1), other, false)
		}
		f.Net.Cut("reader", "coordinator", false) // the reader does not know the new view either
		f.chain(0, 2)
		writer = f.works(0, 0)
		writer.say(wire.KindUpdate, 1, add(10))
		writer.say(wire.KindUpdate, 2, add(100))

		woken := f.speak(1, wire.Hello{Role: wire.RoleObserver, Index: 7})
		woken.slot = perdure.NoSlot
		old := func(h *wire.Header) { h.Epoch = 1 }
		woken.say(wire.KindOpen, 0, nil, old)
		woken.say(wire.KindGet, 1, wire.AppendRows(nil, &wire.Rows{Count: 1}), old)
		if rows := woken.last(wire.KindRows); rows == nil || rows.Clock != 1 {
			t.Errorf("the woken replica answers %+v, want rows of clock 1", rows)
		}
		woken.say(wire.KindGet, 2, wire.AppendRows(nil, &wire.Rows{Count: 1}), old)
		if n := woken.count(wire.KindRows); n != 1 {
			t.Errorf("the woken replica answers for a clock that it has not reached: %+v", woken.last(wire.KindRows))
		}
		f.Net.Heal("reader", "coordinator")
		f.pass(time.Second)
		if _, err := reader.Clock(f.ctx); err != nil {
			t.Fatal(err)
		}
		if v, ok := value(5 * time.Second); !ok || v != 111 {
			t.Fatalf("the reader has %v, %t; want 111 from an up-to-date replica", v, ok)
		}
		for _, other := range []string{host(0), host(2), "coordinator"} {
			f.Net.Heal(host(1), other)
		}
		for range 20 {
			if v, ok := value(5 * time.Second); !ok || v != 111 {
				t.Fatalf("the reader has %v, %t after 111", v, ok)
			}
		}
	})
}

// TestServerOfAnotherJob checks that a server of another job is rejected with an explanation on both sides, and that
// the address is retried in case another server listens there later.
func TestServerOfAnotherJob(t *testing.T) {
	inFleet(t, "bsp", "chain:2", 1, 1, func(f *fleet) {
		f.chain(0)
		_, err := transport.DialServer(f.ctx, f.Net.Host("other"), host(0)+"/1",
			wire.Hello{Role: wire.RoleServer, Job: "job-2"})
		if err == nil || !strings.Contains(err.Error(), `this server works for job job-1, the peer for job "job-2"`) {
			t.Errorf("a server of another job received %v", err)
		}
		if n := f.logs[0].about("job-2"); n != 1 {
			t.Errorf("log is %q; want one line about it", f.logs[0].all)
		}

		ours := false // guarded by f.mu
		asked := 0    // guarded by f.mu
		f.Listen(host(9)+"/1", func(c transport.Conn, hello wire.Hello) {
			f.mu.Lock()
			mine := ours
			f.mu.Unlock()
			if !mine {
				_ = transport.Refuse(c, wire.Refusal{Reason: "this server works for job job-3"})
				return
			}
			_ = c.Send(wire.Control(wire.KindWelcome, wire.Welcome{Job: f.job, Index: hello.Index, Incarnation: 1}))
			var got wire.Frame
			for c.Recv(&got) == nil {
				f.mu.Lock()
				if got.Kind == wire.KindFollow {
					asked++
				}
				f.mu.Unlock()
			}
		})
		f.say(func(v *protocol.View, sv *protocol.ShardView) {
			h := f.holder(9, v.Revision)
			sv.Joining = &h
		})
		if n := f.logs[0].about("this server works for job job-3"); n != 1 {
			t.Errorf("log is %q; want one line about it", f.logs[0].all)
		}
		f.mu.Lock()
		ours = true
		f.mu.Unlock()
		f.pass(3 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if asked == 0 {
			t.Error("the server now at that address received no Follow")
		}
	})
}

// TestUncommittedIsBounded checks that a slot's uncommitted frames are limited even if they are ticks and empty
// updates. Their cost in the head's log is not in rows.
func TestUncommittedIsBounded(t *testing.T) {
	const most = 1 << 12
	for kind, n := range map[wire.Kind]int{wire.KindUpdate: most / 64, wire.KindTick: 2*most/64 + 1} {
		inFleet(t, "ssp:1", "chain:2", 1, 2, func(f *fleet) {
			f.chain(0, 1)
			f.table(dense())
			w := f.works(0, 0)
			f.Net.Cut(host(1), host(0), false)
			sent := 0
			for sent < 10*n && f.logs[0].about("are kept") == 0 {
				h := wire.Header{
					Kind: kind, Generation: 1, Epoch: f.view.Shards[0].Epoch, Slot: 0, Incarnation: 1,
					Clock: perdure.Clock(sent), Parts: 1,
				}
				if w.Send(wire.Frame{Header: h}) != nil {
					break
				}
				sent++
				f.pass(time.Millisecond)
			}
			if sent < n || sent > n+3 {
				t.Errorf("%d frames of kind %d were accepted, want about %d; log is %q", sent, kind, n,
					f.logs[0].all)
			}
		}, func(cfg *server.Config) { cfg.PendingBytes = most })
	}
}
