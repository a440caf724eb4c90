package metrics

import (
	"fmt"

	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/worker"
)

var (
	workerMetrics   []*httpdebug.Metric
	newWorkerMetric = metricConstructor(&workerMetrics)

	clock = newWorkerMetric(httpdebug.Gauge, "perdure_worker_clock", "Clock that the worker is working on.")
	spent = newWorkerMetric(httpdebug.Counter, "perdure_worker_time_seconds_total",
		"Time since the first read, by cause: staleness (a read, or under vap a push, waited for other "+
			"workers), communication (all other calls that waited or ended a clock), compute (the program's "+
			"own).", "cause")
	outageTime = newWorkerMetric(httpdebug.Counter, "perdure_worker_outage_wait_seconds_total",
		"Seconds in calls that waited while a shard was unavailable, if the worker continues without it.")
	outageClocks = newWorkerMetric(httpdebug.Counter, "perdure_worker_outage_clocks_total",
		"Clocks finished while a shard was unavailable.")
	unavailableShards = newWorkerMetric(
		httpdebug.Gauge,
		"perdure_worker_shards_out",
		"Unavailable shards that the worker continues "+
			"without.",
	)
	staleRows = newWorkerMetric(httpdebug.Counter, "perdure_worker_stale_rows_total",
		"Rows read beyond their staleness bound in outages.")
	updatesMade = newWorkerMetric(httpdebug.Counter, "perdure_worker_updates_sent_total",
		"Updates created and sent, one for each shard.")
	resent   = newWorkerMetric(httpdebug.Counter, "perdure_worker_updates_resent_total", "Updates that were resent.")
	retained = newWorkerMetric(httpdebug.Gauge, "perdure_worker_updates_kept",
		"Updates that are not safe yet and may be resent.")
	outboxBytes = newWorkerMetric(httpdebug.Gauge, "perdure_worker_outbox_bytes", "Bytes of these updates.")
	pushed      = newWorkerMetric(httpdebug.Counter, "perdure_worker_pushed_bytes_total",
		"Bytes of updates sent to servers.")
	pulled = newWorkerMetric(httpdebug.Counter, "perdure_worker_pulled_bytes_total",
		"Bytes of rows received from servers.")
	samples = newWorkerMetric(httpdebug.Counter, "perdure_worker_samples_total",
		"Examples that the program has processed.")
	beyondBound = newWorkerMetric(httpdebug.Counter, "perdure_worker_updates_beyond_bound_total",
		"Updates that exceeded the bound of vap by themselves and were sent alone.")
	statesLost = newWorkerMetric(httpdebug.Counter, "perdure_worker_states_lost_total",
		"Slot states loaded that were older than the last acknowledged one.")
	storeWaits = newWorkerMetric(httpdebug.Gauge, "perdure_worker_store_waiting",
		"1 if writes to the update log or the store of slot states wait.")
)

// Worker returns a probe of a worker's client.
func Worker(client *worker.Client, who Identity) *httpdebug.Probe {
	return httpdebug.NewProbe(StuckTimeout, func() (l httpdebug.State) {
		at := client.Snapshot()
		l.Activity = fmt.Sprintf("it is worker:%d, at clock %d", client.Slot(), at.Clock)
		if client.Slot() < 0 {
			l.Activity = "it observes its job"
		}
		if at.Err != nil {
			l.NotReady = "it has ended: " + humanize.ErrorText(at.Err)
		}
		n := &at.Counters
		out := 0
		if at.Outage != nil {
			out = len(at.Outage.Shards)
		}
		seconds := func(ns int64) float64 { return float64(ns) / 1e9 }
		l.Samples = []httpdebug.Sample{
			clock.Sample(float64(at.Clock)),
			spent.Sample(seconds(n.StalenessNs), "staleness"),
			spent.Sample(seconds(n.CommNs), "communication"),
			spent.Sample(seconds(n.ComputeNs), "compute"),
			outageTime.Sample(seconds(n.OutageNs)),
			outageClocks.Sample(float64(n.OutageClocks)),
			unavailableShards.Sample(float64(out)),
			staleRows.Sample(float64(n.StaleRows)),
			updatesMade.Sample(float64(n.UpdatesSent)),
			resent.Sample(float64(at.Resent)),
			retained.Sample(float64(at.Kept)),
			outboxBytes.Sample(float64(at.Bytes)),
			pushed.Sample(float64(n.BytesPushed)),
			pulled.Sample(float64(n.BytesPulled)),
			samples.Sample(float64(n.Samples)),
			beyondBound.Sample(float64(n.BeyondBound)),
			statesLost.Sample(float64(n.StatesLost)),
			storeWaits.Sample(boolValue(at.WaitReason != "")),
		}
		return l
	}, func() []httpdebug.Sample { return common(&who) })
}
