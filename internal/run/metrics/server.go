package metrics

import (
	"fmt"

	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/server"
)

var (
	serverMetrics   []*httpdebug.Metric
	newServerMetric = metricConstructor(&serverMetrics)

	held = newServerMetric(httpdebug.Gauge, "perdure_server_shards",
		"Replicas of shards that the server holds, by their position in the chain: head, middle, tail, joining. "+
			"A single replica is the head.", "part")
	unready = newServerMetric(httpdebug.Gauge, "perdure_server_shards_unready",
		"Replicas that do not serve yet, because their rows are being restored or read from the log.")
	serverClock = newServerMetric(httpdebug.Gauge, "perdure_server_min_clock",
		"The smallest MinClock of the shards that the server holds.")
	rows = newServerMetric(httpdebug.Gauge, "perdure_server_rows", "Rows in memory, of all replicas, by table.",
		"table")
	rowBytes = newServerMetric(httpdebug.Gauge, "perdure_server_row_bytes",
		"Bytes of these rows, with the state of their update rule, by table.", "table")
	applied = newServerMetric(httpdebug.Counter, "perdure_server_updates_applied_total",
		"Updates applied to replicas on this server: one for each slot, clock and shard. Updates read from the "+
			"log again count as well.")
	answered = newServerMetric(httpdebug.Counter, "perdure_server_reads_answered_total", "Answered reads.")
	waiting  = newServerMetric(httpdebug.Gauge, "perdure_server_reads_waiting",
		"Reads that wait for a MinClock.")
	clients = newServerMetric(httpdebug.Gauge, "perdure_server_connections",
		"Connections of workers, observers and other servers.")
	connectionsRejected = newServerMetric(httpdebug.Counter, "perdure_server_connections_refused_total",
		"Connections refused because their peer already had the maximum number.")
	written = newServerMetric(httpdebug.Summary, "perdure_server_checkpoint_save_seconds",
		"Segments of checkpoints, and snapshots for an update log, that were written: their number and total "+
			"time.")
	writtenBytes = newServerMetric(httpdebug.Counter, "perdure_server_checkpoint_saved_bytes_total",
		"Bytes of these segments and snapshots.")
	failures = newServerMetric(httpdebug.Counter, "perdure_server_checkpoint_save_failures_total",
		"Failed attempts to write a segment or a snapshot.")
	logUnread = newServerMetric(httpdebug.Gauge, "perdure_server_log_unread_records",
		"Records of the update log that the rows lack; absent without a log, or if the log does not answer.")
	logWaits = newServerMetric(httpdebug.Gauge, "perdure_server_log_waiting", "1 if writes to the update log wait.")
)

// Server returns a probe of a server.
func Server(sv server.Monitor, who Identity) *httpdebug.Probe {
	return httpdebug.NewProbe(StuckTimeout, func() (l httpdebug.State) {
		at := sv.Stats()
		l.NotReady = at.NotReady
		l.Activity = fmt.Sprintf("it is server:%d, and serves %d shards", at.Index, count(at.Shards))
		add := func(s ...httpdebug.Sample) { l.Samples = append(l.Samples, s...) }
		for _, part := range []server.ChainRole{server.Head, server.Middle, server.Tail, server.Joining} {
			add(held.Sample(float64(at.Shards[part]), string(part)))
		}
		for name, t := range at.Tables {
			add(rows.Sample(float64(t.Rows), name), rowBytes.Sample(float64(t.Bytes), name))
		}
		if at.MinClock >= 0 {
			add(serverClock.Sample(float64(at.MinClock)))
		}
		if at.Unread != nil {
			add(logUnread.Sample(float64(*at.Unread)))
		}
		add(unready.Sample(float64(at.Unready)), applied.Sample(float64(at.Updates)),
			answered.Sample(float64(at.Answers)), waiting.Sample(float64(at.Waiting)),
			clients.Sample(float64(at.Connections)), connectionsRejected.Sample(float64(at.Refused)),
			written.SummarySample(at.Saves, at.SaveTime.Seconds()), writtenBytes.Sample(float64(at.SaveBytes)),
			failures.Sample(float64(at.SaveFailures)), logWaits.Sample(boolValue(at.LogWaitReason != "")))
		return l
	}, func() []httpdebug.Sample { return common(&who) })
}

func count(shards map[server.ChainRole]int) (n int) {
	for _, k := range shards {
		n += k
	}
	return n
}
