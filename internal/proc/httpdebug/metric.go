package httpdebug

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind is how a metric's values go on.
type Kind string

// The kinds. A Summary is a count and a sum.
const (
	Counter Kind = "counter"
	Gauge   Kind = "gauge"
	Summary Kind = "summary"
)

// Metric is a name under which a process shows numbers.
type Metric struct {
	Name, Help string
	Kind       Kind
	Labels     []string
	desc       *prometheus.Desc
}

// NewMetric describes a metric.
func NewMetric(kind Kind, name, help string, labels ...string) *Metric {
	return &Metric{
		Name: name, Help: help, Kind: kind, Labels: labels, desc: prometheus.NewDesc(name, help, labels, nil),
	}
}

// Sample is a metric's value, with the values of its labels.
type Sample struct {
	of     *Metric
	value  float64
	count  uint64 // of a Summary, whose sum is the value
	labels []string
}

// Is makes a sample.
func (m *Metric) Is(value float64, labels ...string) Sample {
	return Sample{of: m, value: value, labels: labels}
}

// Sums makes a sample of a Summary.
func (m *Metric) Sums(count int64, sum float64) Sample {
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

// What every process shows of its own answering.
var (
	Healthy = NewMetric(Gauge, "perdure_healthy",
		"1 if the work of the process has answered in time, 0 if not: then what only it knows is missing.")
	Answer = NewMetric(Gauge, "perdure_answer_seconds",
		"How long the loop of a coordinator, or the locks of a server or worker, kept this scrape waiting.")
	Ready = NewMetric(Gauge, "perdure_ready", "1 if the process holds its place and does its work, as at /readyz.")
)

// unchecked collects what a process shows when it is asked. It describes nothing: which metrics there are depends on
// who is asked.
type unchecked func() *Probe

func (unchecked) Describe(chan<- *prometheus.Desc) {}

func (u unchecked) Collect(to chan<- prometheus.Metric) {
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
	samples := slices.Concat(seen.Samples, []Sample{ // others may have the same look
		Healthy.Is(is(seen.Err == nil)), Answer.Is(seen.Took.Seconds()),
		Ready.Is(is(seen.Err == nil && seen.NotReady == "" && seen.Waits == "")),
	})
	if p.beside != nil {
		samples = append(samples, p.beside()...)
	}
	for i := range samples {
		m, err := samples[i].metric()
		if err != nil {
			m = prometheus.NewInvalidMetric(samples[i].of.desc, err)
		}
		to <- m
	}
}
