package membership

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestLogWaits checks that users are notified once when updates wait for the log, however many processes wait, and once
// when they continue. Short waits and the reports of dead processes do not count.
func TestLogWaits(t *testing.T) {
	c := newCluster(perdure.JobSpec{
		Slots: 2, Servers: 2, Shards: 2,
		Consistency: perdure.Consistency{Kind: perdure.SSP, Staleness: 1},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverStateless},
	}, patience)
	var sent []string
	pass := func(ticks int, waiting ...int) {
		for range ticks {
			for i := range c.core.job.slots {
				o := &c.core.job.slots[i]
				st := protocol.WorkerStatus{}
				if slices.Contains(waiting, i) {
					st.WaitReason = "it is full"
				}
				o.worker = &st
			}
			c.core.reports.watchLog()
			c.core.job.tick++
		}
		for _, e := range c.core.rec.pending.Events {
			if e.Target == "log" {
				sent = append(sent, e.Kind+" "+e.Text)
			}
		}
		c.core.rec.pending.Events = nil
	}
	want := func(texts ...string) {
		t.Helper()
		if !slices.Equal(sent, texts) {
			t.Fatalf("told %q; want %q", sent, texts)
		}
	}
	c.core.job.tick = 1
	for i := range c.core.job.slots {
		c.core.job.slots[i].connected = true
	}
	pass(logPatience, 0)
	pass(1)
	pass(logPatience, 0, 1)
	want()
	pass(1, 0, 1)
	started := "trouble updates wait and will continue automatically: it is full"
	want(started)
	pass(logPatience, 1)
	want(started)
	c.core.job.slots[1].connected = false
	pass(5, 1)
	want(started, "serving updates are written to the log again")
}
