package outbox

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// The naive twin keeps everything: the effect of each clock on each row of each shard. An Outbox is driven at random
// through Incs, ends of clocks, acknowledgements, broken connections, lost servers, checkpoints, rollbacks, outages,
// and processes that take over the slot. The following must hold:
//
//   - A shard that counts n clocks has the effect of these n clocks, each once, whatever was resent or merged.
//   - A shard that returns to a safe point gets everything after it again: nothing was dropped too early.
//   - No update extends across a cut, or across a count of a shard.
//   - The program reads its own writes, on top of whatever a shard has.
//   - Under vap a clock that had to wait is allowed to be sent only after a transit change.
//   - Byte counters match the updates that are kept, frames in transit are not modified, and once everything is safe
//     nothing is kept.

var (
	firstSeed = flag.Uint64("outbox.first", 1, "the first `seed` of the outbox's courses")
	seeds     = flag.Uint64("outbox.seeds", 300, "number of seeds for each kind of job")
)

func TestNaiveTwin(t *testing.T) {
	for _, job := range []struct{ model, recovery string }{
		{"asp", "checkpoint:4"},
		{"bsp", "checkpoint:4"},
		{"vap:40", "checkpoint:4"},
		{"asp", "resend:4"},
		{"bsp", "resend:4"},
		{"vap:40", "resend:4"},
		{"asp", "stateless"},
		{"bsp", "stateless"},
	} {
		t.Run(job.model+","+job.recovery, func(t *testing.T) {
			did := map[string]int{}
			for seed := *firstSeed; seed < *firstSeed+*seeds; seed++ {
				w := newWorld(t, seed, job.model, job.recovery, mutation.Set{})
				if err := w.run(300); err != nil {
					t.Fatalf("%v\nreplay with: go test ./internal/core/outbox -run '%s' "+
						"-outbox.first=%d -outbox.seeds=1", err, t.Name(), seed)
				}
				for what, n := range w.did {
					did[what] += n
				}
			}
			t.Log(did)
			for _, what := range needed(job.model, job.recovery) {
				if did[what] == 0 && *seeds > 100 {
					t.Errorf("no course contains this event: %s", what)
				}
			}
		})
	}
}

// TestTwinNotices is the negative control: with one safety mechanism of the Outbox disabled, some course of at most
// 1000 must fail.
func TestTwinNotices(t *testing.T) {
	for _, test := range []struct {
		name, model, recovery string
		weak                  mutation.Set
	}{
		{"bound", "vap:40", "checkpoint:4", mutation.Set{Bound: true}},
		{"retention", "asp", "resend:4", mutation.Set{Retention: true}},
		{"merging", "asp", "resend:4", mutation.Set{Merging: true}},
	} {
		for seed := uint64(1); ; seed++ {
			w := newWorld(t, seed, test.model, test.recovery, test.weak)
			if err := w.run(300); err != nil {
				t.Logf("%s, seed %d: %v", test.name, seed, err)
				break
			}
			if seed == 1000 {
				t.Errorf("the twin does not detect that the promise of %s is broken", test.name)
				break
			}
		}
	}
}

// needed lists the events that must have happened in at least one of the courses under this model and this strategy.
func needed(model, recovery string) []string {
	all := []string{"clock", "over", "break", "crash", "loan", "overlay", "behind", "early part", "repeats"}
	if model == "asp" && recovery != "checkpoint:4" {
		all = append(all, "merged")
	}
	if model[0] == 'v' {
		all = slices.DeleteFunc(all, func(s string) bool { return s == "early part" || s == "repeats" })
		all = append(all, "bound")
	}
	if model == "asp" && recovery == "checkpoint:4" {
		all = append(all, "successor")
	}
	if model == "bsp" { // one clock at a time is in transit
		all = slices.DeleteFunc(all, func(s string) bool { return s == "behind" })
	}
	if recovery == "stateless" {
		return slices.DeleteFunc(all, func(s string) bool { return s == "behind" || s == "break" })
	}
	return all
}

type world struct {
	t         *testing.T
	rand      *rand.Rand
	job       perdure.JobSpec
	model     perdure.Consistency
	view      protocol.View
	b         *Outbox
	tables    []*Table
	servers   []*server
	open      []change // by shard: Incs of the current clock
	loans     []func() // to be filled before the clock ends, or before a flush
	refused   int64    // transit changes when vap last refused to send the current clock; -1: it has not
	did       map[string]int
	mutations mutation.Set
}

const testRows = 24

func newWorld(t *testing.T, seed uint64, model, how string, mutations mutation.Set) *world {
	w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 0)), did: map[string]int{}}
	var err error
	if w.model, err = perdure.ParseConsistency(model); err != nil {
		t.Fatal(err)
	}
	w.job = perdure.JobSpec{Slots: 1, Shards: 1 + w.rand.IntN(3), Consistency: w.model}
	if w.job.Recovery, err = perdure.ParseRecovery(how); err != nil {
		t.Fatal(err)
	}
	rule := perdure.Rule{Kind: perdure.RuleAdd}
	second := rule
	if seed%2 == 0 && w.model.Kind != perdure.VAP {
		second.Kind = perdure.RuleSet
	}
	w.view = protocol.View{
		Revision: 1, Generation: 1, Shards: make([]protocol.ShardView, w.job.Shards),
		Slots: []protocol.SlotView{{Incarnation: 1, Decided: true, Settled: true}},
		Tables: []perdure.TableSpec{
			{Name: "dense", Rows: testRows, Dim: testDim, Rule: rule, Consistency: w.model},
			{Name: "sparse", Sparse: true, Dim: testDim, Rule: second, Consistency: w.model},
		},
	}
	w.mutations = mutations
	w.begin()
	for s := range w.job.Shards {
		w.servers = append(w.servers, &server{s: w.b.Shard(perdure.ShardID(s)), rows: change{}})
		w.servers[s].forget()
		w.open = append(w.open, change{})
	}
	return w
}

// begin starts a process of the slot.
func (w *world) begin() {
	w.b = New(Limits{
		Window: 1 << (7 + w.rand.IntN(10)), Retain: 1 << (10 + w.rand.IntN(10)), Outage: 1 << 16,
		Spare: 1 << (8 + w.rand.IntN(8)), Mutations: w.mutations,
	})
	w.b.Join(&w.job, 0)
	w.b.SetView(w.view, false)
	w.tables = nil
	for id, spec := range w.view.Tables {
		w.tables = append(w.tables, w.b.Table(perdure.TableID(id), spec))
	}
}

// succeed makes another process take over the slot. It starts at the first clock that some shard lacks. If other shards
// have later clocks, those are the former process's, and the new process's updates of these clocks are ignored there.
// (This is possible only with strategies that do not need the former process. One-step clocks are simpler.)
func (w *world) succeed() error {
	if w.model.Kind != perdure.ASP || w.job.Recovery.Kind != perdure.RecoverCheckpoint || w.b.Phase() != Open {
		return nil
	}
	start := w.b.Clock()
	for _, v := range w.servers {
		start = min(start, v.counts.Staged)
	}
	w.begin()
	w.b.SetClock(start)
	w.loans = nil
	for s, v := range w.servers {
		w.cutOff(v)
		v.s, v.lost, v.parts = w.b.Shard(perdure.ShardID(s)), nil, nil
		v.inherited = v.counts.Staged
		v.was = v.was[:v.inherited]
		w.open[s] = change{}
		if err := w.connect(v); err != nil {
			return err
		}
		if w.rand.IntN(2) == 0 {
			w.cutOff(v)
		}
	}
	w.did["successor"]++
	return nil
}

func (w *world) run(n int) error {
	for i := range n {
		if err := w.act(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		if err := w.check(); err != nil {
			return fmt.Errorf("after step %d: %w", i, err)
		}
	}
	return w.settle()
}

func (w *world) act() error {
	v := w.servers[w.rand.IntN(len(w.servers))]
	switch n := w.rand.IntN(100); {
	case n < 25:
		return w.inc()
	case n < 30:
		return w.lend()
	case n < 33:
		return w.flush()
	case n < 58:
		return w.clock()
	case n < 80:
		return w.each(v, func(v *server) error { return w.deliver(v, 1+w.rand.IntN(4)) })
	case n < 92:
		return w.each(v, func(v *server) error { w.ack(v, false); return nil })
	case n < 94:
		w.cutOff(v)
	case n < 96:
		return w.each(v, w.connect)
	case n < 97:
		return w.crash(v)
	case n < 98:
		return w.save()
	case n < 99 && w.rand.IntN(6) == 0:
		w.end()
	case n < 99:
		return w.overlay(v)
	case n < 100 && w.rand.IntN(6) == 0:
		return w.succeed()
	default:
		return w.overlay(v)
	}
	return nil
}

// each applies do to a shard. If all shards must have a clock before the next one starts, it applies do to all of them,
// so that more happens.
func (w *world) each(v *server, do func(*server) error) error {
	if !w.model.TwoStep() {
		return do(v)
	}
	for _, v := range w.servers {
		if err := do(v); err != nil {
			return err
		}
	}
	return nil
}

// check checks what must hold at all times.
func (w *world) check() error {
	if counted, kept := w.b.ByteCounts(); counted != kept {
		return fmt.Errorf("%v bytes are counted, but %v are kept", counted, kept)
	}
	for i, v := range w.servers {
		for _, way := range [][]sent{v.way, v.lost} {
			for k := range way {
				if !bytes.Equal(way[k].bytes(), way[k].copied) {
					return fmt.Errorf("shard %d: a frame of clock %d was modified in transit", i, way[k].Clock)
				}
			}
		}
		clock := perdure.Clock(-1)
		for _, u := range v.s.kept {
			if clock >= 0 && u.clock != clock {
				return fmt.Errorf("shard %d: an update of clock %d follows the clocks below %d", i, u.clock, clock)
			}
			clock = u.until()
		}
	}
	return nil
}

func (w *world) delta() []float32 {
	return []float32{float32(w.rand.IntN(9) - 4), float32(w.rand.IntN(9) - 4)}
}

func (w *world) part(t int, id perdure.RowID) (*Deltas, perdure.ShardID) {
	spec := perdure.TableSpec{Sparse: t > 0, Rows: testRows}
	s := placement.ShardOf(&spec, w.job.Shards, id)
	return w.tables[t].Deltas(s), s
}

func (w *world) inc() error {
	if w.b.Phase() != Open {
		return nil
	}
	for range 1 + w.rand.IntN(6) {
		t, id, delta := w.rand.IntN(2), perdure.RowID(w.rand.IntN(testRows)), w.delta()
		d, s := w.part(t, id)
		again := false
		if t == 0 {
			at := int(id - d.first)
			if err := d.CheckAdd(at, 1); errors.Is(err, ErrLent) {
				continue
			}
			again = d.AddRun(at, 1, delta)
		} else {
			var at [1]int
			d.FindAll([]perdure.RowID{id}, at[:])
			again = d.AddRow(id, at[0], delta)
		}
		if again {
			w.did["repeats"]++
		}
		d.RecordInc(again)
		w.open[s].add(w.row(perdure.TableID(t), id), delta)
	}
	return nil
}

// lend lets the program compute one row's deltas in the Outbox's own memory. They are filled in by fillLoans.
func (w *world) lend() error {
	if w.b.Phase() != Open {
		return nil
	}
	id := perdure.RowID(w.rand.IntN(testRows))
	d, s := w.part(0, id)
	if d.CheckLend(int(id-d.first), 1) != nil {
		return nil
	}
	r, _ := w.tables[0].Buffer(testDim)
	d.Lend(int(id-d.first), 1, r, r.Values)
	copy(r.Values, []float32{99, 99}) // not defined until then
	w.loans = append(w.loans, func() {
		copy(r.Values, w.delta())
		w.open[s].add(w.row(0, id), r.Values)
		w.did["loan"]++
	})
	return nil
}

func (w *world) fillLoans() {
	for _, fill := range w.loans {
		fill()
	}
	w.loans = nil
}

func (w *world) flush() error {
	if w.b.Phase().IsOver() {
		return nil
	}
	if w.b.Phase() == Open && !w.b.bounds {
		w.fillLoans()
	}
	for _, t := range w.tables {
		for s, v := range w.servers {
			d := t.Deltas(perdure.ShardID(s))
			if !d.CanFill(true, v.open) {
				continue
			}
			leaves, err := d.Fill(true, v.open)
			if err != nil {
				return err
			}
			if leaves {
				w.did["early part"]++
				w.send(v, false)
			}
		}
	}
	return nil
}

// clock advances Clock as far as possible without waiting.
func (w *world) clock() error {
	if w.b.Phase() == RolledBack {
		w.b.ResetClock()
		if w.b.Clock() != w.view.Cut {
			return fmt.Errorf("the clock after a rollback is %d, want %d", w.b.Clock(), w.view.Cut)
		}
	}
	if w.b.Phase() == Over {
		w.over()
		return nil
	}
	if w.b.Phase() == Open {
		if !w.b.WithinLimits() || !w.b.CanRetain() {
			return nil
		}
		w.fillLoans()
		if err := w.b.Check(); err != nil {
			return err
		}
		for _, v := range w.servers {
			if err := v.s.Fill(consistency.Origin{Basis: wire.NoBasis}); err != nil {
				return err
			}
		}
		for s, v := range w.servers {
			if w.b.Clock() >= v.inherited {
				v.was = append(v.was[:w.b.Clock()], w.open[s])
			}
			w.open[s] = change{}
		}
		w.b.Seal()
		w.refused = -1
		if w.b.Phase() == Sent {
			w.sendAll()
		}
	}
	if w.b.Phase() == Built {
		if may, err := w.mayBeSent(); !may {
			return err
		}
		w.b.Send()
		w.sendAll()
	}
	if w.b.Mode() == perdure.ClockTwoStep {
		if !w.b.Stage() {
			return nil
		}
		for s, v := range w.servers {
			if v.s.counts.Staged <= w.b.Clock() && (!w.logged() || v.whole <= w.b.Clock()) {
				return fmt.Errorf("clock %d is considered staged, but shard %d has %v", w.b.Clock(), s, v.s.counts)
			}
		}
		w.b.Ticks().Current()
		for _, v := range w.servers {
			f, needed := w.b.Ticks().Frame(v.s, wire.Header{})
			if w.logged() {
				v.log = append(v.log, sent{Frame: f})
			} else if v.open && needed {
				v.way = append(v.way, sent{Frame: f})
			}
		}
	}
	w.b.Next()
	w.did["clock"]++
	return nil
}

// mayBeSent reports whether vap lets the current clock be sent.
func (w *world) mayBeSent() (bool, error) {
	may, changes := w.b.MaySend(), w.b.TransitChanges()
	if want, alone := w.naiveBound(); may != want {
		return false, fmt.Errorf("vap lets clock %d be sent: %v, want %v (alone: %v)", w.b.Clock(), may, want, alone)
	}
	if may && changes == w.refused {
		return false, fmt.Errorf("vap lets clock %d be sent, but a waiting Clock does not notice", w.b.Clock())
	}
	if !may {
		w.did["bound"]++
		w.refused = changes
	}
	return may, nil
}

// end makes the job end at the current clock or up to three clocks later.
func (w *world) end() {
	if w.view.End > 0 || w.b.Clock() == 0 {
		return
	}
	w.view.End = w.b.Clock() + perdure.Clock(w.rand.IntN(4))
	w.view.Revision++
	w.b.SetView(w.view, false)
}

// over ends the last clock: the updates of a following clock are dropped.
func (w *world) over() {
	w.b.ResetClock()
	w.did["over"]++
	w.loans = nil
	for s := range w.servers {
		w.open[s] = change{}
	}
}

func (w *world) logged() bool { return w.job.Recovery.Kind == perdure.RecoverStateless }

// naiveBound computes from the effects of single clocks what vap decides about the current clock. may says whether the
// clock may be sent, and alone whether no earlier clock of the slot is in transit. Both are false while it is unknown
// which clocks a shard has from an earlier process of the slot.
func (w *world) naiveBound() (may, alone bool) {
	norm, alone := [2]float64{}, true
	for _, v := range w.servers {
		if !v.s.inheritedKnown {
			return false, false
		}
		sum := change{}
		from := v.s.counts.Seen
		for c := from; c <= w.b.Clock(); c++ {
			sum.addAll(v.was[c])
		}
		alone = alone && from >= w.b.Clock()
		for r, values := range sum {
			for _, x := range values {
				norm[r.t] = max(norm[r.t], math.Abs(float64(x)))
			}
		}
	}
	return consistency.MaySend(w.model, w.b.Clock(), max(norm[0], norm[1]), alone), alone
}

func (w *world) sendAll() {
	for _, v := range w.servers {
		w.send(v, true)
	}
}

func (w *world) send(v *server, mayHold bool) {
	if w.logged() {
		for _, e := range v.s.LogRecords(wire.Header{}, mayHold) {
			f := sent{Frame: e.Frame, entry: e.Completes}
			f.Payload, f.Body = f.bytes(), nil // the log copies
			v.log = append(v.log, f)
		}
		return
	}
	if v.open {
		w.queue(v, v.s.NextFrames(wire.Header{}, nil))
	}
}

func (w *world) queue(v *server, frames []wire.Frame) {
	for _, f := range frames {
		s := sent{Frame: f}
		s.copied = s.bytes()
		v.way = append(v.way, s)
	}
	if v.s.HasUnsent() {
		w.did["behind"]++
	}
}

func (w *world) deliver(v *server, n int) error {
	if w.logged() {
		for ; n > 0 && v.read < v.acked; n-- {
			f := v.log[v.read]
			v.read++
			if err := w.receive(v, f); err != nil {
				return err
			}
		}
		w.logAck(v)
		return nil
	}
	for ; n > 0 && v.open && len(v.way) > 0; n-- {
		f := v.way[0]
		v.way = v.way[1:]
		f.Payload, f.Body = f.bytes(), nil
		if err := w.receive(v, f); err != nil {
			return err
		}
	}
	return nil
}

// logAck makes the log acknowledge, in order, the next zero to five entries appended for server v.
func (w *world) logAck(v *server) {
	for range w.rand.IntN(6) {
		if v.acked == len(v.log) {
			return
		}
		if u := v.log[v.acked].entry; u != nil {
			v.s.RecordLogged(u)
			v.whole = u.until()
		}
		v.acked++
	}
}

// ack reports a shard's counts to the Outbox. Under vap the count of clocks that all slots have seen may be lower than
// the count of applied ones; if all is set, the two counts are equal.
func (w *world) ack(v *server, all bool) {
	if !v.open {
		return
	}
	v.s.Ack(w.told(v, all))
	if v.s.HasUnsent() {
		w.send(v, false)
	}
}

func (w *world) told(v *server, all bool) protocol.Counts {
	c := v.counts
	c.Seen = c.Applied
	if seen := max(v.s.counts.Seen, 0); w.model.Kind == perdure.VAP && !all && c.Applied > seen {
		c.Seen = seen + perdure.Clock(w.rand.Int64N(int64(c.Applied-seen+1)))
	}
	return c
}

// cutOff breaks the connection. The shard may then be considered unavailable.
func (w *world) cutOff(v *server) {
	if v.open {
		w.did["break"]++
	}
	v.open = false
	v.lost = append(v.lost, v.way...)
	v.lost = v.lost[max(0, len(v.lost)-20):]
	if v.way = nil; !w.logged() {
		v.parts = nil
	}
	if w.rand.IntN(2) == 0 {
		v.s.HeadChanged()
	}
	v.s.SetUnavailable(w.rand.IntN(3) > 0)
}

func (w *world) connect(v *server) error {
	if v.open {
		return nil
	}
	if w.model.TwoStep() || v.s.unavailable {
		v.s.SetUnavailable(false)
	}
	v.open = true
	if w.logged() {
		v.s.Opened(w.told(v, false), false)
		if v.s.IsHolding() {
			w.send(v, false)
		}
		return nil
	}
	v.s.Opened(w.told(v, false), false)
	v.s.SetHeadApplied(v.counts.Applied)
	frames, err := v.s.Resend(v.counts, wire.Header{}, nil)
	w.queue(v, frames)
	return err
}

// crash removes a server together with its rows, and recovers as the job's strategy does: the server rereads the log,
// all shards roll back, or the shard returns to the last checkpoint.
func (w *world) crash(v *server) error {
	w.did["crash"]++
	w.cutOff(v)
	v.forget()
	safe := w.view.Durable
	switch w.job.Recovery.Kind {
	case perdure.RecoverStateless: // it serves again once it has read as much of the log as before
		n := v.read
		v.read = 0
		v.back(0)
		for ; v.read < n; v.read++ {
			if err := w.receive(v, v.log[v.read]); err != nil {
				return err
			}
		}
		return nil
	case perdure.RecoverCheckpoint: // all shards roll back
		w.view.Generation++
		w.view.Cut, w.view.End = safe, 0
		w.view.Revision++
		w.b.SetView(w.view, true)
		w.loans = nil
		for s, other := range w.servers {
			w.cutOff(other)
			other.forget()
			w.open[s] = change{}
			other.was, other.inherited = other.was[:safe], 0
			other.back(safe)
		}
		return nil
	}
	v.back(safe)
	return nil
}

// save writes a checkpoint of the newest cut that all shards have reached.
func (w *world) save() error {
	least := w.b.Clock()
	for _, v := range w.servers {
		least = min(least, v.counts.Applied)
	}
	if every := w.job.Recovery.Every; every > 0 && least-least%every > w.view.Durable {
		w.view.Durable = least - least%every
		w.view.Revision++
		w.b.SetView(w.view, false)
		w.did["save"]++
	}
	return nil
}

// overlay reads up to eight random rows of a shard as a program does: the shard's values plus the slot's own updates
// that they lack. It returns an error if a value differs from the naive twin's.
func (w *world) overlay(v *server) error {
	if w.b.Phase().IsOver() {
		return nil
	}
	s := perdure.ShardID(slices.Index(w.servers, v))
	contained := v.counts.Applied
	want := maps.Clone(v.rows)
	want.addAll(v.between(contained, perdure.Clock(len(v.was))))
	if contained <= w.b.Clock() { // otherwise the former process made this clock
		want.addAll(w.open[s])
	}
	for range 8 {
		t, id := w.rand.IntN(2), perdure.RowID(w.rand.IntN(testRows))
		if _, of := w.part(t, id); of != s {
			continue
		}
		r := w.row(perdure.TableID(t), id)
		values := v.rows[r]
		got := values[:]
		if w.b.HasUpdates(s, r.t, contained) {
			w.b.ApplyTo(got, s, r.t, id, 1, contained)
		}
		if wanted := want[r]; !slices.Equal(got, wanted[:]) {
			return fmt.Errorf("shard %d: row %v reads %v at clock %d, want %v; the answer contains %d clocks",
				s, r, got, w.b.Clock(), wanted, contained)
		}
		w.did["overlay"]++
	}
	return nil
}

// settle ends the current clock and delivers everything. Then all shards must have all clocks, and only updates that
// are not in a checkpoint may be kept.
func (w *world) settle() error {
	w.b.SetLast(true)
	for range 10_000 {
		if err := w.clockOver(); err != nil {
			return err
		}
		done := true
		for _, v := range w.servers {
			if err := errors.Join(w.connect(v), w.deliver(v, 100)); err != nil {
				return err
			}
			w.ack(v, true)
			done = done && v.counts.Applied >= w.b.Clock()
		}
		if err := errors.Join(w.check(), w.save()); err != nil {
			return err
		}
		if done && (w.b.Phase() == Open || w.b.Phase() == Over) {
			return w.settled()
		}
	}
	return fmt.Errorf("clock %d never ends", w.b.Clock())
}

// clockOver continues to end the current clock if that has begun, and does nothing otherwise.
func (w *world) clockOver() error {
	if w.b.Phase() == Open {
		return nil
	}
	return w.clock()
}

func (w *world) settled() error {
	for i, v := range w.servers {
		if want := v.between(0, v.counts.Applied); v.counts.Applied < w.b.Clock() || !v.rows.equal(want) {
			return fmt.Errorf("at the end shard %d has %v, want %v", i, v.rows, want)
		}
		for _, u := range v.s.kept {
			if u.phase != Open && (!w.b.retains() || u.until() <= w.view.Durable) {
				return fmt.Errorf("at the end shard %d keeps an update of clocks %d to %d", i, u.clock, u.until()-1)
			}
		}
	}
	return nil
}
