package metrics

import (
	"fmt"

	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/worker"
)

var (
	ofWorker []*httpdebug.Metric
	inWorker = known(&ofWorker)

	clock = inWorker(httpdebug.Gauge, "perdure_worker_clock", "Clock that the worker works on.")
	spent = inWorker(httpdebug.Counter, "perdure_worker_time_seconds_total",
		"Where the time went since the first read, by cause: staleness (a read, or under vap a push, waited "+
			"for other workers), communication (all else in calls that waited or ended a clock), compute (the "+
			"program's own).", "cause")
	outageTime = inWorker(httpdebug.Counter, "perdure_worker_outage_wait_seconds_total",
		"Seconds in calls that waited while a shard was out, where the worker goes on without it.")
	outClocks = inWorker(httpdebug.Counter, "perdure_worker_outage_clocks_total",
		"Clocks that were ended while a shard was out.")
	outShards = inWorker(httpdebug.Gauge, "perdure_worker_shards_out", "Shards that the worker goes on without.")
	staleRows = inWorker(httpdebug.Counter, "perdure_worker_stale_rows_total",
		"Rows that were read beyond their bound in outages.")
	made = inWorker(httpdebug.Counter, "perdure_worker_updates_sent_total",
		"Updates that were made and sent, one for each shard.")
	resent = inWorker(httpdebug.Counter, "perdure_worker_updates_resent_total", "Updates that were sent again.")
	kept   = inWorker(httpdebug.Gauge, "perdure_worker_updates_kept",
		"Updates that are not safe yet, and may be sent again.")
	outboxBytes = inWorker(httpdebug.Gauge, "perdure_worker_outbox_bytes", "Bytes of these.")
	pushed      = inWorker(httpdebug.Counter, "perdure_worker_pushed_bytes_total",
		"Bytes of updates that went to servers.")
	pulled = inWorker(httpdebug.Counter, "perdure_worker_pulled_bytes_total",
		"Bytes of rows that came from servers.")
	samples = inWorker(httpdebug.Counter, "perdure_worker_samples_total",
		"Examples that the program has worked through.")
	beyond = inWorker(httpdebug.Counter, "perdure_worker_updates_beyond_bound_total",
		"Updates that alone exceeded the bound of vap, and went alone.")
	statesLost = inWorker(httpdebug.Counter, "perdure_worker_states_lost_total",
		"States of the slot that were given to it older than the last that was acknowledged.")
	storeWaits = inWorker(httpdebug.Gauge, "perdure_worker_store_waiting",
		"1 if what goes to the update log or the store of states waits.")
)

// Worker asks a worker's client.
func Worker(client *worker.Client, who Who) *httpdebug.Probe {
	return httpdebug.NewProbe(Bound, func() (l httpdebug.Look) {
		at := client.Look()
		l.Does = fmt.Sprintf("it is worker:%d, at clock %d", client.Slot(), at.Clock)
		if client.Slot() < 0 {
			l.Does = "it observes its job"
		}
		if at.Err != nil {
			l.NotReady = "it has ended: " + plain.Text(at.Err)
		}
		n := &at.Counters
		out := 0
		if at.Outage != nil {
			out = len(at.Outage.Shards)
		}
		seconds := func(ns int64) float64 { return float64(ns) / 1e9 }
		l.Samples = []httpdebug.Sample{
			clock.Is(float64(at.Clock)), spent.Is(seconds(n.StalenessNs), "staleness"),
			spent.Is(seconds(n.CommNs), "communication"), spent.Is(seconds(n.ComputeNs), "compute"),
			outageTime.Is(seconds(n.OutageNs)), outClocks.Is(float64(n.OutageClocks)), outShards.Is(float64(out)),
			staleRows.Is(float64(n.StaleRows)), made.Is(float64(n.UpdatesSent)), resent.Is(float64(at.Resent)),
			kept.Is(float64(at.Kept)), outboxBytes.Is(float64(at.Bytes)), pushed.Is(float64(n.BytesPushed)),
			pulled.Is(float64(n.BytesPulled)), samples.Is(float64(n.Samples)), beyond.Is(float64(n.BeyondBound)),
			statesLost.Is(float64(n.StatesLost)), storeWaits.Is(is(at.Waits != "")),
		}
		return l
	}, func() []httpdebug.Sample { return common(&who) })
}
