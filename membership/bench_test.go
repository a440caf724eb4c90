package membership

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
)

// large is a job of 1,000 servers, 10,000 workers and 4,096 chains of three, in
// which everybody is settled and says so.
func large(b *testing.B) *Core {
	job := perdure.JobSpec{
		Servers: 1000, Slots: 10000, Shards: 4096,
		Consistency: perdure.Consistency{Kind: perdure.SSP, Staleness: 2}, Recovery: perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 3},
	}
	f := Begin(job, 1, 0, nil)
	for i := range f.Slots {
		f.Slots[i] = Place{Process: fmt.Sprintf("w%d", i), Incarnation: 1}
		f.View.Slots[i] = perdure.SlotView{Incarnation: 1, Decided: true, Settled: true}
	}
	c := New(f, 15)
	for i := range job.Servers {
		c.Join(Server, i, Newcomer{Process: fmt.Sprintf("s%d", i), PID: i + 1})
	}
	c.Ready()
	for i := range job.Servers {
		c.ServerStatus(i, c.facts.Servers[i].Process, well(c, i))
	}
	if !c.ready(0) || !c.ready(4095) {
		b.Fatal("it does not serve")
	}
	return c
}

// well is the status of a server that is as the view wants it.
func well(c *Core, server int) (st perdure.ServerStatus) {
	for _, s := range sorted(c.held[server]) {
		sv := &c.facts.View.Shards[s]
		one := perdure.ShardStatus{Shard: perdure.ShardID(s), Generation: 1, Epoch: sv.Epoch, Ready: true}
		if j := sv.Joining; j != nil && j.Server == server {
			one.Ready, one.Joined, one.Since = false, true, j.Since
		}
		st.Shards = append(st.Shards, one)
	}
	return st
}

// BenchmarkDeath has a server of a large job die, another process take its place and
// everybody concerned report, until all chains are whole again: ns for each replica
// that it held, about 12.
func BenchmarkDeath(b *testing.B) {
	c := large(b)
	touched, n := 0, 0
	for b.Loop() {
		victim := n * 37 % 1000
		n++
		neighbours := map[int]struct{}{victim: {}}
		for s := range c.held[victim] {
			touched++
			for _, h := range members(&c.facts.View.Shards[s]) {
				neighbours[h.Server] = struct{}{}
			}
		}
		c.Gone(Server, victim, c.facts.Servers[victim].PID, "exited")
		c.Ready()
		for round := 0; round < 2; round++ {
			for _, i := range sorted(neighbours) {
				if i != victim || round > 0 {
					c.ServerStatus(i, c.facts.Servers[i].Process, well(c, i))
				}
			}
			if round == 0 {
				c.Join(Server, victim, Newcomer{Process: fmt.Sprintf("n%d", n), PID: 10000 + n})
				c.Ready()
			}
		}
		c.ServerStatus(victim, c.facts.Servers[victim].Process, well(c, victim))
		c.Ready()
		for i := 0; len(c.open) > 0; i++ {
			for _, s := range sorted(c.open) {
				for _, h := range members(&c.facts.View.Shards[s]) {
					c.ServerStatus(h.Server, c.facts.Servers[h.Server].Process, well(c, h.Server))
				}
				if j := c.facts.View.Shards[s].Joining; j != nil {
					c.ServerStatus(j.Server, c.facts.Servers[j.Server].Process, well(c, j.Server))
				}
			}
			c.Ready()
			if i == 100 {
				b.Fatalf("%d shards are never whole", len(c.open))
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(touched), "ns/replica")
}

// BenchmarkStatus is a server's word that nothing has changed.
func BenchmarkStatus(b *testing.B) {
	c := large(b)
	st := well(c, 7)
	b.ReportAllocs()
	for b.Loop() {
		c.ServerStatus(7, c.facts.Servers[7].Process, st)
	}
}
