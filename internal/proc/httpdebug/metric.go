package httpdebug

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind is the Prometheus type of a metric.
type Kind string

// The kinds of metrics. A Summary has a count and a sum, without quantiles.
const (
	Counter Kind = "counter"
	Gauge   Kind = "gauge"
	Summary Kind = "summary"
)

// Metric describes a metric: its name, help text, kind and labels.
type Metric struct {
	Name, Help string
	Kind       Kind
	Labels     []string
	desc       *prometheus.Desc
}

// NewMetric returns the description of a metric.
func NewMetric(kind Kind, name, help string, labels ...string) *Metric {
	return &Metric{
		Name: name, Help: help, Kind: kind, Labels: labels, desc: prometheus.NewDesc(name, help, labels, nil),
	}
}

// Sample is one value of a metric, with the values of its labels.
type Sample struct {
	of     *Metric
	value  float64
	count  uint64 // only for a Summary; value is then its sum
	labels []string
}

// Sample returns a sample with the given value.
func (m *Metric) Sample(value float64, labels ...string) Sample {
	return Sample{of: m, value: value, labels: labels}
}

// SummarySample returns a sample of a Summary.
func (m *Metric) SummarySample(count int64, sum float64) Sample {
	return Sample{of: m, value: sum, count: uint64(max(count, 0))}
}

func (s *Sample) metric() (prometheus.Metric, error) {
	switch s.of.Kind {
	case Counter:
		return prometheus.NewConstMetric(s.of.desc, prometheus.CounterValue, s.value, s.labels...)
	case Summary:
		return prometheus.NewConstSummary(s.of.desc, s.count, s.value, nil, s.labels...)
	}
	return prometheus.NewConstMetric(s.of.desc, prometheus.GaugeValue, s.value, s.labels...)
}

// The metrics that every process exports about its own responsiveness.
var (
	Healthy = NewMetric(Gauge, "perdure_healthy",
		"1 if the process answered in time; if 0, the metrics that only it can compute are missing.")
	Answer = NewMetric(Gauge, "perdure_answer_seconds",
		"How long this scrape waited for the coordinator's loop, or for the locks of a server or worker.")
	Ready = NewMetric(Gauge, "perdure_ready",
		"1 if the process has joined the job and is working, as reported at /readyz.")
)

// probeCollector collects the metrics that a process reports when asked. It describes none in advance, because they
// depend on the process.
type probeCollector func() *Probe

func (probeCollector) Describe(chan<- *prometheus.Desc) {}

func (u probeCollector) Collect(to chan<- prometheus.Metric) {
	p := u()
	if p == nil {
		return
	}
	seen := p.Ask(context.Background())
	is := func(good bool) float64 {
		if good {
			return 1
		}
		return 0
	}
	samples := slices.Concat(seen.Samples, []Sample{ // copied, because concurrent callers may share the look
		Healthy.Sample(is(seen.Err == nil)), Answer.Sample(seen.Took.Seconds()),
		Ready.Sample(is(seen.Err == nil && seen.NotReady == "" && seen.BlockedOn == "")),
	})
	if p.extra != nil {
		samples = append(samples, p.extra()...)
	}
	for i := range samples {
		m, err := samples[i].metric()
		if err != nil {
			m = prometheus.NewInvalidMetric(samples[i].of.desc, err)
		}
		to <- m
	}
}
