package reads

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

var (
	seedFlag = flag.Uint64("reads.seed", 0, "run this seed only, and print its log; 0: run many")
	many     = flag.Uint64("reads.seeds", 60, "number of seeds for each model")
)

// TestReads runs a reader through random lives of its shards, and compares everything that it reads with a naive twin
// that keeps the whole history. Every call must end.
func TestReads(t *testing.T) {
	first, n := uint64(1), *many
	if *seedFlag > 0 {
		first, n = *seedFlag, 1
	}
	for _, m := range []string{"asp", "bsp", "ssp:0", "ssp:2", "essp:0", "essp:2", "vap:1"} {
		total := 0
		for seed := first; seed < first+n; seed++ {
			w := newWorld(seed, model(t, m))
			reads, err := w.run()
			if total += reads; err != nil {
				t.Fatalf("%s: %v\nreplay with: go test ./internal/core/reads -run TestReads -reads.seed=%d\n%s",
					m, err, seed, strings.Join(w.log[max(0, len(w.log)-100):], "\n"))
			}
		}
		if n > 1 && total < int(n) {
			t.Errorf("%s: %d reads in %d seeds", m, total, n)
		}
	}
}

// run makes random steps until the program has finished its last clock. From time to time, and at the end, it waits for
// everything in progress.
func (w *world) run() (reads int, err error) {
	for i := 0; i < 3000 && w.clocks[0] < w.end; i++ {
		act := w.step
		if i%50 == 49 {
			act = w.quiesce
		}
		done, err := act()
		if reads += done; err != nil {
			return reads, err
		}
	}
	done, err := w.quiesce()
	return reads + done, err
}

// quiesce waits for all reads, while other slots continue and all messages arrive.
func (w *world) quiesce() (reads int, err error) {
	for i := 0; len(w.calls) > 0; i++ {
		if i == 500 {
			return reads, fmt.Errorf("at clock %d a read never completes: %v", w.clocks[0], w.calls[0].rows)
		}
		for p := 1; p < slots; p++ {
			w.othersGoOn(p)
		}
		for _, s := range w.shards {
			for p := range slots {
				w.apply(s, p)
			}
			w.goOn(s)
			for _, toSlot := range []bool{false, true} {
				if err := w.deliver(s, toSlot); err != nil {
					return reads, err
				}
			}
		}
		done, err := w.ended()
		if reads += done; err != nil {
			return reads, err
		}
	}
	return reads, nil
}

// step makes one random step. It returns how many reads have ended.
func (w *world) step() (reads int, err error) {
	s := w.shards[w.rnd.IntN(shards)]
	switch k := w.rnd.IntN(103); {
	case k < 25:
		w.apply(s, w.rnd.IntN(slots))
	case k < 35:
		w.othersGoOn(1 + w.rnd.IntN(slots-1))
	case k < 70:
		err = w.deliver(s, w.rnd.IntN(2) == 0)
	case k < 80:
		w.begin()
	case k < 85 && len(w.calls) == 0:
		w.inc()
	case k < 90 && len(w.calls) == 0:
		w.endClock()
	case k < 93:
		w.say("prefetch")
		w.t.Prefetch(w.draw())
		w.carryOut()
	case k < 95:
		w.reopen(s)
	case k < 98:
		w.goOn(s)
	case k < 99:
		w.say("forget")
		w.t.Forget()
		clear(w.lowest) // a replica that lags may answer
		for _, q := range w.calls {
			q.before = nil
		}
	case k < 101 && w.cfg.continues():
		w.outage(s)
	case k < 102 && len(w.calls) > 0:
		w.abandon()
	}
	if err != nil {
		return 0, err
	}
	return w.ended()
}

// draw draws distinct rows.
func (w *world) draw() (rows []perdure.RowID) {
	odds := 2 + w.rnd.IntN(2*rowsOfAll) // often few rows, so that others are not read for long
	for row := range perdure.RowID(rowsOfAll) {
		if w.rnd.IntN(odds) == 0 {
			rows = append(rows, row)
		}
	}
	if w.rnd.IntN(2) == 0 {
		w.rnd.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	}
	return rows
}

// begin starts a read.
func (w *world) begin() {
	if len(w.calls) > 1 || w.clocks[0] >= w.end {
		return
	}
	q := &reading{rows: wire.Rows{IDs: w.draw()}}
	if q.rows.Count = len(q.rows.IDs); q.rows.Count == 0 || !w.spec.Sparse && w.rnd.IntN(2) == 0 {
		first := w.rnd.IntN(rowsOfAll)
		q.rows = wire.Rows{First: perdure.RowID(first), Count: 1 + w.rnd.IntN(rowsOfAll-first)}
		if w.spec.Sparse {
			q.rows = wire.Rows{IDs: []perdure.RowID{perdure.RowID(first)}, Count: 1}
		}
	}
	q.dst, q.before = make([]float32, q.rows.Count*w.dim), maps.Clone(w.lowest)
	w.say("at clock %d the program reads %v", w.clocks[0], q.rows)
	w.calls = append(w.calls, q)
	q.call = w.t.Read(&q.rows, q.dst, w)
	w.carryOut()
}

// ended ends the calls that are done, or repeats them.
func (w *world) ended() (n int, err error) {
	for _, q := range slices.Clone(w.calls) {
		if !q.call.Done() {
			continue
		}
		_, again, err := q.call.End(&q.rows)
		if err != nil {
			return n, err
		}
		if again {
			q.call = w.t.Read(&q.rows, q.dst, w)
			w.carryOut()
			continue
		}
		w.say("the program has read %v", q.rows)
		if err := w.check(q, w.clocks[0]); err != nil {
			return n, err
		}
		w.calls = slices.DeleteFunc(w.calls, func(other *reading) bool { return other == q })
		n++
	}
	return n, nil
}

// inc makes the program Inc rows, once per clock.
func (w *world) inc() {
	if w.clocks[0] >= w.end {
		return
	}
	delta := make([]float32, w.dim)
	delta[w.clocks[0]] = 1
	for _, row := range w.draw() {
		if w.made[0][w.clocks[0]][row] {
			continue
		}
		w.say("the program Incs row %d", row)
		w.made[0][w.clocks[0]][row] = true
		p := w.t.shardOf(row)
		if w.spec.Sparse {
			w.t.ApplyRowDeltas(p.shard.id, []perdure.RowID{row}, []int32{0}, delta)
		} else {
			w.t.ApplyDeltas(p.shard.id, int(row-p.first), 1, delta)
		}
	}
}

// endClock ends the program's clock.
func (w *world) endClock() {
	w.r.UpdatesBuilt()
	w.r.PrefetchExpiring()
	for _, s := range w.shards {
		if s.open {
			w.r.SendPrefetches(w.r.Shard(s.id))
		}
	}
	w.carryOut()
	w.clocks[0]++
	w.say("the program works on clock %d", w.clocks[0])
	w.tellMoment()
	w.r.StartClock()
	w.carryOut()
}

// othersGoOn makes another slot end a clock, if the model allows it.
func (w *world) othersGoOn(p int) {
	m := w.spec.Consistency
	if w.clocks[p] < w.end && (!m.Bounded() || w.clocks[p] <= w.clocks[0]+m.Staleness) {
		w.clocks[p]++
	}
}

// outage makes a shard unavailable, or available again.
func (w *world) outage(s *naiveShard) {
	s.out, w.outages = !s.out, true
	w.say("shard %d is out: %v", s.id, s.out)
	if s.out {
		w.r.MarkUnavailable(w.r.Shard(s.id))
	} else {
		w.r.MarkAvailable(w.r.Shard(s.id))
	}
	w.carryOut()
}

// abandon makes a caller give up. After that, nothing is written to its memory.
func (w *world) abandon() {
	q := w.calls[0]
	w.say("the program gives up %v", q.rows)
	q.call.Abandon()
	w.carryOut()
	w.calls = w.calls[1:]
}
