package membership

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
)

// leavers returns a running job with a number of shards.
func leavers(t *testing.T, strategy perdure.Recovery, servers, shards int, mutations mutation.Set) *cluster {
	t.Helper()
	c := newCluster(perdure.JobSpec{
		Slots: 1, Servers: servers, Shards: shards, Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery: strategy,
	}, 100)
	c.mutations, c.bytes = mutations, make([]int64, shards)
	c.begin()
	for i := range c.bytes { // the first shards are the largest
		c.bytes[i] = int64(shards-i) * 100 << 20
	}
	c.runHealthy(5)
	if !c.core.Serving() {
		t.Fatal("the job does not run")
	}
	return c
}

// drains makes servers drain, with a notice in milliseconds.
func (c *cluster) drains(notice int64, servers ...int) {
	for _, i := range servers {
		c.servers[i].draining, c.servers[i].notice = true, notice
	}
	for _, i := range servers {
		c.report(Server, i)
	}
}

// joining returns the shards that are being copied, the last one first.
func (c *cluster) joining() (shards []int) {
	for s := range slices.Backward(c.saved.View.Shards) {
		if c.saved.View.Shards[s].Joining != nil {
			shards = append(shards, s)
		}
	}
	return shards
}

// copies runs the job until no server is draining any more. It returns the order in which shards started to be copied,
// and the largest number copied at the same time.
func (c *cluster) copies() (order []int, most int) {
	for range 200 {
		now := c.joining()
		most = max(most, len(now))
		for _, s := range now {
			if !slices.Contains(order, s) {
				order = append(order, s)
			}
		}
		for i := range c.servers {
			c.follow(Server, i)
			now := c.joining()
			most = max(most, len(now))
			for _, s := range now {
				if !slices.Contains(order, s) {
					order = append(order, s)
				}
			}
			c.report(Server, i)
		}
	}
	return order, most
}

// TestTurns checks that two large shards are copied at a time from a draining server, the smallest first. With the rule
// disabled, all are copied at the same time.
func TestTurns(t *testing.T) {
	const shards = 12
	c := leavers(t, perdure.Recovery{Kind: perdure.RecoverNone}, 3, shards, mutation.Set{})
	held := slices.Sorted(c.core.job.replicas.Shards(0))
	slices.Reverse(held) // the last is the smallest
	c.drains(0, 0)
	order, most := c.copies()
	if !slices.Equal(order, held) || most != maxDrainCopies {
		t.Errorf("copied in the order %v, %d at a time; want %v", order, most, held)
	}
	if p := c.saved.Servers[0]; !p.Left || p.Drained != p.Incarnation {
		t.Errorf("server 0 is not drained: %+v", p)
	}
	if c.wrong != nil {
		t.Error(c.wrong)
	}
	c = leavers(t, perdure.Recovery{Kind: perdure.RecoverNone}, 3, shards,
		mutation.Set{Chain: mutation.Chain{DrainOrder: true}})
	c.drains(0, 0)
	if now := c.joining(); len(now) != len(held) {
		t.Errorf("without turns %v are copied at the same time", now)
	}
}

// TestTakerLeaves checks a server that was about to take over shards and must drain as well while they wait for their
// turn. The remaining servers take the shards, and nothing waits forever.
func TestTakerLeaves(t *testing.T) {
	for _, shards := range []int{5, 6, 12} {
		c := leavers(t, chain2, 2, shards, mutation.Set{})
		if c.more() != Granted {
			t.Fatal("no third server joins")
		}
		c.drains(0, 0)
		c.drains(0, 2)
		c.copies()
		for _, i := range []int{0, 2} {
			if p := c.saved.Servers[i]; !p.Left || p.Drained != p.Incarnation {
				t.Errorf("%d shards: server %d is not drained: %+v", shards, i, p)
			}
		}
		if c.wrong != nil {
			t.Error(c.wrong)
		}
	}
}

// TestSmallTurns checks that small shards, and shards of unknown size, are all copied at the same time.
func TestSmallTurns(t *testing.T) {
	for _, bytes := range []int64{0, maxDrainBytes / 8} {
		c := leavers(t, perdure.Recovery{Kind: perdure.RecoverNone}, 3, 12, mutation.Set{})
		for i := range c.bytes {
			c.bytes[i] = bytes
		}
		c.runHealthy(1)
		c.drains(0, 0)
		if now := c.joining(); len(now) != 4 {
			t.Errorf("of %d bytes each, %v are copied at the same time", bytes, now)
		}
	}
}

// TestLastCopiesFirst checks that shards which only the draining server holds are copied first, although others are
// smaller.
func TestLastCopiesFirst(t *testing.T) {
	c := leavers(t, chain2, 4, 12, mutation.Set{})
	c.kill(Server, 1, "gone") // its replacement is awaited
	alone := []int{}
	for s := range c.saved.View.Shards {
		sv := &c.saved.View.Shards[s]
		if sv.Replicas() == 1 && sv.Server == 0 {
			alone = append(alone, s)
			c.bytes[s] += 5000 << 20
		}
	}
	for range 3 {
		for i := range c.servers {
			c.follow(Server, i)
			c.report(Server, i)
		}
	}
	c.drains(0, 0)
	order, _ := c.copies()
	if len(alone) < 2 || len(order) < 4 {
		t.Fatalf("%v are on server 0 alone, %v are copied", alone, order)
	}
	first := slices.Sorted(slices.Values(order[:len(alone)]))
	if !slices.Equal(first, alone) {
		t.Errorf("copied in the order %v, although %v exist nowhere else", order, alone)
	}
	if c.wrong != nil {
		t.Error(c.wrong)
	}
}

// TestHurry checks that a server whose time is nearly over leaves the chains that have other members, although no shard
// has been copied yet, and not earlier. A server without a deadline stays; so does one with the rule disabled, or one
// that alone has the rows.
func TestHurry(t *testing.T) {
	const notice = 3000 // 30 ticks, the last 10 of which count as nearly over
	for _, of := range []struct {
		name     string
		strategy perdure.Recovery
		notice   int64
		weak     mutation.Set
		leaves   int // after how many ticks; 0: it does not
	}{
		{"with a notice", chain2, notice, mutation.Set{}, 20},
		{"with a long one", chain2, 100_000, mutation.Set{}, 0},
		{"with a short one", chain2, 1, mutation.Set{}, 1},
		{"without", chain2, 0, mutation.Set{}, 0},
		{"switched off", chain2, notice, mutation.Set{Chain: mutation.Chain{DrainDeadline: true}}, 0},
		{"alone", perdure.Recovery{Kind: perdure.RecoverNone}, notice, mutation.Set{}, 0},
	} {
		t.Run(of.name, func(t *testing.T) {
			c := leavers(t, of.strategy, 3, 6, of.weak)
			holds := func() (n int) {
				for s := range c.saved.View.Shards {
					if slices.Contains(serversOf(c.saved.View.Shards[s].Members()), 0) {
						n++
					}
				}
				return n
			}
			before, left := holds(), 0
			c.drains(of.notice, 0)
			for tick := 1; tick <= 40; tick++ {
				c.core.Tick()
				c.flush()
				for i := range c.servers {
					c.report(Server, i) // but copies nothing
				}
				if n := holds(); n == 0 && left == 0 {
					left = tick
				} else if n != 0 && n != before {
					t.Fatalf("after %d ticks it holds %d of %d shards", tick, n, before)
				}
			}
			if left != of.leaves {
				t.Errorf("it leaves after %d ticks, want %d", left, of.leaves)
			}
			c.mutations = mutation.Set{}
			if c.runHealthy(20); c.wrong != nil {
				t.Error(c.wrong)
			}
		})
	}
}
