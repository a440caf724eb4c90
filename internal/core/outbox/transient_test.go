package outbox

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestTransient checks that retained updates keep the rows of transient tables of the newest applied clock and later
// ones, and those of a cut that is not durable yet, and that a restored shard is resent everything else: other tables,
// states and weights. Memory that may still be queued for sending is not lent again.
func TestTransient(t *testing.T) {
	for _, queued := range []bool{false, true} {
		memory := &counted{}
		b, s := asked(t, "bsp", "resend:8", Limits{Window: 1 << 20, Retain: 1 << 20, Memory: memory})
		b.jobView.view.Tables = append(b.jobView.view.Tables, perdure.TableSpec{
			Name: "mean", Rows: 4, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleSet}, Combine: perdure.CombineWeighted,
			Transient: true,
		})
		b.SetView(b.jobView.view, false)
		for id, spec := range b.jobView.view.Tables {
			b.Table(perdure.TableID(id), spec)
		}
		for clock := perdure.Clock(5); clock < 10; clock++ {
			fillTransient(t, b, s, clock)
			if queued {
				s.HeadChanged()
			}
			s.NextFrames(wire.Header{}, nil)
			s.Ack(protocol.Counts{Staged: clock + 1, Ticked: clock, Applied: clock, Seen: clock})
			b.Stage()
			b.Ticks().Current()
			b.Next()
			s.Ack(protocol.Counts{Staged: clock + 1, Ticked: clock + 1, Applied: clock + 1, Seen: clock + 1})
			if counted, kept := b.ByteCounts(); counted != kept {
				t.Errorf("clock %d: counts %v, but keeps %v", clock, counted, kept)
			}
		}
		frames, err := s.Resend(protocol.Counts{Staged: 5, Ticked: 5, Applied: 5, Seen: 5}, wire.Header{}, nil)
		if err != nil || len(frames) != 5 {
			t.Fatalf("resent %d clocks, want 5 (%v)", len(frames), err)
		}
		for i, f := range frames {
			clock := perdure.Clock(5 + i)
			means, sums, weight, state := contents(f)
			want := 0
			if clock == 7 || clock >= 9 { // there is a cut at clock 8
				want = 4
			}
			if f.Clock != clock || len(means) != want || !slices.Equal(sums, []float32{float32(clock)}) ||
				weight != float64(clock) || string(state) != string([]byte{byte(clock)}) {
				t.Errorf("clock %d was resent with the means %v, the sums %v, weight %v and state %v", f.Clock, means,
					sums, weight, state)
			}
		}
		if want := map[bool]int{false: 3, true: 5}[queued]; memory.taken != want {
			t.Errorf("queued %v: took %d pieces of memory for 5 clocks, want %d", queued, memory.taken, want)
		}
	}
}

// TestTransientMemory checks that an update without its rows of transient tables also lacks the memory in which they
// were packed, because many such updates are kept.
func TestTransientMemory(t *testing.T) {
	b, s := asked(t, "bsp", "resend:1000", Limits{Window: 1 << 30, Retain: 1 << 30})
	b.jobView.view.Tables = append(b.jobView.view.Tables, perdure.TableSpec{
		Name: "mean", Rows: 4000, Dim: 100, Rule: perdure.Rule{Kind: perdure.RuleSet}, Combine: perdure.CombineSum,
		Transient: true,
	})
	b.SetView(b.jobView.view, false)
	for id, spec := range b.jobView.view.Tables {
		b.Table(perdure.TableID(id), spec)
	}
	for clock := perdure.Clock(5); clock < 15; clock++ {
		b.tables[1].Deltas(0).AddRun(0, 4000, make([]float32, 4000*100))
		if err := s.Fill(consistency.Origin{Basis: -1}); err != nil {
			t.Fatal(err)
		}
		b.Seal()
		s.NextFrames(wire.Header{}, nil)
		s.Ack(protocol.Counts{Staged: clock + 1, Ticked: clock, Applied: clock, Seen: clock})
		b.Stage()
		b.Ticks().Current()
		b.Next()
		s.Ack(protocol.Counts{Staged: clock + 1, Ticked: clock + 1, Applied: clock + 1, Seen: clock + 1})
	}
	held := 0
	for _, u := range s.kept[:len(s.kept)-1] {
		held += cap(u.arena)
	}
	if len(s.kept) != 10 || held > 1000 {
		t.Errorf("%d bytes for the packed parts of %d updates without their rows", held, len(s.kept)-1)
	}
}

// fillTransient fills and seals the update of a clock: all rows of the transient table in lent memory, a row of the
// other table, a state and a weight.
func fillTransient(t *testing.T, b *Outbox, s *Shard, clock perdure.Clock) {
	t.Helper()
	sum, mean := b.tables[0], b.tables[1]
	r, err := mean.Buffer(4)
	if err == nil {
		err = mean.Deltas(0).CheckLend(0, 4)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Values {
		r.Values[i] = float32(clock)
	}
	mean.Deltas(0).Lend(0, 4, r, r.Values)
	sum.Deltas(0).AddRun(0, 1, []float32{float32(clock)})
	b.SaveState([]byte{byte(clock)})
	if err := mean.Weigh(float64(clock)); err != nil {
		t.Fatal(err)
	}
	if err := s.Fill(consistency.Origin{Basis: -1}); err != nil {
		t.Fatal(err)
	}
	b.Seal()
}

// contents returns the contents of a frame: those of both tables, with the weight and the state.
func contents(f wire.Frame) (means, sums []float32, weight float64, state []byte) {
	blocks := wire.ReadBlocks(slices.Concat(f.Payload, f.Body))
	for blocks.Next() {
		switch whole := blocks.Unpack(nil); {
		case blocks.Weight > 0:
			weight = blocks.Weight
		case whole.Table == 1:
			means = append(means, whole.Values...)
		default:
			sums = append(sums, whole.Values...)
		}
	}
	return means, sums, weight, blocks.State
}
