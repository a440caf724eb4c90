package membership

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// planned returns a job in which a number of workers participate, and as many again will join at a later clock.
func planned(t testing.TB, workers int) *Core {
	f := NewJobRecord(perdure.JobSpec{
		Servers: 1, Slots: workers, Shards: 1, Clocks: 1 << 30, Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery: perdure.Recovery{Kind: perdure.RecoverNone},
	}, 1, 0, nil)
	if err := f.Plan(2*workers, 1<<20); err != nil {
		t.Fatal(err)
	}
	for i := range f.Slots {
		f.Slots[i] = Member{Process: fmt.Sprintf("w%d", i), PID: i + 1, Incarnation: 1}
		sl := &f.View.Slots[i]
		sl.Incarnation, sl.Decided, sl.Settled = 1, true, i < workers
	}
	c := New(f, 15, mutation.Set{})
	c.Join(Server, 0, Applicant{Process: "s", PID: 1})
	for i := range workers {
		c.Join(Worker, i, Applicant{Process: f.Slots[i].Process, PID: i + 1})
	}
	c.HandleServerDelta(0, "s", &protocol.ServerDelta{
		Number: 1,
		Shards: []protocol.ShardDelta{{ShardStatus: protocol.ShardStatus{
			Generation: 1, Epoch: 1, Ready: true, Roster: f.View.Roster,
		}}},
	})
	if c.queue.Early.Len() != workers || !c.Serving() {
		t.Fatalf("%d slots wait for the others, serving %v", c.queue.Early.Len(), c.Serving())
	}
	return c
}

// comesTo sends a worker's status at a clock.
func (c *Core) comesTo(slot int, clock perdure.Clock) {
	c.HandleWorkerStatus(slot, c.record.Slots[slot].Process, protocol.WorkerStatus{Generation: 1, Clock: clock})
}

// TestPlannedSleep checks that slots which join later are not checked whenever another slot ends a clock, but only when
// one reaches the clock before their first.
func TestPlannedSleep(t *testing.T) {
	c := planned(t, 20)
	for clock := range perdure.Clock(10) {
		for slot := range 20 {
			c.comesTo(slot, clock)
		}
	}
	if c.job.visits.slots = 0; c.queue.DirtySlots.Len() > 0 {
		t.Fatalf("%v must be checked", c.queue.DirtySlots.All())
	}
	c.comesTo(0, 10)
	if n := c.job.visits.slots; n > 0 {
		t.Errorf("%d slots are checked after one has ended a clock", n)
	}
	c.comesTo(0, 1<<20-1)
	if n := c.job.visits.slots; n < 20 {
		t.Errorf("%d slots are checked after one has reached their first clock, want 20", n)
	}
	if n := c.queue.Early.Len(); n > 0 {
		t.Errorf("%d slots still wait for that", n)
	}
}

// BenchmarkPlanned measures a worker's status at its next clock, and a tick, in a job that as many workers again will
// join later.
func BenchmarkPlanned(b *testing.B) {
	for _, workers := range []int{100, 1000} {
		c := planned(b, workers)
		n := workers
		b.Run(fmt.Sprintf("word/workers=%d", workers), func(b *testing.B) {
			for ; b.Loop(); n++ {
				c.comesTo(n%workers, perdure.Clock(n/workers))
			}
		})
		b.Run(fmt.Sprintf("tick/workers=%d", workers), func(b *testing.B) {
			for b.Loop() {
				c.Tick()
			}
		})
	}
}
