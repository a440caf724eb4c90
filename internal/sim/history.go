package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/worker"
)

// History checks everything that programs read, using only the values. In every clock c, each slot p adds three numbers
// to every row: 1 to its column count, a weight of c to its column weight, and the square of its generation to its
// column generation. A row therefore shows how many of p's clocks it contains, whether these are the first ones, each
// once, and in which generations they were done. Whether the table is dense or sparse is drawn from the seed. A bsp job
// also has a ReferenceTable; the History's own table may have another consistency model.
// table may have another model beside it.
// If rows may be lost, each clock's weight is a distinct power of two. A row then shows exactly which of p's clocks it
// contains, each once. Clocks that a read lacks although its model promised them must be lost: no row has them at the
// end. (Clocks that only an earlier read had may reappear.) The registry must count exactly the clocks that no row has
// as lost.
type History struct {
	job       perdure.JobSpec
	spec      perdure.TableSpec
	slots     int // max number of slots
	rows      int
	ids       []perdure.RowID // of the rows
	lossy     bool            // rows may be lost, so that later reads may contain less
	aux       checkers
	misplaced error         // a whole table was recorded on the wrong shard
	Pace      time.Duration // pause between two clocks
	Goal      perdure.Clock // clock from which programs request the end of the job; 0: never
	// Misses is the number of clocks, out of every four, whose model misses the goal; 0: the end is not tentative.
	Misses perdure.Clock
	// Skips makes slots end several clocks with one update: all those before an early end, or at random. The job must
	// use asp and atomic clocks, and its members must be planned.
	Skips bool

	mu       sync.Mutex                             // guards the fields below
	finished []progress                             // by slot
	started  []map[perdure.Clock]perdure.Generation // by slot and clock: the generation that did it last
	missing  [][]uint64                             // by row and slot: promised clocks that some read lacked
	// by row and slot: sets of clocks that a read lacked, and the weight that may be in transit of each
	unseen    [][]map[uint64]float64
	processes []int                 // by slot: number of processes started
	terms     [][]protocol.Interval // by slot: its membership intervals, in order
	end       perdure.Clock         // of the job, as last recorded; 0: as specified
	relaxed   int                   // reads that only the outage policy permitted
	priorRun                        // state left by the run that this one resumes
	logged    [][]loggedUpdates     // by shard and slot: entries that the update log has acknowledged
}

// progress is the number of clocks that a slot has finished, and the generation of the last one.
type progress struct {
	clocks     perdure.Clock
	generation perdure.Generation
}

// Columns of each slot in a row.
const (
	colCount = iota
	colWeight
	colGeneration
	columns
)

// NewHistory returns a checker for a job that runs History.Program on at most slots slots. Membership follows the plan,
// or the views that Saved receives. A job with unplanned members has no ReferenceTable.
func NewHistory(job perdure.JobSpec, loses bool, slots int, plan []Planned) *History {
	if loses && job.Clocks > maxLossyClocks {
		panic(fmt.Sprintf("sim: a job whose rows may be lost can have at most %d clocks", maxLossyClocks))
	}
	h := &History{job: job, slots: slots, rows: job.Shards + 3, lossy: loses}
	h.spec = perdure.TableSpec{
		Name: "history", Dim: slots * columns, Sparse: rand.New(rand.NewPCG(job.Seed, 3)).IntN(2) == 0,
		Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: job.ConsistencyOf("history"),
	}
	if !h.spec.Sparse {
		h.spec.Rows = int64(h.rows)
	}
	h.ids = rowIDs(h.spec, job.Seed, h.rows)
	intervals := PlannedMembership(job, plan)
	if job.Consistency.Kind == perdure.BSP && !loses && slots == len(intervals) {
		h.aux.reference = NewReferenceTable(job, intervals)
	}
	h.finished, h.terms = make([]progress, slots), make([][]protocol.Interval, slots)
	for slot, interval := range intervals {
		h.terms[slot] = append(h.terms[slot], interval)
	}
	for range h.rows {
		h.missing = append(h.missing, make([]uint64, slots))
		h.unseen = append(h.unseen, make([]map[uint64]float64, slots))
	}
	h.processes, h.succeeded = make([]int, slots), make([]bool, slots)
	for range job.Shards {
		h.logged = append(h.logged, make([]loggedUpdates, slots))
	}
	if recovery.RoundsOf(job.Recovery).Any() {
		h.aux.lineage = newLineage(h)
	}
	if b := recovery.Of(job.Recovery).Traits().RestartsWith; b == recovery.InitialRows || b == recovery.LastSavedRows {
		h.aux.bases = newBases(job, slots)
	}
	for range slots {
		h.started = append(h.started, map[perdure.Clock]perdure.Generation{})
	}
	return h
}

func weight(c perdure.Clock) float64 { return float64((c*c*7+3*c)%61 + 1) }

// ticks reports whether a clock is on all shards or on none.
func (h *History) ticks() bool { return h.job.ClockMode(nil).Ticks() }

// weight returns the number that a slot adds in a clock to its column weight.
func (h *History) weight(c perdure.Clock) float64 {
	if h.lossy {
		return float64(uint64(1) << c)
	}
	return weight(c)
}

// maxLossyClocks is the max number of clocks of a job whose rows may be lost: a float32 represents sums of that many
// distinct powers of two exactly.
const maxLossyClocks = 24

// Saved records the membership before any process acts on it, and checks the recorded state.
func (h *History) Saved(f *membership.JobRecord, fs disk.FS, died map[perdure.Slot]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := &f.View
	h.end = v.End
	if h.aux.lineage != nil {
		defer h.aux.lineage.processSaved(f, fs)
	}
	defer h.aux.bases.checkView(v, died, h.startedClocks)
	h.checkPlacement(v)
	for slot := range v.Slots {
		terms, now := h.terms[slot], v.Slots[slot].Interval
		// the same interval, or a new one that replaces an interval without clocks
		if n := len(terms); n > 0 && (terms[n-1].From == now.From || terms[n-1].Until == 0) {
			terms[n-1] = now
			continue
		}
		h.terms[slot] = append(terms, now)
	}
}

// clocks returns a slot's clocks below c, in order.
func (h *History) clocks(slot int, c perdure.Clock) (list []perdure.Clock) {
	for _, t := range h.terms[slot] {
		for clock := t.From; clock < c && t.Has(clock); clock++ {
			list = append(list, clock)
		}
	}
	return list
}

// count returns the number of a slot's clocks below c.
func (h *History) count(slot int, c perdure.Clock) (n perdure.Clock) {
	for _, t := range h.terms[slot] {
		n += t.Clocks(c)
	}
	return n
}

// clockSet returns the clocks of a set that belong to a slot.
func (h *History) clockSet(slot int, set uint64) (has uint64) {
	for _, c := range h.clocks(slot, maxLossyClocks) {
		has |= set & (1 << c)
	}
	return has
}

// weights returns the sum of the weights of a slot's first n clocks.
func (h *History) weights(slot int, n perdure.Clock) (sum float64) {
	for i, c := range h.clocks(slot, h.job.Clocks) {
		if perdure.Clock(i) < n {
			sum += weight(c)
		}
	}
	return sum
}

// Program is the training program. It checks everything that it reads.
func (h *History) Program(ctx context.Context, w *worker.Client) error {
	r := &reader{h: h, w: w, dim: h.spec.Dim}
	h.processStarted(w)
	var err error
	if r.t, err = w.Table(ctx, h.spec); err != nil {
		return err
	}
	if err := r.openTables(ctx); err != nil {
		return err
	}
	if err := r.loadState(ctx); err != nil && !errors.Is(err, perdure.ErrRolledBack) {
		return err
	}
	for missed := perdure.Clock(-1); ; {
		for clock := w.Now(); clock < w.End(); {
			var err error
			if h.Goal > 0 && clock >= h.Goal && clock != missed {
				if err = h.requestEnd(ctx, w); err == nil && clock >= w.End() {
					break
				}
			}
			to := h.clocksUntil(w, clock)
			if err == nil {
				err = r.step(ctx, clock, to)
			}
			if err != nil && !errors.Is(err, perdure.ErrRolledBack) {
				return err
			}
			if h.Pace > 0 {
				select {
				case <-ctx.Done():
				case <-time.After(h.Pace):
				}
			}
			generation := w.Generation()
			if clock, err = r.learner.endClock(ctx, w, to); err != nil {
				return err
			}
			if clock == to {
				h.recordProgress(w, progress{clock, generation}) // the generation of that clock
			} else {
				r.rolledBack()
				if err := r.loadState(ctx); err != nil && !errors.Is(err, perdure.ErrRolledBack) {
					return err
				}
			}
		}
		again, err := h.waitForEnd(ctx, w, r, &missed)
		if !again {
			return err
		}
	}
}

// reader checks the reads of one worker process.
type reader struct {
	h         *History
	w         *worker.Client
	t         *worker.Table
	reference *worker.Table // nil: not used
	evicting  *worker.Table // nil: not used
	mean      *worker.Table // nil: not used
	learner   *learner      // nil: not used
	dim       int
	seen      map[int][]perdure.Clock // by row and slot: clocks in the last read
	sent      []progress              // by slot, before the current read
}

func (r *reader) rolledBack() { r.seen = nil }

// loadState checks that the program receives the state that it saved in the previous clock, or is notified by how many
// clocks at most the state is older.
func (r *reader) loadState(ctx context.Context) error {
	clock := r.w.Now()
	got, err := r.w.LoadSaved(ctx)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, store.ErrCorrupt) {
		return violated("%v", err)
	}
	if err != nil {
		return err
	}
	saved := perdure.Clock(-1)
	if got.State != nil {
		if _, err := fmt.Sscanf(string(got.State), "slot %d clock %d", new(int), &saved); err != nil {
			return violated("saved state reads %q", got.State)
		}
	}
	if err := r.learner.load(string(got.State)); err != nil {
		return err
	}
	r.h.mu.Lock()
	terms := r.h.terms[r.w.Slot()]
	fresh := clock == terms[len(terms)-1].From
	r.h.mu.Unlock()
	slot, known := r.w.Slot(), saved+got.Older
	switch {
	case saved != got.Clock:
		return violated("slot %d received the state of clock %d, labeled clock %d", slot, saved, got.Clock)
	case got.Older > 0 && !r.h.lossy:
		return violated("slot %d starts at clock %d with a state that is %d clocks old", slot, clock, got.Older)
	case fresh && saved == -1 && got.Older == 0:
	case known < clock-1 || r.h.ticks() && known != clock-1:
		return violated("slot %d starts at clock %d with the state of clock %d, reported as %d clocks older",
			slot, clock, saved, got.Older)
	}
	return nil
}

// step reads all rows, adds the slot's numbers of all clocks up to the given one to them, and reads one row again.
func (r *reader) step(ctx context.Context, clock, to perdure.Clock) error {
	h := r.h
	values := make([]float32, h.rows*r.dim)
	r.sent = h.progress()
	if err := r.getAll(ctx, values); err != nil {
		return err
	}
	for row := range h.rows {
		if err := r.checkRow(row, values[row*r.dim:][:r.dim], clock, clock); err != nil {
			return err
		}
	}
	if err := r.stepTables(ctx, clock); err != nil {
		return err
	}
	generation := r.w.Generation()
	delta := make([]float32, h.rows*r.dim)
	slot := int(r.w.Slot())
	for c := clock; c < to; c++ {
		for row := range h.rows {
			own := delta[row*r.dim+slot*columns:]
			own[colCount]++
			own[colWeight] += float32(h.weight(c))
			own[colGeneration] += float32(generation * generation)
		}
		h.startClock(slot, c, generation)
	}
	if err := r.incAll(slot, clock, delta, to == clock+1); err != nil {
		return err
	}
	row := int(clock) % h.rows
	r.sent = h.progress()
	if err := r.t.Get(ctx, h.ids[row], values[:r.dim]); err != nil {
		return err
	}
	if err := r.checkRow(row, values[:r.dim], clock, to); err != nil {
		return err
	}
	return r.w.SaveState(fmt.Appendf(nil, "slot %d clock %d%s", slot, to-1, r.learner.state()))
}

func (r *reader) getAll(ctx context.Context, values []float32) error {
	if r.h.spec.Sparse {
		return r.t.GetRows(ctx, r.h.ids, values)
	}
	return r.t.GetRun(ctx, 0, values)
}

// incAll adds to all rows. In some clocks it flushes the first rows early, if that is allowed.
func (r *reader) incAll(slot int, clock perdure.Clock, delta []float32, flush bool) error {
	inc := func(from, to int) error {
		d := delta[from*r.dim : to*r.dim]
		if r.h.spec.Sparse || from == to {
			return r.t.IncRows(r.h.ids[from:to], d)
		}
		return r.t.IncRun(perdure.RowID(from), d)
	}
	early := 0
	if rng := rand.New(rand.NewPCG(r.h.job.Seed, uint64(slot)<<32|uint64(clock))); rng.IntN(3) == 0 && flush {
		early = 1 + rng.IntN(r.h.rows)
		if err := inc(0, early); err != nil {
			return err
		}
		if err := r.t.Flush(); err != nil {
			return err
		}
	}
	return inc(early, r.h.rows)
}

func (h *History) startClock(slot int, clock perdure.Clock, g perdure.Generation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.started[slot][clock] = max(h.started[slot][clock], g)
}

// checkRow checks one row that was read at a clock. The row must contain exactly own clocks of the reader.
func (r *reader) checkRow(row int, v []float32, clock, own perdure.Clock) error {
	h := r.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.seen == nil {
		r.seen = map[int][]perdure.Clock{}
	}
	if r.seen[row] == nil {
		r.seen[row] = make([]perdure.Clock, h.slots)
	}
	for p := range h.slots {
		what := fmt.Sprintf("%s at clock %d read row %d: slot %d", name(r.w), clock, row, p)
		if h.lossy {
			if err := r.checkLossy(what, row, p, v[p*columns:], clock, own); err != nil {
				return err
			}
			continue
		}
		n := perdure.Clock(v[p*columns+colCount])
		if float64(n) != float64(v[p*columns+colCount]) || n < 0 {
			return violated("%s has an invalid count %v", what, v[p*columns+colCount])
		}
		if sum := float64(v[p*columns+colWeight]); sum != h.weights(p, n) {
			return violated("%s has %d clocks of weight %v, but the first %d: %v", what, n, sum, n, h.weights(p, n))
		}
		if n > perdure.Clock(len(h.started[p])) {
			return violated("%s has %d clocks, but began only %d", what, n, len(h.started[p]))
		}
		if n < r.seen[row][p] {
			return violated("%s has %d clocks, but an earlier read had %d", what, n, r.seen[row][p])
		}
		r.seen[row][p] = n
		if err := h.checkStaleness(what, p, p == int(r.w.Slot()), n, clock, own); err != nil {
			return err
		}
		if err := r.checkInTransit(what, p, n); err != nil {
			return err
		}
	}
	return nil
}

// clocksIn returns which of a slot's clocks a row contains, for tables that may lose rows.
func clocksIn(what string, v []float32) (set uint64, err error) {
	set = uint64(max(0, v[colWeight]))
	switch {
	case float64(set) != float64(v[colWeight]) || set > below(maxLossyClocks):
		return 0, violated("%s has an invalid set of clocks: %v", what, v[colWeight])
	case v[colCount] != float32(bits.OnesCount64(set)):
		return 0, violated("%s has %v clocks, but the set %b: some are missing or duplicated", what, v[colCount], set)
	}
	return set, nil
}

// checkLossy checks a slot's clocks in a row that was read, for tables that may lose rows.
func (r *reader) checkLossy(what string, row, p int, v []float32, clock, own perdure.Clock) error {
	h := r.h
	set, err := clocksIn(what, v)
	if err != nil {
		return err
	}
	for c := range h.job.Clocks {
		if _, begun := h.started[p][c]; set>>c&1 == 1 && !begun {
			return violated("%s has its clock %d, which it has not begun", what, c)
		}
	}
	promised, most := uint64(0), h.job.Clocks
	switch m := h.spec.Consistency; {
	case p == int(r.w.Slot()):
		if promised = below(own); h.job.OnOutage.Continue && h.job.OutageRows != perdure.RowsApply {
			promised = 0 // own updates may be missing
		}
		if h.ticks() {
			most = own
		}
	case m.Kind == perdure.BSP:
		promised, most = below(clock), clock
	case m.Kind == perdure.SSP || m.Kind == perdure.ESSP:
		promised = below(clock - m.Staleness - h.job.OnOutage.Clocks)
	}
	promised = h.clockSet(p, promised)
	if early := set &^ below(most); early != 0 {
		return violated("%s has the clocks %b, want none from %d on", what, set, most)
	}
	h.missing[row][p] |= promised &^ set
	if m := h.spec.Consistency; (m.Kind == perdure.SSP || m.Kind == perdure.ESSP) &&
		h.clockSet(p, below(clock-m.Staleness))&^set != 0 {
		h.relaxed++
	}
	r.mayBeUnseen(row, p, set)
	return nil
}

// shard returns the shard of a row, given by its index in ids.
func (h *History) shard(row int) perdure.ShardID {
	return placement.ShardOf(&h.spec, h.job.Shards, h.ids[row])
}

// recordProgress records the progress of a slot's program.
func (h *History) recordProgress(w *worker.Client, p progress) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.finished[w.Slot()] = p
}

// IsFinished reports whether every slot has finished its last clock.
func (h *History) IsFinished() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for slot, p := range h.finished {
		if mine := h.clocks(slot, cmp.Or(h.end, h.job.Clocks)); len(mine) > 0 && p.clocks <= mine[len(mine)-1] {
			return false
		}
	}
	return true
}

// SetEnd sets the clock at which the job ended, which may be earlier than specified.
func (h *History) SetEnd(at perdure.Clock) {
	h.mu.Lock() // a late fault may be calling IsFinished
	defer h.mu.Unlock()
	h.job.Clocks = at
	if h.aux.reference != nil {
		h.aux.reference = NewReferenceTable(h.job, h.aux.reference.spans)
	}
}

// MinFinished returns the lowest number of clocks that any of the job's initial slots has finished.
func (h *History) MinFinished() perdure.Clock {
	least := h.job.Clocks
	for _, p := range h.progress()[:h.job.Slots] {
		least = min(least, p.clocks)
	}
	return least
}

// progress returns the progress of every slot.
func (h *History) progress() []progress {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.finished)
}

func name(w *worker.Client) string { return fmt.Sprintf("worker:%d", w.Slot()) }

// Final checks the tables (by name) after the job, and the number of updates counted as lost.
func (h *History) Final(tables map[string]Contents, lost Lost) error {
	if h.misplaced != nil {
		return h.misplaced
	}
	if h.aux.mean != nil {
		if err := h.aux.mean.final(tables[h.aux.mean.Spec.Name], lost); err != nil {
			return err
		}
	}
	if h.lossy {
		return h.finalLossy(tables, lost)
	}
	if h.aux.evicting != nil {
		if err := h.aux.evicting.final(tables[h.aux.evicting.Spec.Name], h.aux.evicting.containsAll()); err != nil {
			return err
		}
	}
	if h.aux.reference != nil {
		if err := h.aux.reference.Final(tables[h.aux.reference.Spec.Name]); err != nil {
			return err
		}
	}
	rows := tables[h.spec.Name]
	if len(rows) != h.rows {
		return violated("at the end the table has %d rows, want %d", len(rows), h.rows)
	}
	for row := range h.rows {
		if len(rows[h.ids[row]]) != h.spec.Dim {
			return violated("at the end row %d is missing", h.ids[row])
		}
		for p := range h.slots {
			v := rows[h.ids[row]][p*columns:]
			all := h.count(p, h.job.Clocks)
			if got := perdure.Clock(v[colCount]); got != all {
				return violated("at the end row %d has %d of slot %d's %d clocks", row, got, p, all)
			}
			if float64(v[colWeight]) != h.weights(p, all) {
				return violated("at the end row %d has slot %d's clocks with weight %v, want %v", row, p,
					v[colWeight], h.weights(p, all))
			}
			want := 0.0
			for _, c := range h.clocks(p, h.job.Clocks) { // other clocks may have been begun and rolled back
				g := h.generation(h.shard(row), p, c)
				want += float64(g * g)
			}
			if math.Abs(float64(v[colGeneration])-want) > 0.5 {
				return violated("at the end row %d has slot %d's clocks with generations %v, want %v", row, p,
					v[colGeneration], want)
			}
		}
	}
	return nil
}
