package worker

import "github.com/perdure/perdure"

// histogram counts whole numbers, small ones without allocating.
type histogram struct {
	near [257]int64 // -128 … 128
	far  map[int64]int64
}

func (h *histogram) add(v perdure.Clock, n int64) {
	if v >= -128 && v <= 128 {
		h.near[v+128] += n
		return
	}
	if h.far == nil {
		h.far = map[int64]int64{}
	}
	if len(h.far) < 1024 || h.far[int64(v)] > 0 {
		h.far[int64(v)] += n
	}
}

func (h *histogram) counts() map[int64]int64 {
	out := map[int64]int64{}
	for i, n := range h.near {
		if n > 0 {
			out[int64(i)-128] = n
		}
	}
	for v, n := range h.far {
		out[v] = n
	}
	return out
}

// stats are counted since the client's start; Client.mu guards them.
type stats struct {
	sent, pushed, pulled, samples int64
	differential, lag             *histogram
}

func (s *stats) init() { s.differential, s.lag = &histogram{}, &histogram{} }

func (s *stats) snapshot() perdure.WorkerCounters {
	return perdure.WorkerCounters{
		UpdatesSent: s.sent, BytesPushed: s.pushed, BytesPulled: s.pulled,
		Samples: s.samples, ClockDifferential: s.differential.counts(), ReadLag: s.lag.counts(),
	}
}

// AddSamples counts training samples that the program has worked through.
func (c *Client) AddSamples(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.samples += int64(n)
}
