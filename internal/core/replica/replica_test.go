package replica

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// bench is a replica under test: the head of a shard with one table of 4 rows, each of one value, and a reader for each
// of two slots.
type bench struct {
	*Replica
	t       testing.TB
	view    protocol.View
	readers []*Reader
	pos     uint64
}

func newBench(t testing.TB, model string, recovery string, slots int, change ...func(*Settings, *perdure.TableSpec),
) *bench {
	t.Helper()
	job := perdure.JobSpec{ID: "j", Slots: slots, Servers: 1, Shards: 1, Seed: 7}
	if err := job.Recovery.UnmarshalText([]byte(recovery)); err != nil {
		t.Fatal(err)
	}
	spec := perdure.TableSpec{Name: "w", Dim: 1, Rows: 4, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
	if err := spec.Consistency.UnmarshalText([]byte(model)); err != nil {
		t.Fatal(err)
	}
	settings := Settings{Job: job}
	for _, f := range change {
		f(&settings, &spec)
	}
	b := &bench{Replica: New(settings), t: t}
	b.view = protocol.View{
		Revision: 1, Generation: 1, Tables: []perdure.TableSpec{spec},
		Shards: []protocol.ShardView{{Epoch: 1}},
	}
	for range slots {
		b.view.Slots = append(b.view.Slots, protocol.SlotView{Incarnation: 1, Settled: true})
	}
	b.SetView(&b.view, Role{Head: true, Reads: true}, false)
	b.SetContent(Content{States: make([][]byte, slots), Applied: make([]perdure.Clock, slots)}, &b.view)
	b.ApplyView()
	b.turn()
	for slot := range perdure.Slot(slots) {
		b.readers = append(b.readers, &Reader{Slot: slot, Incarnation: 1})
		b.Open(Open{Reader: b.readers[slot], Pos: b.pos})
		b.AnswerOpens(b.pos)
	}
	b.Effects().Clear()
	return b
}

// turn proposes and steps until nothing is left to append, then settles.
func (b *bench) turn() {
	for b.Propose() {
		record := slices.Clone(b.Effects().ControlEntries)
		b.Effects().ControlEntries = nil
		for _, f := range record {
			b.step(wire.Frame{Header: wire.Header{
				Kind: f.Kind, Slot: f.Slot, Incarnation: f.Incarnation,
				Clock: f.Clock,
			}, Payload: f.Payload})
		}
	}
	b.Settle()
}

func (b *bench) settle() { b.Settle() }

func (b *bench) step(f wire.Frame) {
	b.pos++
	e := Entry{Frame: f}
	if f.Slot >= 0 && int(f.Slot) < len(b.readers) {
		e.From = b.readers[f.Slot]
	}
	b.Step(&e, f.Body)
}

// update steps a slot's update of a clock. The update adds 1 to a row.
func (b *bench) update(slot perdure.Slot, clock perdure.Clock, row perdure.RowID) {
	body := wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{First: row, Count: 1}, Values: []float32{1}})
	b.step(wire.Frame{
		Header: wire.Header{Kind: wire.KindUpdate, Slot: slot, Clock: clock, Incarnation: 1, Parts: 1},
		Body:   body,
	})
}

func (b *bench) tick(slot perdure.Slot, clock perdure.Clock) {
	b.step(wire.Frame{Header: wire.Header{Kind: wire.KindTick, Slot: slot, Clock: clock, Incarnation: 1}})
}

func (b *bench) read(slot perdure.Slot, need perdure.Clock, row perdure.RowID, subscribe bool) (now bool) {
	b.t.Helper()
	rd := Read{Reader: b.readers[slot], MinClock: need, Rows: wire.Rows{First: row, Count: 1}, Subscribe: subscribe}
	now, err := b.Read(&rd)
	if err != nil {
		b.t.Fatal(err)
	}
	if !now {
		b.Readers.AddWaiting(rd)
	}
	return now
}

// effects formats the collected effects in the order of their fields, and clears them.
func (b *bench) effects() string {
	var says []string
	say := func(format string, args ...any) { says = append(says, fmt.Sprintf(format, args...)) }
	fx := b.Effects()
	for _, r := range fx.Reopen {
		say("moved %d", r.Slot)
	}
	for _, t := range fx.Torn {
		say("torn %s", t.Reason)
	}
	for _, slot := range fx.Pushes {
		say("push %d", slot)
	}
	for _, s := range fx.Saves {
		say("save %d, stands %v", s.Cut, s.Image == nil)
	}
	for _, rd := range fx.Dropped {
		say("dropped %d", rd.Reader.Slot)
	}
	for _, a := range fx.Answers {
		say("answer %d, acknowledged %v", a.Reader.Slot, a.Ack)
	}
	for _, o := range fx.Opened {
		say("opened %d", o.Reader.Slot)
	}
	for _, a := range fx.Acks {
		say("ack %d", a.Reader.Slot)
	}
	if fx.AcksPending {
		say("later")
	}
	if fx.Fail != nil {
		say("fail %v", fx.Fail)
	}
	fx.Clear()
	return strings.Join(says, "; ")
}

// effectsCase is a series of calls to a replica, and the effects that they cause.
type effectsCase struct {
	name, model, recovery string
	do                    []func(b *bench)
	want                  string
}

// effectsCases covers each kind of model.
func effectsCases() []effectsCase {
	settle := (*bench).settle
	return []effectsCase{
		{
			"no worker waits for an acknowledgement", "ssp:1", "none",
			[]func(b *bench){func(b *bench) { b.update(0, 0, 1) }, settle},
			"later",
		},
		{"a read that waited for MinClock is answered with its acknowledgement", "ssp:0", "none", []func(b *bench){
			func(b *bench) { b.read(0, 1, 0, false) },
			func(b *bench) { b.update(0, 0, 1) },
			func(b *bench) { b.update(1, 0, 2) }, settle,
		}, "answer 0, acknowledged true; later"},
		{"a push comes before the answer", "essp:0", "none", []func(b *bench){
			func(b *bench) { b.read(0, 0, 0, true) },
			func(b *bench) { b.read(0, 1, 1, true) },
			func(b *bench) { b.update(0, 0, 1) },
			func(b *bench) { b.update(1, 0, 0) }, settle,
		}, "push 0; answer 0, acknowledged true; later"},
		{"a push comes before the acknowledgement", "vap:1", "none", []func(b *bench){
			func(b *bench) { b.read(0, 0, 0, true) },
			func(b *bench) { b.update(1, 0, 0) }, settle,
		}, "push 0; ack 1"},
		{
			"the sender of a gap must open the shard again", "ssp:1", "none",
			[]func(b *bench){func(b *bench) { b.update(0, 1, 1) }, settle},
			"moved 0",
		},
		{
			"a staged update is acknowledged", "bsp", "none",
			[]func(b *bench){func(b *bench) { b.update(0, 0, 1) }, settle},
			"ack 0",
		},
		{"the shard pauses at a cut", "ssp:1", "checkpoint:1", []func(b *bench){
			func(b *bench) { b.update(0, 0, 1) },
			func(b *bench) { b.update(1, 0, 1) }, settle,
		}, "save 1, stands true; later"},
		{"a cut is left, and later updates are applied", "ssp:1", "resend:1", []func(b *bench){
			func(b *bench) { b.update(0, 0, 1) },
			func(b *bench) { b.update(1, 0, 1) },
			func(b *bench) { b.update(0, 1, 1) }, settle,
		}, "save 1, stands false; later"},
		{"a closed connection has no waiting reads", "ssp:0", "none", []func(b *bench){
			func(b *bench) { b.read(0, 1, 0, false) },
			func(b *bench) { b.Readers.Forget(b.readers[0]) },
		}, "dropped 0"},
		{"a new epoch drops waiting reads", "ssp:0", "none", []func(b *bench){
			func(b *bench) { b.read(0, 1, 0, false) },
			func(b *bench) { b.SetView(&b.view, b.role, true) },
		}, "dropped 0"},
		{"a wrong number of values stops the server", "ssp:0", "none", []func(b *bench){func(b *bench) {
			body := wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{First: 0, Count: 1}, Values: []float32{1, 2}})
			b.step(wire.Frame{
				Header: wire.Header{Kind: wire.KindUpdate, Slot: 0, Incarnation: 1, Parts: 1},
				Body:   body,
			})
		}, settle}, "later; fail shard 0 cannot apply the update of slot 0, clock 0: " +
			"wire: malformed payload: a block has 2 values for 1 rows of table 0 (of 1), which does not " +
			"match the job's tables"},
	}
}

// Steps and Settle cause the expected effects.
func TestEffects(t *testing.T) {
	for _, c := range effectsCases() {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, c.model, c.recovery, 2)
			for _, do := range c.do {
				do(b)
			}
			if got := b.effects(); got != c.want {
				t.Errorf("effects: %s\nwant:    %s", got, c.want)
			}
		})
	}
}

// The image of a cut has the rows as of that cut, whatever is applied before it is read.
func TestImageIsOfItsCut(t *testing.T) {
	b := newBench(t, "ssp:1", "resend:1", 2)
	b.update(0, 0, 1)
	b.update(1, 0, 1)
	b.update(0, 1, 1)
	b.update(1, 1, 1)
	b.Settle()
	fx := b.Effects()
	if len(fx.Saves) != 1 || fx.Saves[0].Cut != 1 {
		t.Fatalf("saves: %+v", fx.Saves)
	}
	m := fx.Saves[0].Image
	if got := b.values(); got[1] != 4 {
		t.Errorf("the shard does not continue: its rows are %v", got)
	}
	piece, _ := m.Rows[0].Next(1<<10, func(n int) []byte { return make([]byte, n) })
	if got := wire.Floats(piece); got[1] != 2 || m.Seq != 2 || !slices.Equal(m.Applied, []perdure.Clock{1, 1}) {
		t.Errorf("the image of the cut has rows %v with applied vector %v, %d updates", got, m.Applied, m.Seq)
	}
}

func (b *bench) values() []float32 {
	values := make([]float32, 4)
	if err := b.State.Parts()[0].ReadRows(values, 0, nil, 4); err != nil {
		b.t.Fatal(err)
	}
	return values
}

// copyOf makes a replica from another one's snapshot.
func (b *bench) copyOf() *bench {
	b.t.Helper()
	n := &bench{Replica: New(Settings{Job: *b.job}), t: b.t, view: b.view, pos: b.pos}
	n.SetView(&n.view, Role{}, false)
	snap := b.State.Snapshot(LogProgress{})
	in := NewIncomingSnapshot(b.job, 0)
	if err := in.AddHeader(snap.Header[:10], false); err != nil {
		b.t.Fatal(err)
	}
	if err := in.AddHeader(snap.Header[10:], true); err != nil {
		b.t.Fatal(err)
	}
	for _, rows := range snap.Rows {
		for {
			piece, _ := rows.Next(1<<10, func(n int) []byte { return make([]byte, n) })
			if len(piece) == 0 {
				break
			}
			if _, err := in.AddRows(piece); err != nil {
				b.t.Fatal(err)
			}
		}
		rows.Close()
	}
	if err := in.Finish(); err != nil {
		b.t.Fatal(err)
	}
	n.InstallSnapshot(in)
	return n
}

// Replicas with the same entries are equal, no matter when each settles, and whether it started with the entries or
// with a snapshot of another replica.
func TestReplicasAgree(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:1", "asp", "essp:2", "vap:2", "atomic"} {
		atomic := model == "atomic"
		if atomic {
			model = "asp"
		}
		for seed := range uint64(20) {
			random := rand.New(rand.NewPCG(seed, 0))
			const slots = 3
			with := func(s *Settings, _ *perdure.TableSpec) { s.Job.AtomicClocks = atomic }
			all := []*bench{newBench(t, model, "none", slots, with), newBench(t, model, "none", slots, with)}
			var staged, ticked [slots]perdure.Clock
			for range 60 {
				slot := perdure.Slot(random.IntN(slots))
				row := perdure.RowID(random.IntN(4))
				ticks := model == "bsp" || atomic && random.IntN(2) == 0
				for _, b := range all {
					switch {
					case ticks && staged[slot] > ticked[slot]:
						b.tick(slot, ticked[slot])
					default:
						b.update(slot, staged[slot], row)
					}
					if random.IntN(3) == 0 {
						b.Settle()
					}
				}
				if ticks && staged[slot] > ticked[slot] {
					ticked[slot]++
				} else {
					staged[slot]++
				}
				if random.IntN(20) == 0 {
					all = append(all, all[0].copyOf())
				}
			}
			for i, b := range all {
				b.ApplyAll()
				if got, want := b.values(), all[0].values(); !slices.Equal(got, want) ||
					!slices.Equal(b.State.Applied(), all[0].State.Applied()) || b.State.Seq() != all[0].State.Seq() {
					t.Fatalf("%s, seed %d: replica %d has %v, %v; the first one %v, %v",
						model, seed, i, got, b.State.Applied(), want, all[0].State.Applied())
				}
			}
		}
	}
}

// A replica that starts with a snapshot scales updates by their age like all others.
func TestCopyWeakens(t *testing.T) {
	b := newBench(t, "ssp:9", "none", 1)
	b.job.StaleScale = perdure.ScaleInverse
	b.State.updateTableSettings()
	b.update(0, 0, 1)
	b.Settle()
	late := func(b *bench) float32 {
		body := wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{First: 1, Count: 1}, Values: []float32{1}})
		body = wire.AppendBasisBlock(body, 0, 0) // of rows as of MinClock 0
		b.step(wire.Frame{Header: wire.Header{Kind: wire.KindUpdate, Clock: 1, Incarnation: 1, Parts: 1}, Body: body})
		b.Settle()
		return b.values()[1]
	}
	other := b.copyOf()
	if got, want := late(other), late(b); got != want || want != 1.5 {
		t.Errorf("an update of 1, of age 1, adds %v on a copy, %v on the original", got, want)
	}
}

// In the steady state, an update and a read allocate no memory, whatever effects they have.
func TestNoMemory(t *testing.T) {
	for _, model := range []string{"ssp:1", "essp:1", "vap:1", "asp"} {
		b := newBench(t, model, "none", 1)
		b.read(0, 0, 1, true)
		b.Effects().Clear()
		body := wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{First: 1, Count: 1}, Values: []float32{1}})
		e := Entry{From: b.readers[0]}
		e.Frame.Header = wire.Header{Kind: wire.KindUpdate, Incarnation: 1, Parts: 1}
		rd := Read{Reader: b.readers[0], Rows: wire.Rows{First: 1, Count: 1}, Subscribe: true}
		turn := func() {
			b.Step(&e, body)
			b.Settle()
			b.Effects().Clear()
			if now, err := b.Read(&rd); !now || err != nil {
				t.Fatal("the read is not answered immediately", err)
			}
			b.Readers.TakeAck(b.readers[0])
			e.Frame.Clock++
		}
		for range 100 { // until all buffers have grown
			turn()
		}
		if n := testing.AllocsPerRun(200, turn); n != 0 {
			t.Errorf("%s: an update and a read allocate %v times", model, n)
		}
	}
}
