package outbox

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/packed"
	"github.com/perdure/perdure/internal/data/wire"
)

// roundedShard returns a shard with a table of rows of dim values, whose updates are rounded.
func roundedShard(t *testing.T, e perdure.Encoding, rows int64, dim int, sparse bool) (*Outbox, *Shard, *Deltas) {
	t.Helper()
	b, s := asked(t, "bsp", "resend:9", Limits{Window: 1 << 30, Retain: 1 << 30})
	spec := b.jobView.view.Tables[0]
	spec.Dim, spec.Sparse, spec.Encoding = dim, sparse, e
	if spec.Rows = rows * int64(len(b.shards)); sparse {
		spec.Rows = 0
	}
	b.jobView.view.Tables[0] = spec
	return b, s, b.Table(0, spec).Deltas(s.id)
}

// noise returns n values.
func noise(n int) []float32 {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(r.NormFloat64())
	}
	return values
}

// sentRows returns the rows of an update as a server decodes them, and the bytes of its parts.
func sentRows(t *testing.T, u *Update) (rows map[perdure.RowID][]float32, size int) {
	t.Helper()
	rows = map[perdure.RowID][]float32{}
	u.sent = 0
	for _, f := range u.frames(wire.Header{}, nil) {
		payload := slices.Concat(f.Payload, f.Body)
		size += len(payload)
		part := 0
		blocks := wire.ReadBlocks(payload)
		for blocks.Next() {
			part += 4 * blocks.Len
			of := blocks.Unpack(nil)
			for i := range of.Count {
				dim := len(of.Values) / of.Count
				rows[of.ID(i)] = of.Values[i*dim : (i+1)*dim]
			}
		}
		if blocks.Err() != nil || part > wire.PartBytes {
			t.Errorf("a part of %d bytes has %d bytes of values: %v", len(payload), part, blocks.Err())
		}
	}
	return rows, size
}

// TestRounded: rows are sent rounded, whether in runs, in lists or in lent memory, and only their rounded values are
// kept: the memory of the deltas is free immediately. Packing the update again gives the same bytes.
func TestRounded(t *testing.T) {
	for _, e := range []perdure.Encoding{perdure.EncodingBF16, perdure.EncodingInt8, perdure.Encoding2Bit} {
		for _, dim := range []int{3, 1024} {
			const rows = 700
			b, s, d := roundedShard(t, e, rows, dim, false)
			values := noise(rows * dim)
			d.AddRun(0, 300, values[:300*dim])
			for at := 301; at < 400; at += 2 {
				d.AddRun(at, 1, values[at*dim:(at+1)*dim])
			}
			r, err := d.of.Buffer(200 * dim)
			if err != nil {
				t.Fatal(err)
			}
			copy(r.Values, values[500*dim:])
			d.Lend(500, 200, r, r.Values)
			if err := s.Fill(consistency.Origin{Basis: -1}); err != nil {
				t.Fatal(err)
			}
			b.Seal()
			u := s.kept[0]
			if len(u.taken)+len(u.buffers) > 0 || len(d.of.freeBuffers) != 1 {
				t.Errorf("%s: %d arrays and %d buffers are kept, %d free", e, len(u.taken), len(u.buffers),
					len(d.of.freeBuffers))
			}
			check := func() {
				t.Helper()
				got, size := sentRows(t, u)
				if most := packed.EncodedBytes(e, len(got), dim) + 16*len(got) + 4096; size > most || len(got) != 550 {
					t.Errorf("%s: %d rows of %d values are sent in %d bytes, want at most %d", e, len(got), dim, size,
						most)
				}
				for id, row := range got {
					want := slices.Clone(values[int(id-d.first)*dim:][:dim])
					if packed.Round(want, e, dim); !slices.Equal(row, want) {
						t.Fatalf("%s: row %d is sent as %v, want %v", e, id, row, want)
					}
				}
			}
			check()
			u.rebuild()
			check()
		}
	}
}

// TestRoundedOnce: several Incs of a row are added up before they are rounded, and after Flush has rounded a row no
// further Inc is accepted in the clock. Rows of sparse tables are rounded when the clock ends.
func TestRoundedOnce(t *testing.T) {
	_, s, d := roundedShard(t, perdure.EncodingInt8, 4, 8, false)
	values := noise(16)
	for range 3 {
		d.AddRun(0, 2, values)
		if d.RecordInc(false) {
			t.Error("deltas are sent before the clock ends")
		}
	}
	if !d.CanFill(true, true) {
		t.Fatal("Flush sends nothing")
	}
	if _, err := d.Fill(true, true); err != nil {
		t.Fatal(err)
	}
	got, _ := sentRows(t, s.building)
	want := make([]float32, 16)
	for i, v := range values {
		want[i] = v + v + v
	}
	packed.Round(want, perdure.EncodingInt8, 8)
	for i := range 2 {
		if row := got[d.first+perdure.RowID(i)]; !slices.Equal(row, want[i*8:(i+1)*8]) {
			t.Errorf("row %d is sent as %v, want %v", i, row, want[i*8:(i+1)*8])
		}
	}
	if err := d.CheckAdd(1, 2); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("an Inc after Flush: %v", err)
	}
	if err := errors.Join(d.CheckAdd(2, 2), d.of.CheckAdd([]perdure.RowID{d.first + 2})); err != nil {
		t.Error(err)
	}
	if err := d.of.CheckAdd([]perdure.RowID{d.first}); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("an Inc of a list after Flush: %v", err)
	}
	d.reset()
	if err := d.CheckAdd(0, 4); err != nil {
		t.Errorf("in the next clock: %v", err)
	}

	_, s, d = roundedShard(t, perdure.EncodingInt8, 0, 8, true)
	d.AddRow(5, -1, values[:8])
	if d.CanFill(true, true) {
		t.Error("rows of a sparse table are rounded before the clock ends")
	}
	if err := s.Fill(consistency.Origin{Basis: -1}); err != nil {
		t.Fatal(err)
	}
	want = slices.Clone(values[:8])
	packed.Round(want, perdure.EncodingInt8, 8)
	if got, _ := sentRows(t, s.building); !slices.Equal(got[5], want) {
		t.Errorf("row 5 is sent as %v, want %v", got[5], want)
	}
}
