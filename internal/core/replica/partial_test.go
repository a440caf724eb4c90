package replica

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// A shard is restored, and lost updates only count. Each reader that opens it is sent a count up to the dead slot's
// start. The rows contain none of those updates, and no read waits for them.
func TestRestoredPartial(t *testing.T) {
	for _, model := range []string{"asp", "ssp:1", "bsp"} {
		b := newBench(t, model, "resend:100,partial", 2)
		v := b.view // slot 1's process died at clock 3, where the next one starts
		v.Revision, v.Shards = 2, []protocol.ShardView{{Epoch: 2, Restored: true}}
		v.Slots = []protocol.SlotView{
			{Incarnation: 1, Decided: true, Settled: true}, {Incarnation: 2, Decided: true, Settled: true, Start: 3},
		}
		r := New(Settings{Job: *b.job})
		b.Replica, b.view = r, v
		b.SetView(&b.view, Role{Head: true, Reads: true}, false)
		b.SetContent(Content{States: make([][]byte, 2), Applied: make([]perdure.Clock, 2)}, &b.view)
		b.ApplyView()
		for slot, ended := range []perdure.Clock{4, 3} {
			b.Open(Open{Reader: b.readers[slot], Pos: b.pos, EndedClocks: ended})
		}
		b.turn()
		b.AnswerOpens(b.pos)
		if got := b.State.intake.Counts(1); got.Staged != 3 || got.Ticked != 3 {
			t.Errorf("%s: slot 1's next process is sent %+v", model, got)
		}
		for clock := range perdure.Clock(4) {
			b.update(0, clock, 0)
			b.tick(0, clock)
		}
		b.settle()
		if b.AwaitsResend() {
			t.Errorf("%s: a read waits for lost updates", model)
		}
		var st protocol.ShardStatus
		b.Status(&b.view, &st)
		applied := map[bool]string{false: "[4 3]", true: "[3 3]"}[model == "bsp"]
		seq := map[bool]uint64{false: 4, true: 3}[model == "bsp"]
		if fmt.Sprint(b.State.Applied()) != applied || st.Seq != seq || st.MinClock != 3 || !st.ResendComplete {
			t.Errorf("%s: it has applied %v, with %d updates: %+v", model, b.State.Applied(), st.Seq, st)
		}
	}
}
