package sim

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/worker"
)

// checkStaleness checks the consistency model (ESSP paper, section 2): a read at clock c contains all updates of clocks
// < c - s and all of the reader's own updates.
func (h *History) checkStaleness(what string, p int, mine bool, n, clock, own perdure.Clock) error {
	if mine {
		own = h.count(p, own)
		// Without ticks a shard may be ahead of a slot whose process died: the shard has already counted
		// clocks that the replacement repeats for other shards.
		if short := n < own; short && h.job.OnOutage.Continue && h.job.OutageRows != perdure.RowsApply {
			h.relaxed++ // own updates may be missing
		} else if short || n > own && h.ticks() {
			return violated("%s (the reader) has %d clocks, want %d", what, n, own)
		}
		return nil
	}
	switch m := h.spec.Consistency; m.Kind {
	case perdure.BSP:
		if want := h.count(p, clock); n != want {
			return violated("%s has %d clocks, bsp wants exactly %d", what, n, want)
		}
	case perdure.SSP, perdure.ESSP:
		if want := h.count(p, clock-m.Staleness-h.job.OnOutage.Clocks); n < want {
			return violated("%s has %d clocks, %s and %s want at least %d", what, n, m, h.job.OnOutage, want)
		}
		if n < h.count(p, clock-m.Staleness) {
			h.relaxed++
		}
	}
	return nil
}

// checkInTransit checks vap:V (ESSP paper, section 3). The updates that a slot had sent before the read began and that
// the read did not contain must not exceed V/√t in total, where t is the number of clocks the slot has finished. A
// single update may exceed the bound.
func (r *reader) checkInTransit(what string, p int, n perdure.Clock) error {
	h, m, sent := r.h, r.h.spec.Consistency, r.sent[p]
	count := h.count(p, sent.clocks)
	if m.Kind != perdure.VAP || h.job.OnOutage.Continue || p == int(r.w.Slot()) ||
		sent.generation != r.w.Generation() || count <= n+1 {
		return nil
	}
	if sum, most := h.weights(p, count)-h.weights(p, n), m.Bound/math.Sqrt(float64(sent.clocks)); sum > most {
		return &Violation{
			CurrentOnly: true,
			Text: fmt.Sprintf("%s has %d clocks, it had sent %d: %g is in transit, %s allows %g",
				what, n, count, sum, m, most),
		}
	}
	return nil
}

// mayBeUnseen records updates that a slot had sent before the read began and that the row lacked, for rows that may
// lose updates. vap bounds the weight of updates in transit; updates that are lost are in no row at the end.
func (r *reader) mayBeUnseen(row, p int, set uint64) {
	h, m, sent := r.h, r.h.spec.Consistency, r.sent[p]
	if m.Kind != perdure.VAP || h.job.OnOutage.Continue || p == int(r.w.Slot()) || sent.clocks == 0 {
		return
	}
	missing := h.clockSet(p, below(sent.clocks)) &^ set
	if bits.OnesCount64(missing) < 2 {
		return
	}
	if h.unseen[row][p] == nil {
		h.unseen[row][p] = map[uint64]float64{}
	}
	h.unseen[row][p][missing] = m.Bound / math.Sqrt(float64(sent.clocks))
}

// checkLost checks that updates which reads lacked, although promised, are also missing at the end: if they are
// present, they were not lost. Strategies that are neither eager nor partial are not checked after a process of the
// slot has died: its finished clocks are unknown, and the replacement repeats them.
func (h *History) checkLost(what string, row, p int, set uint64) error {
	t := recovery.Of(h.job.Recovery).Traits()
	if !t.EarlyAck && !t.Partial && h.processes[p] > 1 {
		return nil
	}
	if back := set & h.missing[row][p]; back != 0 {
		return violated("%s has the clocks %b, but reads lacked %b of them though they were promised", what, set, back)
	}
	if t.Partial && slices.Max(h.processes) > 1 {
		return nil // updates seen earlier may wait again at a cut for a slot that repeats clocks
	}
	for missing, most := range h.unseen[row][p] {
		if back := set & missing; h.processes[p] == 1 && bits.OnesCount64(back) > 1 && float64(back) > most {
			return violated("%s has the clocks %b, of which %b were in transit: %d, %s allows %g", what, set, back,
				back, h.spec.Consistency, most)
		}
	}
	return nil
}

// processStarted records that another process of a slot has started.
func (h *History) processStarted(w *worker.Client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.processes[w.Slot()]++
}

// startedClocks returns the clock after the last one that a slot's program has begun.
func (h *History) startedClocks(slot int) (after perdure.Clock) {
	for c := range h.started[slot] {
		after = max(after, c+1)
	}
	return after
}

// Relaxed returns the number of reads that only the outage policy permitted, not the consistency model alone.
func (h *History) Relaxed() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.relaxed
}
