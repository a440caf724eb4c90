// Package metrics defines the metrics of all processes of a job, and collects them: for each role, who is asked
// and which part of the answer becomes which metric. Package httpdebug serves them.
//
// A name that is here is a promise to boards and alerts that people have made.
package metrics

import (
	"runtime"
	"strconv"
	"time"

	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Bound is how long whoever does the work of a process may take to answer, before the process counts as stuck.
const Bound = 2 * time.Second

// Of every process.
var (
	info = httpdebug.NewMetric(httpdebug.Gauge, "perdure_process_info",
		"1; who the process is, and which version of Perdure.", "perdure_job", "perdure_role", "perdure_id",
		"version", "go")
	received = httpdebug.NewMetric(httpdebug.Counter, "perdure_network_received_bytes_total",
		"Bytes that came from other processes of the job.")
	sent = httpdebug.NewMetric(httpdebug.Counter, "perdure_network_sent_bytes_total",
		"Bytes that went to other processes of the job.")
)

// All are all metrics of Perdure, by role; "" is every role.
func All() map[string][]*httpdebug.Metric {
	return map[string][]*httpdebug.Metric{
		"":            {info, httpdebug.Healthy, httpdebug.Ready, httpdebug.Answer, received, sent},
		"coordinator": ofCoordinator,
		"server":      ofServer,
		"worker":      ofWorker,
		"host":        ofHost,
		"log":         ofLog,
	}
}

// Who is a process.
type Who struct {
	Job, Role, Version string
	ID                 int // -1: not known
}

// common are samples that nobody need be asked for.
func common(w *Who) []httpdebug.Sample {
	in, out := transport.Traffic()
	return []httpdebug.Sample{w.info(), received.Is(float64(in)), sent.Is(float64(out))}
}

// info is the sample that says who the process is.
func (w *Who) info() httpdebug.Sample {
	id := ""
	if w.ID >= 0 {
		id = strconv.Itoa(w.ID)
	}
	return info.Is(1, w.Job, w.Role, id, w.Version, runtime.Version())
}

// known makes a list of metrics as they are made.
func known(list *[]*httpdebug.Metric) func(kind httpdebug.Kind, name, help string, labels ...string) *httpdebug.Metric {
	return func(kind httpdebug.Kind, name, help string, labels ...string) *httpdebug.Metric {
		m := httpdebug.NewMetric(kind, name, help, labels...)
		*list = append(*list, m)
		return m
	}
}

// is is 1 or 0.
func is(so bool) float64 {
	if so {
		return 1
	}
	return 0
}
