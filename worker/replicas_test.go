package worker_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// TestReplicaReadFrom checks that updates go to the head and reads to the replica that the design specifies, over a
// single Open if both are the same. Slots spread over the replicas, unless the head is ahead of them, or the tail has
// the required state first or exclusively.
func TestReplicaReadFrom(t *testing.T) {
	byNumber := func(slot, shard int) int { return (slot + shard) % 3 }
	head := func(int, int) int { return 0 }
	tail := func(int, int) int { return 2 }
	for _, tc := range []struct {
		model, recovery string
		reads           func(slot, shard int) int
	}{
		{"bsp", "chain:3", tail},
		{"asp,other=bsp", "chain:3", tail},
		{"ssp:1", "chain:3", byNumber},
		{"essp:1", "chain:3", byNumber},
		{"asp", "none", byNumber}, // while shards move
		{"asp", "chain:3,async", head},
		{"vap:1", "chain:3,every:5", head},
		{"vap:1", "chain:3", tail},
		{"asp,other=vap:1", "chain:3", tail},
	} {
		for _, slot := range []int{0, 1, -1} {
			inChain(t, tc.model, tc.recovery, 2, 3, 2, transport.MemoryOptions{}, func(c *chained) {
				table := c.table(c.dial(0))
				if slot != 0 {
					table = c.table(c.dial(perdure.Slot(slot)))
				}
				for i := range c.servers { // requests of slot 0's first read
					c.with(i, func(s *chainServer) { clear(s.got) })
				}
				c.read(table, 0)
				want := []int{0, 0, 0}
				for shard := range 2 {
					want[tc.reads(max(slot, 0), shard)]++
				}
				if got := []int{
					c.got(0, wire.KindGet), c.got(1, wire.KindGet),
					c.got(2, wire.KindGet),
				}; !slices.Equal(got, want) {
					t.Errorf("%s, %s: slot %d asked the servers %v, want %v", tc.model, tc.recovery, slot, got, want)
				}
				for i, s := range c.servers { // slot s reads from server s and writes to server 0
					c.mu.Lock()
					for _, conn := range s.conns {
						if conn.hello.Index != slot && slot >= 0 || conn.hello.Role != wire.RoleObserver && slot < 0 {
							continue
						}
						for shard := range 2 {
							o, reads := conn.opens[perdure.ShardID(shard)], tc.reads(max(slot, 0), shard) == i
							if (o != nil) != (reads || i == 0 && slot >= 0) ||
								o != nil && (o.Flags == wire.FlagWriteOnly) == reads {
								t.Errorf("%s, %s: slot %d opened shard %d of server %d so: %+v", tc.model, tc.recovery,
									slot, shard, i, o)
							}
						}
					}
					c.mu.Unlock()
				}
			})
		}
	}
}

// TestReaderMovesToTail checks that creating a table with a bound while others are read moves readers to the tail in
// the same epoch.
func TestReaderMovesToTail(t *testing.T) {
	inChain(t, "asp", "chain:2", 1, 2, 1, transport.MemoryOptions{}, func(c *chained) {
		w := c.dial(0)
		c.read(c.table(w), 0)
		before := c.got(0, wire.KindGet)
		c.with(0, func(s *chainServer) { s.lags = true })
		bounded := c.table(w, func(s *perdure.TableSpec) {
			s.Name, s.Consistency = "v", perdure.Consistency{Kind: perdure.VAP, Bound: 100}
		})
		c.read(bounded, 0)
		if after := c.got(0, wire.KindGet); before == 0 || after != before {
			t.Errorf("the head was asked %d times, then %d", before, after)
		}
		c.step(w, bounded, 1)
		if err := w.Settle(c.ctx); err != nil { // the head, which lags, does not acknowledge it
			t.Fatal(err)
		}
		c.read(bounded, 1)
	})
}

// TestHeadDies checks that when the head dies, its successor receives exactly the updates that it lacks and nothing is
// lost.
func TestHeadDies(t *testing.T) {
	inChain(t, "asp", "chain:2", 1, 2, 2, transport.MemoryOptions{}, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		for range 2 {
			c.step(w, table, 1)
		}
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		c.with(1, func(s *chainServer) { s.holds = true })
		for range 3 {
			c.step(w, table, 1)
		}
		<-time.After(10 * time.Millisecond) // the head has the updates
		c.with(1, func(s *chainServer) {    // of one shard, the successor has one of them
			r := s.replicas[0]
			r.log = append(r.log, c.servers[0].replicas[0].log[2])
		})
		c.read(table, 5) // own updates are visible wherever they are
		c.kill(0)
		c.with(1, func(s *chainServer) { s.holds = false })
		c.rechain(1)
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		c.read(table, 5)
		c.with(1, func(s *chainServer) {
			slices.Sort(s.clocks)
			if want := []perdure.Clock{2, 3, 3, 4, 4}; !slices.Equal(s.clocks, want) || s.again != 0 {
				t.Errorf("the new head was sent the updates of clocks %v, %d of them again, want %v", s.clocks, s.again,
					want)
			}
		})
	})
}

// TestHeadDiesBeforeTick checks two-step clocks when a head dies between staging and tick: the new head receives the
// tick but not the update.
func TestHeadDiesBeforeTick(t *testing.T) {
	inChain(t, "bsp", "chain:2", 1, 2, 2, transport.MemoryOptions{}, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		c.with(0, func(s *chainServer) { s.onTick = func() { c.servers[1].holds = true } })
		c.step(w, table, 1)
		<-time.After(10 * time.Millisecond)
		if n := c.got(0, wire.KindTick); n != 2 {
			t.Fatalf("the head got %d ticks", n)
		}
		c.kill(0)
		c.with(1, func(s *chainServer) { s.holds = false })
		c.rechain(1)
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		c.read(table, 1)
		if ticks, updates := c.got(1, wire.KindTick), c.got(1, wire.KindUpdate); ticks != 2 || updates != 0 {
			t.Errorf("the new head was sent %d ticks and %d updates, want 2 and 0", ticks, updates)
		}
		for range 3 {
			c.step(w, table, 1)
		}
		c.read(table, 4)
	})
}

// TestTailDies checks that when the replica used for reads dies, pending reads are sent to the next one. Updates are
// not affected.
func TestTailDies(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:0"} {
		inChain(t, model, "chain:2", 1, 2, 2, transport.MemoryOptions{}, func(c *chained) {
			w := c.dial(0)
			table := c.table(w)
			c.step(w, table, 1)
			c.read(table, 1)
			stops := func() { c.servers[1].holds = true }
			if model == "bsp" {
				c.with(0, func(s *chainServer) { s.onTick = stops }) // the update is staged by then
			} else {
				c.with(0, func(*chainServer) { stops() })
			}
			c.step(w, table, 1)
			settled := go1(func() error { return w.Settle(c.ctx) })
			read := go1(func() bool { c.read(table, 2); return true })
			<-time.After(time.Second)
			if len(settled) != 0 || len(read) != 0 {
				t.Fatalf("%s: it is settled while the tail has nothing", model)
			}
			before := c.got(0, wire.KindUpdate)
			c.kill(1)
			c.rechain(0)
			if err := <-settled; err != nil {
				t.Fatal(err)
			}
			<-read
			if n := c.got(0, wire.KindUpdate); n != before {
				t.Errorf("%s: the head was sent %d updates again", model, n-before)
			}
			c.step(w, table, 1)
			c.read(table, 3)
		})
	}
}

// TestReaderLags checks a lagging read replica. The program still reads its own writes, updates that only the head has
// are not safe, and Settle returns as soon as they are.
func TestReaderLags(t *testing.T) {
	inChain(t, "asp", "chain:2", 1, 2, 2, transport.MemoryOptions{}, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		c.with(1, func(s *chainServer) { s.lags = true })
		for i := range 4 {
			c.step(w, table, 1)
			c.read(table, float32(i+1))
		}
		settled := go1(func() error { return w.Settle(c.ctx) })
		<-time.After(time.Second)
		c.with(0, func(s *chainServer) {
			if n := s.replicas[1].intake.Applied()[0]; n != 4 || len(settled) != 0 {
				t.Errorf("the head has applied %d clocks of 4, and it is settled: %v", n, len(settled) != 0)
			}
		})
		c.read(table, 4)
		c.with(1, func(s *chainServer) {
			if !slices.Equal(s.synced, []perdure.Clock{4}) {
				t.Errorf("the replica that lags was asked to acknowledge clocks %v", s.synced)
			}
			s.lags = false
		})
		start := time.Now()
		if err := <-settled; err != nil || time.Since(start) > 2*time.Millisecond {
			t.Errorf("Settle returned %v after %v", err, time.Since(start))
		}
		c.read(table, 4)
		if n := c.got(1, wire.KindUpdate); n != 0 {
			t.Errorf("the tail was sent %d updates", n)
		}
	})
}

// TestSettleAcrossReaders checks that the next read replica is also asked to acknowledge immediately.
func TestSettleAcrossReaders(t *testing.T) {
	inChain(t, "asp", "chain:3", 1, 3, 2, transport.MemoryOptions{}, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		c.with(2, func(s *chainServer) { s.holds = true })
		c.step(w, table, 1)
		settled := go1(func() error { return w.Settle(c.ctx) })
		<-time.After(time.Second)
		c.kill(1) // shard 1's
		c.rechain(0, 2)
		<-time.After(time.Second)
		c.with(2, func(s *chainServer) { s.holds = false })
		start := time.Now()
		if err := <-settled; err != nil || time.Since(start) > 3*time.Millisecond {
			t.Errorf("Settle returned %v after %v", err, time.Since(start))
		}
	})
}

// TestNewHeadIsAhead checks that the updates sent to a new head depend on what it has, not on the acknowledgements of
// the read replica.
func TestNewHeadIsAhead(t *testing.T) {
	inChain(t, "asp", "chain:3", 1, 3, 2, transport.MemoryOptions{}, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		c.Net.Cut("worker:0", "server:2", false) // the next read replica; the client receives nothing
		c.with(1, func(s *chainServer) { s.lags = true })
		for range 3 {
			c.step(w, table, 1)
		}
		<-time.After(10 * time.Millisecond) // all servers have them, but no acknowledgement arrives
		c.with(1, func(s *chainServer) { s.lags, s.holds = false, true })
		c.step(w, table, 1)
		<-time.After(10 * time.Millisecond)
		c.kill(0)
		c.with(1, func(s *chainServer) { s.holds = false })
		c.rechain(1, 2)
		<-time.After(10 * time.Millisecond)
		c.with(1, func(s *chainServer) {
			if want := []perdure.Clock{3, 3}; !slices.Equal(s.clocks, want) || s.again != 0 {
				t.Errorf("the new head was sent the updates of clocks %v, %d of them again, want %v", s.clocks, s.again,
					want)
			}
		})
		c.Net.Heal("worker:0", "server:2")
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		c.read(table, 4)
	})
}

// TestMovedFromHead checks that a head that lacks updates answers Moved, and that the client opens the shard again and
// sends them. The read replica is not affected.
func TestMovedFromHead(t *testing.T) {
	inChain(t, "asp", "chain:2", 1, 2, 2, transport.MemoryOptions{}, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		c.step(w, table, 1)
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		reads, writes := c.got(1, wire.KindOpen), c.got(0, wire.KindOpen)
		c.with(0, func(s *chainServer) { s.moves = true })
		c.step(w, table, 1)
		c.step(w, table, 1)
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		c.read(table, 3)
		if r, n := c.got(1, wire.KindOpen)-reads, c.got(0, wire.KindOpen)-writes; r != 0 || n < 1 || n > 2 {
			t.Errorf("the tail was opened %d times more, the head %d times", r, n)
		}
	})
}

// TestWhoMaySpeak checks that the client ignores messages about a shard from servers that it does not read from. These
// may come from the head, or from a server that is no longer a member and does not know it, even with the right epoch.
func TestWhoMaySpeak(t *testing.T) {
	inChain(t, "asp", "chain:3", 1, 3, 2, transport.MemoryOptions{}, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		c.step(w, table, 1)
		c.read(table, 1)
		c.with(2, func(s *chainServer) { s.frozen = true })
		c.setView(func(v *protocol.View) { // server 2 is a member of shard 1 only, and serves no reads
			c.setChain(&v.Shards[0], 0, 1)
			v.Shards[0].Epoch++
			c.setChain(&v.Shards[1], 2, 1)
			v.Shards[1].Epoch++
		})
		c.with(2, func(s *chainServer) { s.frozen, s.view = false, c.view })
		for i := range 3 {
			c.with(i, func(s *chainServer) { s.lags = true })
		}
		c.step(w, table, 1)
		settled := go1(func() error { return w.Settle(c.ctx) })
		<-time.After(100 * time.Millisecond)
		for i := range 3 {
			c.with(i, func(s *chainServer) {
				for shard := range perdure.ShardID(2) {
					for _, epoch := range []perdure.Epoch{1, 2} {
						reads := c.view.Shards[shard].Replica(int(shard)).Server == i && epoch == 2
						for _, kind := range []wire.Kind{wire.KindAck, wire.KindOpened} {
							f := s.frame(kind, shard)
							f.Epoch, f.Payload = epoch,
								wire.AppendCounts(nil, protocol.Counts{Staged: 2, Ticked: 2, Applied: 2, Seen: 2})
							for _, conn := range s.conns {
								if !reads {
									_ = conn.Send(f)
								}
							}
						}
					}
				}
			})
		}
		<-time.After(100 * time.Millisecond)
		if len(settled) != 0 {
			t.Fatal("a server that has no say was believed")
		}
		for i := range 3 {
			c.with(i, func(s *chainServer) { s.lags = false })
		}
		if err := <-settled; err != nil {
			t.Fatal(err)
		}
		c.read(table, 2)
	})
}

// TestEagerHeadDies checks that when the head of a chain with early acknowledgements dies, workers report to the
// coordinator what it had acknowledged. The new head is sent what its base does not include.
func TestEagerHeadDies(t *testing.T) {
	inChain(t, "asp", "chain:2,async", 1, 2, 2, transport.MemoryOptions{}, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		c.with(1, func(s *chainServer) { s.holds = true })
		for range 4 {
			c.step(w, table, 1)
		}
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		c.Net.Cut("worker:0", "server:0", false)
		c.step(w, table, 1) // it is not acknowledged
		c.kill(0)
		c.with(1, func(s *chainServer) { s.unready = true })
		c.setView(func(v *protocol.View) {
			for i := range v.Shards {
				c.setChain(&v.Shards[i], 1)
				v.Shards[i].Epoch++
				v.Shards[i].Lost = true
			}
		})
		<-time.After(time.Second)
		base := []perdure.Clock{4}
		c.mu.Lock()
		acked := c.status[0].Acked
		c.mu.Unlock()
		if len(acked) != 2 || acked[0].Epoch != 2 ||
			!slices.Equal([]perdure.Clock{acked[0].Applied, acked[1].Applied}, []perdure.Clock{4, 4}) {
			t.Fatalf("the coordinator was told %+v", acked)
		}
		c.with(1, func(s *chainServer) {
			s.unready, s.holds = false, false
			for _, r := range s.replicas {
				r.intake = consistency.NewSequencer(perdure.ClockOneStep, base, mutation.Set{})
			}
		})
		c.setView(func(v *protocol.View) {
			for i := range v.Shards {
				v.Shards[i].Base = base
			}
		})
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		c.read(table, 1) // four are lost
		c.with(1, func(s *chainServer) {
			if want := []perdure.Clock{4, 4}; !slices.Equal(s.clocks, want) {
				t.Errorf("the new head was sent the updates of clocks %v, want %v", s.clocks, want)
			}
		})
	})
}

// TestChainRollsBack checks that a chain rolls back like a shard with one replica. A process receives its own saved
// state without a request, unless it was rolled back.
func TestChainRollsBack(t *testing.T) {
	inChain(t, "bsp", "checkpoint:100", 1, 2, 2, transport.MemoryOptions{}, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		saved := func(want string) {
			t.Helper()
			if b, err := w.LoadState(c.ctx); err != nil || string(b) != want {
				t.Errorf("LoadState gave %q, %v; want %q", b, err, want)
			}
		}
		saved("")
		if err := w.SaveState([]byte("mine")); err != nil {
			t.Fatal(err)
		}
		saved("") // the clock is not finished
		c.step(w, table, 1)
		saved("mine")
		c.with(1, func(s *chainServer) { s.lags = true })
		waiting := go1(func() error { return w.Settle(c.ctx) })
		<-time.After(time.Second)
		c.setView(func(v *protocol.View) {
			v.Generation++
			for _, s := range c.servers {
				for i := range s.replicas {
					s.replicas[i] = c.newReplica()
				}
				s.lags = false
			}
		})
		if err := <-waiting; !errors.Is(err, perdure.ErrRolledBack) {
			t.Fatalf("Settle gave %v", err)
		}
		if clock, err := w.Clock(c.ctx); clock != 0 || err != nil {
			t.Fatalf("Clock gave %d, %v", clock, err)
		}
		saved("")
		c.read(table, 0)
		for range 3 {
			c.step(w, table, 1)
		}
		c.read(table, 3)
	})
}

// TestConnectsToWhoJoins checks that workers connect in advance to a server that joins a chain, and send it no
// requests. The connection ends with the join, or becomes that of the read replica.
func TestConnectsToWhoJoins(t *testing.T) {
	for _, recovery := range []string{"chain:2", "chain:2,async"} {
		inChain(t, "asp", recovery, 1, 3, 1, transport.MemoryOptions{}, func(c *chained) {
			c.rechain(0)
			table := c.table(c.dial(0))
			joins := func(who int) {
				c.setView(func(v *protocol.View) {
					if v.Shards[0].Joining = nil; who >= 0 {
						v.Shards[0].Joining = &protocol.Holder{
							Server: who, Incarnation: 1,
							Addr: fmt.Sprintf("server:%d/1", who), Since: 5,
						}
					}
				})
				<-time.After(10 * time.Millisecond)
			}
			conns := func(i int) (n int) {
				c.with(i, func(s *chainServer) {
					if n = len(s.conns); n > 0 && s.conns[n-1].opens[0] != nil {
						t.Errorf("%s: the shard is opened at server %d", recovery, i)
					}
				})
				return n
			}
			joins(1)
			want := 1
			if recovery == "chain:2,async" { // no slot reads from it
				want = 0
			}
			if n := conns(1); n != want {
				t.Errorf("%s: %d connections to the one that joins, want %d", recovery, n, want)
			}
			joins(2)
			if one, two := conns(1), conns(2); one != 0 || two != want {
				t.Errorf("%s: %d and %d connections when another one joins, want 0 and %d", recovery, one, two, want)
			}
			joins(-1)
			if n := conns(2); n != 0 {
				t.Errorf("%s: %d connections when nobody joins", recovery, n)
			}
			c.read(table, 0)
		})
	}
}
