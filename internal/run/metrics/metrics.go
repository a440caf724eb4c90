// Package metrics defines and collects the metrics of all processes of a job. For each role it defines which component
// is queried and how its state maps to metrics. Package httpdebug serves them.
//
// The names of metrics are stable, because users' dashboards and alerts depend on them.
package metrics

import (
	"runtime"
	"strconv"
	"time"

	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/transport"
)

// StuckTimeout is how long a process's main loop may take to answer before the process counts as stuck.
const StuckTimeout = 2 * time.Second

// Metrics of every process.
var (
	info = httpdebug.NewMetric(httpdebug.Gauge, "perdure_process_info",
		"1; labelled with the identity of the process and the version of Perdure.", "perdure_job", "perdure_role",
		"perdure_id",
		"version", "go")
	received = httpdebug.NewMetric(httpdebug.Counter, "perdure_network_received_bytes_total",
		"Bytes received from other processes of the job.")
	sent = httpdebug.NewMetric(httpdebug.Counter, "perdure_network_sent_bytes_total",
		"Bytes sent to other processes of the job.")
)

// All returns all metrics of Perdure by role; "" is every role.
func All() map[string][]*httpdebug.Metric {
	return map[string][]*httpdebug.Metric{
		"":            {info, httpdebug.Healthy, httpdebug.Ready, httpdebug.Answer, received, sent},
		"coordinator": coordinatorMetrics,
		"server":      serverMetrics,
		"worker":      workerMetrics,
		"host":        hostMetrics,
		"log":         logMetrics,
	}
}

// Identity is the identity of a process.
type Identity struct {
	Job, Role, Version string
	ID                 int // -1: unknown
}

// common returns samples that need no query.
func common(w *Identity) []httpdebug.Sample {
	in, out := transport.Traffic()
	return []httpdebug.Sample{w.info(), received.Sample(float64(in)), sent.Sample(float64(out))}
}

// info returns the sample with the process's identity.
func (w *Identity) info() httpdebug.Sample {
	id := ""
	if w.ID >= 0 {
		id = strconv.Itoa(w.ID)
	}
	return info.Sample(1, w.Job, w.Role, id, w.Version, runtime.Version())
}

// metricConstructor returns a constructor of metrics that also appends them to list.
func metricConstructor(
	list *[]*httpdebug.Metric,
) func(kind httpdebug.Kind, name, help string, labels ...string) *httpdebug.Metric {
	return func(kind httpdebug.Kind, name, help string, labels ...string) *httpdebug.Metric {
		m := httpdebug.NewMetric(kind, name, help, labels...)
		*list = append(*list, m)
		return m
	}
}

// boolValue returns 1 for true and 0 for false.
func boolValue(so bool) float64 {
	if so {
		return 1
	}
	return 0
}
