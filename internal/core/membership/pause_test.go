package membership

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestPauseBeginsAgain checks a pause that ends and starts again before any worker was notified. For the workers it
// never ended: they stay at the clocks that they reported, and the core must not wait for reports that never come.
func TestPauseBeginsAgain(t *testing.T) {
	c := New(NewJobRecord(perdure.JobSpec{
		ID: "pause", Slots: 1, Servers: 1, Shards: 1, Clocks: 9,
		Consistency: perdure.Consistency{Kind: perdure.ASP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverResend, Every: 5},
	}, 1, 0, nil), 15, mutation.Set{})
	come(t, c, 0, process(0), Granted)
	sl := &c.record.View.Slots[0]
	sl.Incarnation, sl.Decided, sl.Settled = 1, true, true
	c.record.Slots[0].Process = "worker"
	says := func() {
		c.job.slots[0].worker = &protocol.WorkerStatus{
			Revision:   c.record.View.Revision,
			Generation: c.record.View.Generation,
		}
	}
	cut := func() { set(c.rec, &c.record.CutRequested, true); c.decidePause() }

	cut()
	if r := c.Ready(); !c.record.View.Pause || r.WorkerDelta == nil {
		t.Fatalf("a cut is requested: pause %v, workers receive %+v", c.record.View.Pause, r.WorkerDelta)
	}
	says()
	if c.decidePause(); c.record.View.Pause {
		t.Fatal("all slots pause, and the pause does not end")
	}
	cut()
	if r := c.Ready(); r.WorkerDelta != nil {
		t.Fatalf("workers receive %+v: nothing to test", r.WorkerDelta)
	}
	if c.decidePause(); c.record.CutRequested {
		t.Error("the restarted pause waits for reports that were not requested")
	}
}
