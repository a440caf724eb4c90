package server

import (
	"fmt"

	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/packed"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// A server's frames use their memory again. Rows go into a frame from where they lie if they are a long run,
// and are otherwise gathered into an [answerFrame]; what the transport has not written by then, it asks the
// answer for (see wire.Keeper). So a frame has to be handed to a transport under the lock that guards the rows.

// lentBytes is the least size of a run of rows that is sent from where it lies.
// The shard stands still while the network takes what it takes at once, and the
// rest is copied.
const lentBytes = 16 << 10

// Counts makes f tell a slot how far it has come.
func (b *frameBuffers) Counts(f *wire.Frame, counts words.Counts) {
	a := b.Answer(0)
	a.head = wire.AppendCounts(a.head[:0], counts)
	f.Payload, f.Release = a.head, a
}

// Rows makes f the answer to a read of rows, which were checked, as they are now.
func (b *frameBuffers) Rows(f *wire.Frame, state *wire.State, rows *wire.Rows, p *table.Part) {
	b.fill(f, rows, p, func(head []byte) []byte { return wire.AppendState(head, state) })
}

// Push makes f a push of rows as they are now.
func (b *frameBuffers) Push(f *wire.Frame, state *wire.State, rows *wire.Rows, p *table.Part) {
	b.fill(f, rows, p, func(head []byte) []byte { return wire.AppendPushHead(head, state, rows) })
}

// End makes f the end of a round of pushes, without rows.
func (b *frameBuffers) End(f *wire.Frame, state *wire.State) {
	a := b.Answer(0)
	a.head = wire.AppendPushHead(a.head[:0], state, &wire.Rows{})
	f.Payload, f.Release = a.head, a
}

// fill brings rows into a frame, behind a head: packed, where most of their values are 0; else those of a long run from
// where they lie, and others gathered.
func (b *frameBuffers) fill(f *wire.Frame, rows *wire.Rows, p *table.Part, head func([]byte) []byte) {
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
			panic(fmt.Sprintf("frames: rows that were checked cannot be read: %v", err))
		}
		values = a.values
	}
	a.head = head(a.head[:0])
	f.Release = a
	if packed.Pays(values) {
		with, ok := packed.Append(a.head, values)
		if a.head = with; ok {
			f.Payload, f.Flags = a.head, f.Flags|wire.FlagPacked
			return
		}
	}
	if f.Body, f.Lent = wire.FloatBytes(values); f.Body == nil {
		a.head = wire.AppendFloats(a.head, values) // their memory is not as on the wire
	}
	f.Lent = f.Lent && lent
	f.Payload = a.head
}
