package membership

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// storm is a random course of a whole job. It is plain data, made and shrunk by
// rapid.
type storm struct {
	Job   perdure.JobSpec
	Deeds []deed
}

// deed is one event; A and B choose among what is possible.
type deed struct {
	Kind string
	A, B int
}

// How often each event comes: one in eight is trouble.
var deedWeights = map[string]int{
	"work": 20, "send": 20, "follow": 16, "report": 16, "start": 8, "rejoin": 4, "answer": 4, "refuse": 1,
	"kill": 3, "tick": 3, "restart": 1, "lose": 1, "drop": 1, "end": 1, "ghost": 2,
}

func storms() *rapid.Generator[storm] {
	var kinds []string
	for _, k := range []string{"work", "send", "follow", "report", "start", "rejoin", "answer", "refuse", "kill", "tick", "restart", "lose", "drop", "end", "ghost"} {
		for range deedWeights[k] {
			kinds = append(kinds, k)
		}
	}
	deeds := rapid.Custom(func(t *rapid.T) deed {
		return deed{rapid.SampledFrom(kinds).Draw(t, "kind"), rapid.IntRange(0, 99).Draw(t, "a"), rapid.IntRange(0, 99).Draw(t, "b")}
	})
	return rapid.Custom(func(t *rapid.T) storm {
		model := rapid.SampledFrom([]perdure.Consistency{{Kind: perdure.BSP}, {Kind: perdure.SSP, Staleness: 2}}).Draw(t, "model")
		recovery := rapid.SampledFrom([]perdure.Recovery{{Kind: perdure.RecoverNone}, {Kind: perdure.RecoverCheckpoint, Every: 2}}).Draw(t, "recovery")
		servers := rapid.IntRange(1, 3).Draw(t, "servers")
		return storm{
			Job: perdure.JobSpec{
				Slots: rapid.IntRange(1, 3).Draw(t, "slots"), Servers: servers,
				Shards:      rapid.IntRange(servers, 4).Draw(t, "shards"),
				Clocks:      perdure.Clock(rapid.SampledFrom([]int{0, 0, 9}).Draw(t, "clocks")),
				Consistency: model, Recovery: recovery,
			},
			Deeds: rapid.SliceOfN(deeds, 80, 400).Draw(t, "deeds"),
		}
	})
}

// run plays a storm, then lets everybody be well, and reports the first thing
// that is wrong.
func (s storm) run() error {
	c := newCluster(s.Job, 4)
	c.wellness(1) // a job that has begun
	for i, d := range s.Deeds {
		if c.do(d); c.wrong != nil {
			return fmt.Errorf("deed %d %v: %w", i, d, c.wrong)
		}
	}
	return c.calm()
}

// pick chooses a place.
func (c *cluster) pick(n int) (Kind, int) {
	if n %= c.job.Servers + c.job.Slots; n >= c.job.Servers {
		return Worker, n - c.job.Servers
	}
	return Server, n
}

func (c *cluster) do(d deed) {
	k, index := c.pick(d.A)
	slot, shard := d.A%c.job.Slots, d.B%c.job.Shards
	switch d.Kind {
	case "work":
		c.work(slot)
	case "send":
		c.send(slot, shard)
	case "follow":
		c.follow(k, index)
	case "report":
		c.report(k, index)
	case "start":
		c.start(k, index)
	case "rejoin":
		if p := c.process(k, index); p.up && !p.connected {
			c.join(k, index)
		}
	case "answer", "refuse":
		c.answer(d.Kind == "answer")
	case "kill":
		c.kill(k, index, []string{"gone", "disconnect", "silent"}[d.B%3])
	case "tick":
		c.core.Tick()
		c.flush()
	case "ghost":
		c.ghost(k, index)
	case "restart":
		c.restart()
	case "lose":
		c.losing = true
	case "drop":
		c.core.Drop([]perdure.ShardID{perdure.ShardID(shard)})
		c.flush()
	case "end":
		if w := c.workers[slot]; w.granted && w.up {
			c.core.EndAfter(w.clock)
			c.flush()
		}
	}
}

// wellness lets every process live, report and work for some rounds.
func (c *cluster) wellness(rounds int) {
	c.losing = false
	for range rounds {
		c.each(func(k Kind, index int, _ *fakeProcess) {
			c.start(k, index)
			if p := c.process(k, index); p.up && !p.silent && !p.connected {
				c.join(k, index)
			}
			c.follow(k, index)
			c.report(k, index)
		})
		for i := range c.workers {
			for range 2 {
				for shard := range c.job.Shards {
					c.send(i, shard)
				}
				c.work(i)
			}
		}
		c.answer(true)
		c.core.Tick()
		c.flush()
	}
}

// calm checks that with all processes up and honest the job is served, goes on
// and, where it has an end, is completed.
func (c *cluster) calm() error {
	c.wellness(20)
	if c.wrong == nil && !c.core.Serving() {
		c.fail("it does not serve")
	}
	goal := c.core.MinClock() + 3
	if end := c.saved.View.End; end > 0 {
		goal = min(goal, end)
	}
	c.wellness(20)
	if c.wrong == nil && c.core.MinClock() < goal {
		c.fail("it is stuck at clock %d, goal %d", c.core.MinClock(), goal)
	}
	for i := range c.workers {
		if cond := c.core.Condition(Worker, i); cond.State != "alive" && c.wrong == nil {
			c.fail("worker %d is %s", i, cond.State)
		}
	}
	if c.saved.View.End > 0 {
		c.wellness(20)
		if c.wrong == nil && !c.core.Complete() {
			c.fail("it is not completed at clock %d, end %d, durable %d", c.core.MinClock(), c.saved.View.End, c.saved.View.Durable)
		}
	}
	if c.wrong != nil {
		return fmt.Errorf("%w\n%s", c.wrong, c.describe())
	}
	return nil
}

// Whatever dies, is late or is forgotten, every view follows from the one before
// it as it must, and once all are well the job goes on.
func TestStorms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if err := storms().Draw(t, "storm").run(); err != nil {
			t.Fatal(err)
		}
	})
}

// A clock that was ticked on one shard and is not staged on another takes all
// back. Honest servers never say so, since one that lost its staging was lost
// itself: this is the last line.
func TestTornClockRollsBack(t *testing.T) {
	c := newCluster(perdure.JobSpec{
		Slots: 1, Servers: 1, Shards: 2,
		Consistency: perdure.Consistency{Kind: perdure.BSP}, Recovery: perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 10},
	}, 4)
	c.wellness(2)
	c.kill(Worker, 0, "gone")
	fence := func(staged, ticked perdure.Clock) []perdure.Fence {
		return []perdure.Fence{{Incarnation: 2, Counts: perdure.Counts{Staged: staged, Ticked: ticked, Applied: 4}}}
	}
	c.core.ServerStatus(0, c.servers[0].name, perdure.ServerStatus{Shards: []perdure.ShardStatus{
		{Shard: 0, Generation: 1, Epoch: 1, Ready: true, Fences: fence(5, 5)},
		{Shard: 1, Generation: 1, Epoch: 1, Ready: true, Fences: fence(4, 4)},
	}})
	v := c.core.Facts().View
	if v.Generation != 2 || !v.Slots[0].Decided || v.Slots[0].Start != 0 || v.Slots[0].Settled {
		t.Fatalf("%+v", v)
	}
}
