package replica

import (
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// combines adds table 1 to a bench. It has 4 rows and combines updates.
func (b *bench) combines(how perdure.Combine, rule perdure.Rule) {
	spec := perdure.TableSpec{
		Name: "c", Dim: 1, Rows: 4, Rule: rule, Combine: how, Consistency: perdure.Consistency{Kind: perdure.BSP},
	}
	b.step(wire.Frame{
		Header:  wire.Header{Kind: wire.KindAddTable, Slot: perdure.NoSlot, Clock: 1},
		Payload: wire.JSON(spec),
	})
}

// both makes two slots each do a clock: add to a row of table 1, and tick.
func (b *bench) both(clock perdure.Clock, rows [2]perdure.RowID, by float32) {
	for slot, row := range rows {
		b.step(wire.Frame{
			Header: wire.Header{
				Kind: wire.KindUpdate, Slot: perdure.Slot(slot), Clock: clock, Incarnation: 1, Parts: 1,
				Flags: wire.FlagTicked,
			},
			Body: wire.AppendBlock(nil, &wire.Block{
				Rows: wire.Rows{Table: 1, First: row, Count: 1}, Values: []float32{by},
			}),
		})
	}
	b.settle()
}

// A combined update marks the changed rows like any other: a round of saves contains those rows and no others.
func TestCombinedIsSaved(t *testing.T) {
	b := newBench(t, "bsp", "scar:1,1,used", 2)
	b.combines(perdure.CombineMean, perdure.Rule{Kind: perdure.RuleAdd})
	b.both(0, [2]perdure.RowID{2, 2}, 4)
	if len(b.Effects().Saves) != 1 {
		t.Fatalf("%d rounds", len(b.Effects().Saves))
	}
	if got := b.Effects().Saves[0].Rows.Runs; len(got) != 2 || len(got[0]) != 0 ||
		!slices.Equal(got[1], []table.Run{{First: 2, Rows: 1}}) {
		t.Errorf("the round contains the rows %v", got)
	}
}

// Adam's t counts how often the rule has run for a row: once in a clock, however many slots touch the row.
func TestCombinedAdamCountsRuns(t *testing.T) {
	for how, want := range map[perdure.Combine][]float32{
		perdure.CombineEach: {4, 2, 0, 0}, perdure.CombineSum: {3, 2, 0, 0}, perdure.CombineMean: {3, 2, 0, 0},
	} {
		b := newBench(t, "bsp", "none", 2)
		b.combines(how, perdure.Rule{Kind: perdure.RuleAdam, Rate: 0.1}.WithDefaults())
		b.both(0, [2]perdure.RowID{0, 0}, 1)
		b.both(1, [2]perdure.RowID{0, 1}, 1)
		b.both(2, [2]perdure.RowID{1, 0}, 1)
		if got := b.State.Parts()[1].Image().Planes[3][0]; !slices.Equal(got, want) {
			t.Errorf("%q: t is %v, want %v", how, got, want)
		}
	}
}

// An update that cannot be added stops the server.
func TestCombinedMisfits(t *testing.T) {
	b := newBench(t, "bsp", "none", 2)
	b.combines(perdure.CombineSum, perdure.Rule{Kind: perdure.RuleAdd})
	b.Effects().Clear()
	b.both(0, [2]perdure.RowID{0, 9}, 1)
	const want = "fail shard 0 cannot apply the update of slot 1, clock 0: table: row not on this shard: got rows " +
		"9 to 9 of table c, but the shard has rows 0 to 3"
	if got := b.effects(); !strings.HasSuffix(got, want) {
		t.Errorf("effects: %s\nwant:    %s", got, want)
	}
}

// In the steady state, a clock allocates no memory.
func TestCombinedMemory(t *testing.T) {
	for _, how := range []perdure.Combine{perdure.CombineSum, perdure.CombineWeighted} {
		b := newBench(t, "bsp", "none", 2)
		b.combines(how, perdure.Rule{Kind: perdure.RuleAdam, Rate: 0.1}.WithDefaults())
		var entries [2]Entry
		body := wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{Table: 1, Count: 4}, Values: []float32{1, 2, 3, 4}})
		body = wire.AppendWeightBlock(body, 1, 3)
		for slot := range entries {
			entries[slot].Frame.Header = wire.Header{
				Kind: wire.KindUpdate, Slot: perdure.Slot(slot), Incarnation: 1, Parts: 1, Flags: wire.FlagTicked,
			}
		}
		clock := func() {
			for slot := range entries {
				b.Step(&entries[slot], body)
				entries[slot].Frame.Clock++
			}
			b.Settle()
			b.Effects().Clear()
		}
		for range 10 {
			clock()
		}
		if n := testing.AllocsPerRun(100, clock); n != 0 {
			t.Errorf("%s: a clock allocates %v times", how, n)
		}
	}
}
