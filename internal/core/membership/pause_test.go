package membership

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
)

// A pause that ends and begins again before anybody was told goes on for who pauses: its
// slots stand where they said, and nobody waits for a word of theirs that never comes.
func TestPauseBeginsAgain(t *testing.T) {
	c := New(Begin(perdure.JobSpec{
		ID: "pause", Slots: 1, Servers: 1, Shards: 1, Clocks: 9,
		Consistency: perdure.Consistency{Kind: perdure.ASP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverResend, Every: 5},
	}, 1, 0, nil), 15, weaken.Set{})
	come(t, c, 0, process(0), Granted)
	sl := &c.facts.View.Slots[0]
	sl.Incarnation, sl.Decided, sl.Settled = 1, true, true
	c.facts.Slots[0].Process = "worker"
	says := func() {
		c.job.slots[0].worker = &words.WorkerStatus{
			Revision:   c.facts.View.Revision,
			Generation: c.facts.View.Generation,
		}
	}
	cut := func() { set(c.rec, &c.facts.Cutting, true); c.decidePause() }

	cut()
	if r := c.Ready(); !c.facts.View.Pause || r.WorkerDelta == nil {
		t.Fatalf("a cut is to be named: pause %v, workers are told %+v", c.facts.View.Pause, r.WorkerDelta)
	}
	says()
	if c.decidePause(); c.facts.View.Pause {
		t.Fatal("all stand, and the pause goes on")
	}
	cut()
	if r := c.Ready(); r.WorkerDelta != nil {
		t.Fatalf("workers are told %+v: there is nothing to test", r.WorkerDelta)
	}
	if c.decidePause(); c.facts.Cutting {
		t.Error("the pause that has begun again waits for words that nobody was asked for")
	}
}
