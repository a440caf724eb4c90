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
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/worker"
)

// History checks what programs read, from the values alone: it believes no
// label. Every slot p adds, in every clock c and to every row, 1 to its column
// count, a weight of c to its column weight, and its generation's square to its
// column generation. So a row tells how many of p's clocks it contains, whether
// they are the first ones, each once, and in which generation they were done.
// Whether the table is dense or sparse is drawn. A bsp job has a Twin, too; its own
// table may have another model beside it.
//
// Where rows may be lost, a clock's weight is another power of two: so a row tells
// which of p's clocks it contains, each once. What a read lacks although its model
// promised it must be lost: no row has it at the end. (What only an earlier read had may
// come again.) And what no row has is what the registry counts as lost.
type History struct {
	job   perdure.JobSpec
	spec  perdure.TableSpec
	slots int // that the job has at most
	rows  int
	ids   []perdure.RowID // of the rows
	loses bool            // rows may be lost: what was read may go backwards
	by    witnesses
	moved error         // a whole table was not where it belongs
	Pace  time.Duration // between two clocks
	Goal  perdure.Clock // at which programs ask that the job end, as soon as it can; 0: they do not
	// Misses is how many of four clocks have a model that misses the goal: the end is tentative; 0: it is not.
	Misses perdure.Clock

	mu      sync.Mutex                             // guards what follows
	ended   []progress                             // by slot
	started []map[perdure.Clock]perdure.Generation // by slot and clock: the generation that did it last
	lacked  [][]uint64                             // by row and slot: the clocks that are lost, as reads have shown
	// by row and slot: what was in transit if it was not lost, and the most that may be
	unseen  [][]map[uint64]float64
	lives   []int          // by slot: how many processes have begun
	terms   [][]words.Span // by slot: when it takes part, one after the other
	end     perdure.Clock  // of the job, as was recorded last; 0: it is the job's own
	relaxed int            // counts read that the consistency model alone would not allow
	earlier                // what an earlier run has left that this one goes on from
	logged  [][]logged     // by shard and slot, where updates are in a log: what that has acknowledged
}

// progress is how far a slot has come: how many clocks it has ended, in which
// generation.
type progress struct {
	clocks     perdure.Clock
	generation perdure.Generation
}

// columns of each slot in a row.
const (
	colCount = iota
	colWeight
	colGeneration
	columns
)

// NewHistory makes a checker for a job whose program is History.Program, and which has at
// most slots slots in all. Who takes part is planned, or told by Saved; a job of which it
// is not planned has no Twin.
func NewHistory(job perdure.JobSpec, loses bool, slots int, plan []Planned) *History {
	if loses && job.Clocks > mostLossy {
		panic(fmt.Sprintf("sim: a job whose rows may be lost has at most %d clocks", mostLossy))
	}
	h := &History{job: job, slots: slots, rows: job.Shards + 3, loses: loses}
	h.spec = perdure.TableSpec{
		Name: "history", Dim: slots * columns, Sparse: rand.New(rand.NewPCG(job.Seed, 3)).IntN(2) == 0,
		Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: job.ConsistencyOf("history"),
	}
	if !h.spec.Sparse {
		h.spec.Rows = int64(h.rows)
	}
	h.ids = rowIDs(h.spec, job.Seed, h.rows)
	spans := Spans(job, plan)
	if job.Consistency.Kind == perdure.BSP && !loses && slots == len(spans) {
		h.by.twin = NewTwin(job, spans)
	}
	h.ended, h.terms = make([]progress, slots), make([][]words.Span, slots)
	for slot, span := range spans {
		h.terms[slot] = append(h.terms[slot], span)
	}
	for range h.rows {
		h.lacked = append(h.lacked, make([]uint64, slots))
		h.unseen = append(h.unseen, make([]map[uint64]float64, slots))
	}
	h.lives, h.succeeded = make([]int, slots), make([]bool, slots)
	for range job.Shards {
		h.logged = append(h.logged, make([]logged, slots))
	}
	if recovery.RoundsOf(job.Recovery).Any() {
		h.by.lines = newLineage(h)
	}
	if b := recovery.Of(job.Recovery).Traits().Begins; b == recovery.Initial || b == recovery.LastSaved {
		h.by.bases = newBases(job, slots)
	}
	for range slots {
		h.started = append(h.started, map[perdure.Clock]perdure.Generation{})
	}
	return h
}

func weight(c perdure.Clock) float64 { return float64((c*c*7+3*c)%61 + 1) }

// weight is what a slot adds in a clock to its column of that name.
func (h *History) weight(c perdure.Clock) float64 {
	if h.loses {
		return float64(uint64(1) << c)
	}
	return weight(c)
}

// mostLossy is the most clocks that a job may have whose rows may be lost: a float32
// tells them from one another.
const mostLossy = 24

// Saved takes over who takes part, before anybody acts on it, and judges what is recorded.
func (h *History) Saved(f *membership.Facts, fs disk.FS, died map[perdure.Slot]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := &f.View
	h.end = v.End
	if h.by.lines != nil {
		defer h.by.lines.saved(f, fs)
	}
	defer h.by.bases.saved(v, died, h.begun)
	h.placed(v)
	for slot := range v.Slots {
		terms, now := h.terms[slot], v.Slots[slot].Span
		// or one without any clock
		if n := len(terms); n > 0 && (terms[n-1].From == now.From || terms[n-1].Until == 0) {
			terms[n-1] = now
			continue
		}
		h.terms[slot] = append(terms, now)
	}
}

// clocks are those of a slot below c, in order.
func (h *History) clocks(slot int, c perdure.Clock) (list []perdure.Clock) {
	for _, t := range h.terms[slot] {
		for clock := t.From; clock < c && t.Has(clock); clock++ {
			list = append(list, clock)
		}
	}
	return list
}

// count is how many clocks < c a slot has.
func (h *History) count(slot int, c perdure.Clock) (n perdure.Clock) {
	for _, t := range h.terms[slot] {
		n += t.Clocks(c)
	}
	return n
}

// clockSet is those that a slot has of a set.
func (h *History) clockSet(slot int, set uint64) (has uint64) {
	for _, c := range h.clocks(slot, mostLossy) {
		has |= set & (1 << c)
	}
	return has
}

// weights is the sum of the weights of a slot's first n clocks.
func (h *History) weights(slot int, n perdure.Clock) (sum float64) {
	for i, c := range h.clocks(slot, h.job.Clocks) {
		if perdure.Clock(i) < n {
			sum += weight(c)
		}
	}
	return sum
}

// Program is a training program that checks everything it reads.
func (h *History) Program(ctx context.Context, w *worker.Client) error {
	r := &reader{h: h, w: w, dim: h.spec.Dim}
	h.begins(w)
	var err error
	if r.t, err = w.Table(ctx, h.spec); err != nil {
		return err
	}
	if h.by.twin != nil {
		if r.twin, err = w.Table(ctx, h.by.twin.Spec); err != nil {
			return err
		}
	}
	if h.by.ebb != nil {
		if r.ebb, err = w.Table(ctx, h.by.ebb.Spec); err != nil {
			return err
		}
	}
	if h.by.mean != nil {
		if r.mean, err = w.Table(ctx, h.by.mean.Spec); err != nil {
			return err
		}
	}
	if err := r.loadState(ctx); err != nil && !errors.Is(err, perdure.ErrRolledBack) {
		return err
	}
	for missed := perdure.Clock(-1); ; {
		for clock := w.Now(); clock < w.End(); {
			var err error
			if h.Goal > 0 && clock >= h.Goal && clock != missed {
				if err = h.ends(ctx, w); err == nil && clock >= w.End() {
					break
				}
			}
			if err == nil {
				err = r.step(ctx, clock)
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
			before, generation := clock, w.Generation()
			if clock, err = w.Clock(ctx); err != nil {
				return err
			}
			if clock == before+1 {
				h.has(w, progress{clock, generation}) // of which the clock is, whatever has happened since
			} else {
				r.rolledBack()
				if err := r.loadState(ctx); err != nil && !errors.Is(err, perdure.ErrRolledBack) {
					return err
				}
			}
		}
		again, err := h.finish(ctx, w, r, &missed)
		if !again {
			return err
		}
	}
}

// reader is one worker process.
type reader struct {
	h    *History
	w    *worker.Client
	t    *worker.Table
	twin *worker.Table // nil: there is none
	ebb  *worker.Table // likewise
	mean *worker.Table // likewise
	dim  int
	seen map[int][]perdure.Clock // by row and slot: what was read last
	sent []progress              // by slot, before the present read
}

func (r *reader) rolledBack() { r.seen = nil }

// loadState checks that the program gets back what it saved in the clock before, or is told by how many clocks at
// most it is older.
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
	r.h.mu.Lock()
	terms := r.h.terms[r.w.Slot()]
	fresh := clock == terms[len(terms)-1].From
	r.h.mu.Unlock()
	slot, twoStep, known := r.w.Slot(), r.h.job.Consistency.TwoStep(), saved+got.Older
	switch {
	case saved != got.Clock:
		return violated("slot %d gets the state saved at clock %d, as one of clock %d", slot, saved, got.Clock)
	case got.Older > 0 && !r.h.loses:
		return violated("slot %d starts at clock %d with a state that is %d clocks old", slot, clock, got.Older)
	case fresh && saved == -1 && got.Older == 0:
	case known < clock-1 || twoStep && known != clock-1:
		return violated("slot %d starts at clock %d with the state saved at clock %d, and is told that it is %d older",
			slot, clock, saved, got.Older)
	}
	return nil
}

// step reads all rows, adds, and reads one again.
func (r *reader) step(ctx context.Context, clock perdure.Clock) error {
	h := r.h
	values := make([]float32, h.rows*r.dim)
	r.sent = h.progress()
	if err := r.getAll(ctx, values); err != nil {
		return err
	}
	for row := range h.rows {
		if err := r.check(row, values[row*r.dim:][:r.dim], clock, clock); err != nil {
			return err
		}
	}
	if r.twin != nil {
		if err := h.by.twin.step(ctx, r.w, r.twin, clock); err != nil {
			return err
		}
	}
	if r.ebb != nil {
		if err := h.by.ebb.step(ctx, r.w, r.ebb, clock); err != nil {
			return err
		}
	}
	if r.mean != nil {
		if err := h.by.mean.step(ctx, r.w, r.mean, clock); err != nil {
			return err
		}
	}
	generation := r.w.Generation()
	delta := make([]float32, h.rows*r.dim)
	slot := int(r.w.Slot())
	for row := range h.rows {
		own := delta[row*r.dim+slot*columns:]
		own[colCount], own[colWeight], own[colGeneration] = 1, float32(h.weight(clock)), float32(generation*generation)
	}
	h.begin(slot, clock, generation)
	if err := r.incAll(slot, clock, delta); err != nil {
		return err
	}
	row := int(clock) % h.rows
	r.sent = h.progress()
	if err := r.t.Get(ctx, h.ids[row], values[:r.dim]); err != nil {
		return err
	}
	if err := r.check(row, values[:r.dim], clock, clock+1); err != nil {
		return err
	}
	return r.w.SaveState(fmt.Appendf(nil, "slot %d clock %d", slot, clock))
}

func (r *reader) getAll(ctx context.Context, values []float32) error {
	if r.h.spec.Sparse {
		return r.t.GetRows(ctx, r.h.ids, values)
	}
	return r.t.GetRun(ctx, 0, values)
}

// incAll adds to all rows. In some clocks the first ones leave early.
func (r *reader) incAll(slot int, clock perdure.Clock, delta []float32) error {
	inc := func(from, to int) error {
		d := delta[from*r.dim : to*r.dim]
		if r.h.spec.Sparse || from == to {
			return r.t.IncRows(r.h.ids[from:to], d)
		}
		return r.t.IncRun(perdure.RowID(from), d)
	}
	early := 0
	if rng := rand.New(rand.NewPCG(r.h.job.Seed, uint64(slot)<<32|uint64(clock))); rng.IntN(3) == 0 {
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

func (h *History) begin(slot int, clock perdure.Clock, g perdure.Generation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.started[slot][clock] = max(h.started[slot][clock], g)
}

// check judges one row that was read at a clock; own is how many of the
// reader's clocks it must contain exactly.
func (r *reader) check(row int, v []float32, clock, own perdure.Clock) error {
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
		if h.loses {
			if err := r.lossy(what, row, p, v[p*columns:], clock, own); err != nil {
				return err
			}
			continue
		}
		n := perdure.Clock(v[p*columns+colCount])
		if float64(n) != float64(v[p*columns+colCount]) || n < 0 {
			return violated("%s's count is %v", what, v[p*columns+colCount])
		}
		if sum := float64(v[p*columns+colWeight]); sum != h.weights(p, n) {
			return violated("%s's %d clocks weigh %v, the first %d weigh %v", what, n, sum, n, h.weights(p, n))
		}
		if n > perdure.Clock(len(h.started[p])) {
			return violated("%s has %d clocks, it began only %d", what, n, len(h.started[p]))
		}
		if n < r.seen[row][p] {
			return violated("%s has %d clocks, an earlier read had %d", what, n, r.seen[row][p])
		}
		r.seen[row][p] = n
		if err := h.bound(what, p, p == int(r.w.Slot()), n, clock, own); err != nil {
			return err
		}
		if err := r.inTransit(what, p, n); err != nil {
			return err
		}
	}
	return nil
}

// clocksIn returns which of a slot's clocks a row contains, where rows may be lost.
func clocksIn(what string, v []float32) (set uint64, err error) {
	set = uint64(max(0, v[colWeight]))
	switch {
	case float64(set) != float64(v[colWeight]) || set > below(mostLossy):
		return 0, violated("%s's clocks are the set %v", what, v[colWeight])
	case v[colCount] != float32(bits.OnesCount64(set)):
		return 0, violated("%s has %v clocks, which are the set %b: some not once", what, v[colCount], set)
	}
	return set, nil
}

// lossy judges what a row that was read has of a slot's clocks, where rows may be lost.
func (r *reader) lossy(what string, row, p int, v []float32, clock, own perdure.Clock) error {
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
			promised = 0 // own updates need not show
		}
		if h.job.Consistency.TwoStep() {
			most = own
		}
	case m.Kind == perdure.BSP:
		promised, most = below(clock), clock
	case m.Kind == perdure.SSP || m.Kind == perdure.ESSP:
		promised = below(clock - m.Staleness - h.job.OnOutage.Clocks)
	}
	promised = h.clockSet(p, promised)
	if early := set &^ below(most); early != 0 {
		return violated("%s has the clocks %b, none from %d on may be there", what, set, most)
	}
	h.lacked[row][p] |= promised &^ set
	if m := h.spec.Consistency; (m.Kind == perdure.SSP || m.Kind == perdure.ESSP) &&
		h.clockSet(p, below(clock-m.Staleness))&^set != 0 {
		h.relaxed++
	}
	r.mayBeUnseen(row, p, set)
	return nil
}

// shard returns which shard has a row of the table, by its place in ids.
func (h *History) shard(row int) perdure.ShardID {
	return placement.ShardOf(&h.spec, h.job.Shards, h.ids[row])
}

// has notes how far a slot's program has come.
func (h *History) has(w *worker.Client, p progress) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended[w.Slot()] = p
}

// Over reports whether every slot has ended its last clock.
func (h *History) Over() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for slot, p := range h.ended {
		if mine := h.clocks(slot, cmp.Or(h.end, h.job.Clocks)); len(mine) > 0 && p.clocks <= mine[len(mine)-1] {
			return false
		}
	}
	return true
}

// Ended takes over the clock at which the job has ended, before its own end perhaps.
func (h *History) Ended(at perdure.Clock) {
	h.mu.Lock() // a fault that comes late may be asking Over
	defer h.mu.Unlock()
	h.job.Clocks = at
	if h.by.twin != nil {
		h.by.twin = NewTwin(h.job, h.by.twin.spans)
	}
}

// Least is how far the slot has come that has come least far, of those that the job begins with.
func (h *History) Least() perdure.Clock {
	least := h.job.Clocks
	for _, p := range h.progress()[:h.job.Slots] {
		least = min(least, p.clocks)
	}
	return least
}

// progress returns how far every slot has come.
func (h *History) progress() []progress {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.ended)
}

func name(w *worker.Client) string { return fmt.Sprintf("worker:%d", w.Slot()) }

// Final judges the whole tables after the job, by name, and what was counted as lost.
func (h *History) Final(tables map[string]Contents, lost Lost) error {
	if h.moved != nil {
		return h.moved
	}
	if h.by.mean != nil {
		if err := h.by.mean.final(tables[h.by.mean.Spec.Name], lost); err != nil {
			return err
		}
	}
	if h.loses {
		return h.finalLossy(tables, lost)
	}
	if h.by.ebb != nil {
		if err := h.by.ebb.final(tables[h.by.ebb.Spec.Name], h.by.ebb.all()); err != nil {
			return err
		}
	}
	if h.by.twin != nil {
		if err := h.by.twin.Final(tables[h.by.twin.Spec.Name]); err != nil {
			return err
		}
	}
	rows := tables[h.spec.Name]
	if len(rows) != h.rows {
		return violated("at the end %d rows are stored, want %d", len(rows), h.rows)
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
			for _, c := range h.clocks(p, h.job.Clocks) { // others may have been begun, and rolled back
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
