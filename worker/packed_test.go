package worker_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/packed"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/worker"
)

// Tables of a job whose rows have few nonzero values.
const (
	zeroRows   = 40
	zeroDim    = 128
	zeroClocks = 6
)

// zeros is such a job: a table with the rule add, one with the rule set, and two programs that change a few values per
// clock.
type zeros struct {
	*cluster
	tables [2][]*worker.Table // by table, by slot
	read   [2][][]uint32      // by slot: the bits of all rows read in each clock
	packed map[wire.Kind]int  // number of slot 0's frames
}

// runZeros runs the job with the given number of shards, and returns the bits read in each clock and the packed frames.
func runZeros(t *testing.T, model, recovery string, shards int) (z zeros) {
	t.Helper()
	job := jobOf(model, recovery, 2, 0)
	job.Shards = shards
	inJob(t, transport.MemoryOptions{}, nil, job, func(c *cluster) {
		z.cluster = c
		w, tap := c.tapped("worker:0", 0)
		ws := []*worker.Client{w, c.dial("worker:1", 1)}
		for i, rule := range []perdure.RuleKind{perdure.RuleAdd, perdure.RuleSet} {
			for _, w := range ws {
				z.tables[i] = append(z.tables[i], c.table(w, func(s *perdure.TableSpec) {
					s.Name, s.Rule.Kind, s.NonFinite = string(rule), rule, perdure.AllowNonFinite
					s.Rows, s.Dim = zeroRows, zeroDim
				}))
			}
		}
		for clock := range perdure.Clock(zeroClocks) {
			both(len(ws), func(slot int) {
				z.look(slot)
				z.change(slot, clock)
				c.clock(ws[slot], clock+1)
			})
		}
		both(len(ws), func(slot int) {
			if err := ws[slot].Settle(c.ctx); err != nil {
				c.Error(err)
			}
		})
		for slot := range ws {
			z.tables[0][slot].Forget()
			z.tables[1][slot].Forget()
			z.look(slot)
		}
		z.packed = tap.packed
	})
	return z
}

// look reads all rows.
func (z *zeros) look(slot int) {
	for _, tables := range z.tables {
		got := make([]float32, zeroRows*zeroDim)
		if err := tables[slot].GetRun(z.ctx, 0, got); err != nil {
			z.Error(err)
		}
		bits := make([]uint32, len(got))
		for i, v := range got {
			bits[i] = math.Float32bits(v)
		}
		z.read[slot] = append(z.read[slot], bits)
	}
}

// change changes some values, including to ±0 and NaN. A slot sets only its own rows.
func (z *zeros) change(slot int, clock perdure.Clock) {
	delta := make([]float32, zeroRows*zeroDim)
	for i := range 40 {
		at := (int(clock)*977 + slot*313 + i*131) % len(delta)
		delta[at] = []float32{0.1, -1e-42, 3e7, float32(math.Copysign(0, -1))}[i%4]
	}
	if slot == 0 && clock == 2 {
		delta[77] = math.Float32frombits(0x7fc12345) // a NaN with a payload
	}
	if err := z.tables[0][slot].IncRun(0, delta); err != nil {
		z.Error(err)
	}
	half := zeroRows / 2
	own := delta[slot*half*zeroDim : (slot+1)*half*zeroDim]
	own[5], own[6], own[7] = float32(math.Inf(-1)), math.Float32frombits(0xffc54321), float32(math.Copysign(0, -1))
	ids := make([]perdure.RowID, half)
	for i := range ids {
		ids[i] = perdure.RowID(slot*half + i)
	}
	if err := z.tables[1][slot].IncRows(ids, own); err != nil {
		z.Error(err)
	}
}

// TestPackedRows checks that rows with mostly zero values travel packed in both directions. They must equal the rows of
// a job with more shards, where each shard has too few for packing: bit for bit in each clock under bsp, and at the end
// under essp.
func TestPackedRows(t *testing.T) {
	const few, many = 4, 16
	if n := zeroRows * zeroDim; n/few < packed.MinValues || n/many >= packed.MinValues {
		t.Fatalf("%d values on a shard are packed, and %d are not", n/few, n/many)
	}
	for _, c := range []struct{ model, recovery string }{
		{"bsp", "none"}, {"bsp", "chain:2"}, {"bsp", "stateless"}, {"essp:1", "resend:2"},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			with, without := runZeros(t, c.model, c.recovery, few), runZeros(t, c.model, c.recovery, many)
			if n := with.packed; n[wire.KindRows] == 0 || n[wire.KindUpdate] == 0 && c.recovery != "stateless" ||
				c.model == "essp:1" && n[wire.KindPush] == 0 {
				t.Errorf("frames were packed: %v", n)
			}
			if len(without.packed) > 0 {
				t.Errorf("frames of few values were packed: %v", without.packed)
			}
			for slot, got := range with.read {
				want := without.read[slot]
				if c.model != "bsp" {
					got, want = got[len(got)-2:], want[len(want)-2:]
				}
				for i := range got {
					if !slices.Equal(got[i], want[i]) {
						t.Errorf("slot %d read other bits in its reading %d", slot, i)
					}
				}
			}
			if end := with.read[0]; end[len(end)-1][7] != 1<<31 || end[len(end)-1][6] != 0xffc54321 {
				t.Errorf("what was set is %x", end[len(end)-1][5:8])
			}
		})
	}
}
