package outbox

import (
	"slices"
	"testing"

	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/wire"
)

// A restarted shard is not sent a reference that a later one supersedes, unless a checkpoint may be made between the
// two. Updates keep their length. In all other cases the shard is sent the same as before.
func TestSuperseded(t *testing.T) {
	ref := func(n uint64) []byte {
		return slotstate.Ref{Key: slotstate.Key{Generation: 1, Incarnation: 1, Number: n}}.Pack(0)
	}
	for _, c := range []struct {
		name, how string
		change    func(v *protocol.ShardView)
		want      []uint64 // the references that it is sent, in clocks 5, 6, 7 and 8; 0: none
	}{
		{"resend", "resend:7", func(v *protocol.ShardView) { v.Restored = true }, []uint64{0, 2, 0, 4}}, // a cut of 7
		{"none", "none", func(v *protocol.ShardView) { v.Lost = true }, []uint64{0, 0, 0, 4}},
		{"it was not lost", "none", func(*protocol.ShardView) {}, []uint64{1, 2, 3, 4}},
	} {
		b, s := asked(t, "asp", c.how, Limits{Window: 1 << 20, Retain: 1 << 20})
		for n := uint64(1); n <= 4; n++ {
			b.SaveState(ref(n))
			if err := s.Fill(consistency.Origin{Basis: -1}); err != nil {
				t.Fatal(err)
			}
			b.Seal()
			b.Next()
		}
		c.change(&b.jobView.view.Shards[0])
		before := s.kept[0].payloadBytes()
		frames, err := s.Resend(protocol.Counts{Staged: 5, Ticked: 5, Applied: 5, Seen: 5}, wire.Header{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for i := range frames {
			blocks := wire.ReadBlocks(frames[i].Payload)
			for blocks.Next() {
			}
			n := uint64(0)
			if r := slotstate.DecodeRef(blocks.State); r != nil {
				n = r.Number
			}
			got = append(got, n)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: sent %v, want %v", c.name, got, c.want)
		}
		if after := s.kept[0].payloadBytes(); after != before || int64(len(frames[0].Payload)) != before {
			t.Errorf("%s: an update of %d bytes now has %d", c.name, before, after)
		}
	}
}
