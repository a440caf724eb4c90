package server

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/packed"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// A server reuses the memory of its frames. Long runs of rows are sent directly from table memory; other rows are
// gathered into an [answerFrame]. The transport asks the answer to copy any part that it could not write immediately
// (see wire.Keeper). So a frame must be handed to a transport under the lock that guards the rows.

// lentBytes is the minimum size of a run of rows that is sent from table memory. The shard pauses while the network
// accepts what it can without blocking; the rest is copied.
const lentBytes = 16 << 10

// Counts fills f with a slot's counts.
func (b *frameBuffers) Counts(f *wire.Frame, counts protocol.Counts) {
	a := b.Answer(0)
	a.head = wire.AppendCounts(a.head[:0], counts)
	f.Payload, f.Release = a.head, a
}

// Rows fills f with the current values of rows, rounded as e says, as the answer to a read. The rows must have been
// checked.
func (b *frameBuffers) Rows(f *wire.Frame, state *wire.State, rows *wire.Rows, e perdure.Encoding, p *table.Part) {
	b.fill(f, rows, e, p, func(head []byte) []byte { return wire.AppendState(head, state) })
}

// Push fills f with a push of the current values of rows.
func (b *frameBuffers) Push(f *wire.Frame, state *wire.State, rows *wire.Rows, p *table.Part) {
	head := func(head []byte) []byte { return wire.AppendPushHead(head, state, rows) }
	b.fill(f, rows, perdure.EncodingFloat32, p, head)
}

// PushEnd fills f with the end of a round of pushes, without rows.
func (b *frameBuffers) PushEnd(f *wire.Frame, state *wire.State) {
	a := b.Answer(0)
	a.head = wire.AppendPushHead(a.head[:0], state, &wire.Rows{})
	f.Payload, f.Release = a.head, a
}

// fill puts rows into a frame after a head. It rounds them as e says, unless some are not finite, or packs them if most
// of their values are 0. Otherwise it lends a long run from table memory and gathers other rows.
func (b *frameBuffers) fill(
	f *wire.Frame, rows *wire.Rows, e perdure.Encoding, p *table.Part, head func([]byte) []byte,
) {
	n := rows.Count * p.Spec.Dim
	lent := rows.IDs == nil && 4*n >= lentBytes
	var values []float32
	var a *answerFrame
	if lent {
		a = b.Answer(0)
		values, _ = p.Run(rows.First, rows.Count)
	} else {
		a = b.Answer(n)
		if err := p.ReadRows(a.values, rows.First, rows.IDs, rows.Count); err != nil {
			panic(fmt.Sprintf("frames: cannot read checked rows: %v", err))
		}
		values = a.values
	}
	a.head = head(a.head[:0])
	f.Release = a
	if e != perdure.EncodingFloat32 && table.FirstNonFinite(values) < 0 {
		a.head = packed.AppendEncoded(a.head, e, p.Spec.Dim, values)
		f.Payload, f.Flags = a.head, f.Flags|wire.FlagOf(e)
		return
	}
	if packed.WorthPacking(values) {
		with, ok := packed.Append(a.head, values)
		if a.head = with; ok {
			f.Payload, f.Flags = a.head, f.Flags|wire.FlagPacked
			return
		}
	}
	if f.Body, f.Lent = wire.FloatBytes(values); f.Body == nil {
		a.head = wire.AppendFloats(a.head, values) // this machine's memory layout differs from the wire format
	}
	f.Lent = f.Lent && lent
	f.Payload = a.head
}
