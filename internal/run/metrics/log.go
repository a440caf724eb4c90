package metrics

import (
	"context"
	"fmt"

	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/logserver"
)

var (
	logMetrics   []*httpdebug.Metric
	newLogMetric = metricConstructor(&logMetrics)

	logStreams = newLogMetric(httpdebug.Gauge, "perdure_log_streams",
		"Streams of update logs that are served: one for each shard.")
	logRecords     = newLogMetric(httpdebug.Gauge, "perdure_log_records", "Records in all streams.")
	logStored      = newLogMetric(httpdebug.Gauge, "perdure_log_stored_bytes", "Bytes of these records.")
	logConnections = newLogMetric(httpdebug.Gauge, "perdure_log_connections", "Connections of workers and servers.")
	logFull        = newLogMetric(httpdebug.Gauge, "perdure_log_full",
		"1 if updates wait because the disk is full or fails.")
	logReceived = newLogMetric(httpdebug.Counter, "perdure_log_received_bytes_total",
		"Bytes received since the streams were opened.")
	logSent = newLogMetric(httpdebug.Counter, "perdure_log_sent_bytes_total",
		"Bytes sent since the streams were opened.")
)

// Log returns a probe of the process that serves an update log, which works as long as ctx.
func Log(ctx context.Context, look func(context.Context) (logserver.State, error), who Identity) *httpdebug.Probe {
	return httpdebug.NewProbe(StuckTimeout, func() httpdebug.State {
		s, err := look(ctx)
		if err != nil {
			return httpdebug.State{NotReady: "the process ends"}
		}
		return httpdebug.State{
			Activity: fmt.Sprintf("it serves %d streams", s.Streams), NotReady: s.Waits,
			Samples: []httpdebug.Sample{
				logStreams.Sample(float64(s.Streams)),
				logRecords.Sample(float64(s.Records)),
				logStored.Sample(float64(s.Stored)),
				logConnections.Sample(float64(s.Connections)),
				logFull.Sample(boolValue(s.Waits != "")),
				logReceived.Sample(float64(s.Received)),
				logSent.Sample(float64(s.Sent)),
			},
		}
	}, func() []httpdebug.Sample { return []httpdebug.Sample{who.info()} })
}
