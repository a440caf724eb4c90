package worker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// TestUnreachableServer checks that a server that accepts nothing does not delay messages to others, however much is
// queued for it. Other shards can be read and updated, and the client follows a view without that server. The successor
// receives what the server had not received.
func TestUnreachableServer(t *testing.T) {
	inChain(t, "asp", "chain:2", 1, 2, 2, transport.MemoryOptions{MaxQueued: 1000}, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		c.setView(func(v *protocol.View) { // shard 1 has no replica on server 0
			c.setChain(&v.Shards[1], 1)
			v.Shards[1].Epoch++
		})
		c.read(table, 0)
		c.Net.Cut("worker:0", "server:0", false)
		const clocks = 20
		for range clocks {
			c.step(w, table, 1)
		}
		<-time.After(time.Second)
		c.with(1, func(s *chainServer) {
			if n := s.replicas[1].intake.Applied()[0]; n != clocks {
				t.Errorf("of the shard that can be reached %d clocks are applied, want %d", n, clocks)
			}
		})
		table.Forget()
		if err := table.Get(c.ctx, rows-1, make([]float32, dim)); err != nil {
			t.Fatal(err)
		}
		settled := go1(func() error { return w.Settle(c.ctx) })
		<-time.After(time.Second)
		if len(settled) != 0 {
			t.Fatal("it is settled though no server has it")
		}
		c.rechain(1)
		if err := <-settled; err != nil {
			t.Fatal(err)
		}
		c.read(table, clocks)
	})
}

// TestReachedAgain checks that a server that was unreachable for a while receives the queued updates once and in order.
func TestReachedAgain(t *testing.T) {
	inChain(t, "asp", "chain:2", 1, 2, 2, transport.MemoryOptions{MaxQueued: 1000}, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		for round := range 5 {
			c.Net.Cut("worker:0", "server:0", false)
			for range 10 {
				c.step(w, table, 1)
			}
			<-time.After(time.Second)
			if round%2 == 1 {
				c.with(0, func(s *chainServer) {
					for _, conn := range s.conns {
						conn.Close()
					}
				})
			}
			c.Net.Heal("worker:0", "server:0")
			if err := w.Settle(c.ctx); err != nil {
				t.Fatal(err)
			}
			c.read(table, float32(10*(round+1)))
		}
	})
}

// lazyHead is a network that delays messages to server 0. At first, server 2 is unreachable.
type lazyHead struct {
	transport.Network
	lazy *lazyNetwork
	late chan struct{} // closed once server 2 is reachable
}

func (n *lazyHead) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if strings.HasPrefix(addr, "server:0") {
		return n.lazy.Dial(ctx, addr)
	}
	if strings.HasPrefix(addr, "server:2") {
		select {
		case <-n.late:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return n.Network.Dial(ctx, addr)
}

// TestMemoryOfOldClocks checks that the memory of updates still queued for the head is not reused too early. The
// replica that serves reads may already have applied these clocks, received from the slot's earlier process. Its
// acknowledgement does not permit reusing the memory.
func TestMemoryOfOldClocks(t *testing.T) {
	inChain(t, "asp", "chain:3", 2, 3, 2, transport.MemoryOptions{}, func(c *chained) {
		save := func(w *worker.Client, says string) {
			if err := w.SaveState([]byte(says)); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Clock(c.ctx); err != nil {
				t.Fatal(err)
			}
		}
		old := c.dial(1) // its state is kept by shard 1, which it reads from server 2
		for range 5 {
			save(old, "old")
		}
		if err := old.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		c.Net.Kill("worker:1")
		old.Close()
		// The next process starts at clock 0, as if another shard lacked all of these updates.
		c.setView(func(v *protocol.View) { v.Slots[1].Incarnation = 2 })
		net := &lazyHead{Network: c.Net.Host("worker:1"), late: make(chan struct{})}
		net.lazy = &lazyNetwork{
			Network: net.Network, t: t, rng: rand.New(rand.NewPCG(*seed, 1)),
			most: 200 * time.Millisecond,
		}
		w := c.dial(1, func(cfg *testcluster.DialConfig) { cfg.Network = net })
		<-time.After(time.Second) // the shard is open at the head
		for clock := range 5 {
			save(w, fmt.Sprintf("clock %d", clock))
		}
		close(net.late)
		<-time.After(5 * time.Millisecond) // server 2 has answered
		for clock := range 5 {
			save(w, fmt.Sprintf("clock %d", 5+clock))
		}
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
	})
}

// TestChainStorm checks a slot that reads from replicas that die, lag and return. It reads exactly its own writes,
// never less of the other slots' than before, and at the end every update once.
func TestChainStorm(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:2", "asp"} {
		for round := range uint64(2) {
			chainStorm(t, model, *seed+round)
		}
	}
}

func chainStorm(t *testing.T, model string, seed uint64) {
	inChain(t, model, "chain:3", dim, 3, 4, transport.MemoryOptions{Breaks: 0.002}, func(c *chained) {
		const clocks = 20
		rng := rand.New(rand.NewPCG(seed, 1))
		over := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { c.disturb(rng, over) })
		ws := make([]*worker.Client, dim)
		for slot := range ws {
			host := c.Net.Host(fmt.Sprintf("worker:%d", slot))
			net := &lazyNetwork{
				Network: host, t: t, rng: rand.New(rand.NewPCG(seed, uint64(2+slot))),
				most: time.Millisecond,
			}
			ws[slot] = c.dial(perdure.Slot(slot), func(cfg *testcluster.DialConfig) { cfg.Network = net })
		}
		both(dim, func(slot int) {
			table, err := ws[slot].Table(c.ctx,
				perdure.TableSpec{Name: "t", Rows: rows, Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd}})
			if err == nil {
				err = c.iterate(ws[slot], table, slot, clocks, rand.New(rand.NewPCG(seed, uint64(10+slot))))
			}
			if err != nil {
				t.Errorf("-worker.seed=%d, %s: slot %d: %v", seed, model, slot, err)
			}
		})
		close(over)
		wg.Wait()
		for _, w := range ws {
			c.read(c.table(w), clocks)
		}
	})
}

// iterate runs clocks. In each clock a slot adds 1 to its column of all rows.
func (c *chained) iterate(w *worker.Client, table *worker.Table, slot int, clocks perdure.Clock, rng *rand.Rand) error {
	delta, got, seen := make([]float32, rows*dim), make([]float32, rows*dim), make([]float32, rows*dim)
	for i := slot; i < len(delta); i += dim {
		delta[i] = 1
	}
	frozen := c.job.OutageRows == perdure.RowsFrozen
	bound := c.job.Consistency.Staleness + c.job.OnOutage.Clocks
	for clock := range clocks {
		for range 1 + rng.IntN(3) {
			if rng.IntN(2) == 0 && !c.job.OnOutage.Continue {
				table.Forget()
			}
			if err := table.GetRun(c.ctx, 0, got); err != nil {
				return err
			}
			for i, v := range got {
				mine := i%dim == slot && !frozen
				if mine && v != float32(clock) || v < seen[i] ||
					c.job.Consistency.Kind != perdure.ASP && v < float32(clock-bound) {
					return fmt.Errorf("at clock %d value %d is %v, and was %v", clock, i, v, seen[i])
				}
			}
			copy(seen, got)
			<-time.After(time.Duration(rng.IntN(1000)) * time.Microsecond)
		}
		if err := table.IncRun(0, delta); err != nil {
			return err
		}
		if _, err := w.Clock(c.ctx); err != nil {
			return err
		}
		if rng.IntN(8) == 0 && c.job.Consistency.Kind == perdure.ASP {
			if err := w.Settle(c.ctx); err != nil {
				return err
			}
		}
	}
	return w.Settle(c.ctx)
}

// disturb changes the chains and the delays of their members until over is closed.
func (c *chained) disturb(rng *rand.Rand, over chan struct{}) {
	for {
		select {
		case <-over:
			c.mu.Lock()
			for _, s := range c.servers {
				s.lags, s.holds = false, false
			}
			c.mu.Unlock()
			return
		case <-time.After(time.Duration(rng.IntN(3000)) * time.Microsecond):
		}
		i := rng.IntN(len(c.servers))
		switch rng.IntN(4) {
		case 0:
			c.with(i, func(s *chainServer) { s.lags = !s.lags })
		case 1:
			c.with(i, func(s *chainServer) { s.holds = !s.holds })
		case 2:
			c.drop(rng)
		case 3:
			c.join()
		}
	}
}

// drop removes one member of a shard's chain and its copy of the shard.
func (c *chained) drop(rng *rand.Rand) {
	c.setView(func(v *protocol.View) {
		shard := rng.IntN(len(v.Shards))
		sv := &v.Shards[shard]
		if sv.Replicas() == 1 {
			return
		}
		gone := rng.IntN(sv.Replicas())
		var left []int
		for i := range sv.Replicas() {
			if server := sv.Replica(i).Server; i != gone {
				left = append(left, server)
			} else {
				c.servers[server].replicas[shard] = c.newReplica()
			}
		}
		c.setChain(sv, left...)
		sv.Epoch++
	})
}

// join adds the missing servers to each chain. They receive the tail's copy immediately.
func (c *chained) join() {
	c.setView(func(v *protocol.View) {
		for shard := range v.Shards {
			sv := &v.Shards[shard]
			var chain []int
			for i := range sv.Replicas() {
				chain = append(chain, sv.Replica(i).Server)
			}
			tail := c.servers[chain[len(chain)-1]].replicas[shard]
			for _, s := range c.servers {
				if !slices.Contains(chain, s.index) {
					s.replicas[shard].log = slices.Clone(tail.log)
					chain = append(chain, s.index)
				}
			}
			if len(chain) > sv.Replicas() {
				c.setChain(sv, chain...)
				sv.Epoch++
			}
		}
	})
}
