package outbox

import (
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// An update of rows that are mostly 0 is sent packed, and counted by its unpacked size. No part has more values than
// without packing, the size that the server counts is the size that is sent, and packing it again gives the same bytes.
func TestPackedParts(t *testing.T) {
	const rows, dim = 40_000, 100
	b, s := asked(t, "bsp", "none", Limits{Window: 1 << 30})
	spec := b.jobView.view.Tables[0]
	spec.Rows, spec.Dim, spec.Sparse = rows*int64(len(b.shards)), dim, false
	b.jobView.view.Tables[0] = spec
	d := b.Table(0, spec).Deltas(s.id)
	values := make([]float32, rows*dim)
	for i := 0; i < len(values); i += 50 {
		values[i] = float32(i + 1)
	}
	values[77] = float32(math.Copysign(0, -1))
	for at := 0; at < rows; at += 20 { // in runs with a gap after each
		d.AddRun(at, 19, values[at*dim:(at+19)*dim])
	}
	if err := s.Fill(consistency.Origin{Basis: -1}); err != nil {
		t.Fatal(err)
	}
	b.Seal()
	u := s.kept[len(s.kept)-1]
	look := func() (sent [][]byte) {
		wires, whole := int64(0), int64(0)
		for _, f := range u.frames(wire.Header{}, nil) {
			payload := slices.Concat(f.Payload, f.Body)
			sent = append(sent, payload)
			wires, whole = wires+int64(len(payload)), whole+int64(len(payload))
			part := 0
			blocks := wire.ReadBlocks(payload)
			for blocks.Next() {
				if part += 4 * blocks.Len; len(blocks.Sent) == blocks.Len {
					t.Errorf("block of %d rows is not packed", blocks.Count)
				}
				got := blocks.Unpack(nil)
				for i := range got.Count {
					want := values[int(got.ID(i)-d.first)*dim:][:dim]
					for k, v := range got.Values[i*dim : (i+1)*dim] {
						if math.Float32bits(v) != math.Float32bits(want[k]) {
							t.Fatalf("value %d of row %d is %v, want %v", k, got.ID(i), v, want[k])
						}
					}
				}
			}
			if blocks.Err() != nil || part > wire.PartBytes {
				t.Errorf("a part of %d bytes has %d bytes of values, %v", len(payload), part, blocks.Err())
			}
		}
		if got := u.payloadBytes(); got != wires {
			t.Errorf("the update's payload counts as %d bytes, but %d are sent", got, wires)
		}
		if all := int64(4 * rows / 20 * 19 * dim); u.bytes < all || u.bytes > all+all/20 || wires > all/8 {
			t.Errorf("%d bytes of values count as %d, sent as %d", all, u.bytes, wires)
		}
		return sent
	}
	first := look()
	u.sent = 0
	u.rebuild()
	if again := look(); !slices.EqualFunc(first, again, slices.Equal[[]byte]) {
		t.Error("packed again, the bytes differ")
	}
}

// Packed parts take little more memory than they have bytes, although their number is unknown when the first is packed.
func TestMemoryOfPackedParts(t *testing.T) {
	const rows, dim = 40_000, 400
	b, s := asked(t, "bsp", "none", Limits{Window: 1 << 30})
	spec := b.jobView.view.Tables[0]
	spec.Rows, spec.Dim, spec.Sparse = rows, dim, false
	d := b.Table(0, spec).Deltas(s.id)
	values := make([]float32, rows*dim)
	for i := 0; i < len(values); i += 5 {
		values[i] = float32(i + 1)
	}
	if err := d.CheckLend(0, rows); err != nil {
		t.Fatal(err)
	}
	d.Lend(0, rows, &Buffer{Values: values, of: b.tables[0]}, values)
	held := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := held()
	if err := s.Fill(consistency.Origin{Basis: -1}); err != nil {
		t.Fatal(err)
	}
	b.Seal()
	used, u := held()-before, s.kept[len(s.kept)-1]
	if sent := u.payloadBytes(); used > 2*sent {
		t.Errorf("parts of %d bytes take %d bytes of memory", sent, used)
	}
	runtime.KeepAlive(values)
}
