package server_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestEveryLossHasItsBase checks that a head which has received its base waits for a base again when it becomes head of
// a chain that acknowledges early and has lost its head.
func TestEveryLossHasItsBase(t *testing.T) {
	inFleet(t, "asp", "chain:3,async", 1, 3, func(f *fleet) {
		f.chain(0, 1, 2)
		f.table(dense())
		for head := 1; head <= 2; head++ {
			f.say(func(_ *protocol.View, sv *protocol.ShardView) {
				f.setChain(sv, []int{0, 1, 2}[head:]...)
				sv.Lost, sv.Base = true, nil
			})
			f.pass(time.Second)
			if st := f.shard(head); st.Ready || st.Applied == nil {
				t.Fatalf("the head of epoch %d is ready without its base: %+v", f.view.Shards[0].Epoch, st)
			}
			f.say(
				func(_ *protocol.View, sv *protocol.ShardView) { sv.Base = []perdure.Clock{perdure.Clock(10 * head)} })
			f.pass(time.Second)
			if st := f.shard(head); !st.Ready || st.MinClock != perdure.Clock(10*head) {
				t.Fatalf("the head of epoch %d does not start from its base: %+v", f.view.Shards[0].Epoch, st)
			}
			f.say(func(_ *protocol.View, sv *protocol.ShardView) { // a change without loss
				f.setChain(sv, []int{0, 1, 2}[head:]...)
				sv.Lost, sv.Base = false, nil
			})
		}
	})
}

// TestEveryMemberHasTheBase checks that the head of a lost shard is ready only once every member has the base. After
// that, the base is not sent to later heads.
func TestEveryMemberHasTheBase(t *testing.T) {
	inFleet(t, "asp", "none", 1, 2, func(f *fleet) {
		f.say(func(_ *protocol.View, sv *protocol.ShardView) {
			f.setChain(sv, 0, 1) // as while the shard is being moved
			sv.Lost = true
		})
		f.table(dense())
		f.pass(time.Second)
		f.Net.Cut(host(1), host(0), true) // the head sends but receives nothing
		f.say(func(_ *protocol.View, sv *protocol.ShardView) { sv.Base = []perdure.Clock{7} })
		f.pass(100 * time.Millisecond)
		if st := f.shard(0); st.Ready {
			t.Errorf("the head is ready before the other member has confirmed the base: %+v", st)
		}
		f.Net.Heal(host(1), host(0))
		f.pass(3 * time.Second)
		if st := f.shard(0); !st.Ready || st.MinClock != 7 {
			t.Fatalf("the head does not start from its base: %+v", st)
		}
		f.say(func(_ *protocol.View, sv *protocol.ShardView) {
			f.setChain(sv, 1)
			sv.Lost, sv.Base = false, nil
		})
		f.pass(time.Second)
		if st := f.shard(1); !st.Ready || st.MinClock != 7 {
			t.Errorf("the next head does not start from the base: %+v", st)
		}
	})
}

// TestEntriesThatNoHeadSends checks that entries which no correct head sends end their connection, or the server, with
// an explanation and never with a panic.
func TestEntriesThatNoHeadSends(t *testing.T) {
	slot := func(n perdure.Slot) func(*wire.Header) { return func(h *wire.Header) { h.Slot = n } }
	one := wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{Table: 7, Count: 1}, Values: []float32{1}})
	far := wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{First: 1 << 40, Count: 1}, Values: []float32{1}})
	few := wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{Count: 2}, Values: []float32{1}})
	repeats := func(h *wire.Header) { h.Slot, h.Flags = 0, wire.FlagDuplicateRows }
	spec := dense()
	spec.Consistency = perdure.Consistency{Kind: perdure.ASP}
	table, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		kind    wire.Kind
		payload []byte
		change  func(*wire.Header)
		says    string // expected in the server's log
		ends    string // expected in the server's error
	}{
		"an update of no slot":     {wire.KindUpdate, add(1), slot(-1), "invalid slot -1", ""},
		"a tick beyond the slots":  {wire.KindTick, nil, slot(1), "invalid slot 1", ""},
		"a fence of no slot":       {wire.KindFence, nil, slot(-1), "invalid slot -1", ""},
		"a decision beyond":        {wire.KindDecide, nil, slot(1 << 30), "invalid slot 1073741824", ""},
		"an update of no table":    {wire.KindUpdate, one, slot(0), "", "table 7 (of 1)"},
		"no table, gathered":       {wire.KindUpdate, one, repeats, "", "table 7 (of 1)"},
		"rows that are not here":   {wire.KindUpdate, far, slot(0), "", "row not on this shard"},
		"too few values":           {wire.KindUpdate, few, slot(0), "", "1 values for 2 rows"},
		"too few values, gathered": {wire.KindUpdate, few, repeats, "", "1 values for 2 rows"},
		"garbage":                  {wire.KindUpdate, []byte("garbage"), slot(0), "", "malformed payload"},
		"a base of other slots": {
			wire.KindBase,
			wire.AppendState(nil, &wire.State{Applied: make([]perdure.Clock, 2)}), slot(-1), "",
			"the base has 2 slots",
		},
		"an invalid base":      {wire.KindBase, []byte("{}"), slot(-1), "", "malformed payload"},
		"a table without rows": {wire.KindAddTable, []byte(`{"name":"x","dim":-1}`), slot(-1), "", "dim -1"},
		"an invalid cut":       {wire.KindPassCut, []byte("garbage"), slot(-1), "", "malformed payload"},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, "asp", "chain:2", 1, 1, func(f *fleet) {
				f.chain(9, 0)
				p := f.speak(0, wire.Hello{Role: wire.RoleServer, Index: 9})
				p.slot = perdure.NoSlot
				p.say(wire.KindFollow, 0, nil)
				if h := p.last(wire.KindHave); h == nil || h.Request != 0 {
					t.Fatalf("a follower of an empty log sends %+v", h)
				}
				at := func(pos uint64) func(*wire.Header) { return func(h *wire.Header) { h.Request = pos } }
				p.say(wire.KindAddTable, 0, table, at(1))
				if h := p.last(wire.KindCommitted); h == nil || h.Request != 1 {
					t.Fatalf("a table is not committed: %+v; the log is %q, the server ended with %v", h, f.logs[0].all,
						f.err(0))
				}
				p.say(c.kind, 0, c.payload, at(2), func(h *wire.Header) { h.Incarnation = 1 }, c.change)
				f.pass(time.Second)
				f.mu.Lock()
				err := f.err(0)
				f.mu.Unlock()
				if c.says != "" && (f.logs[0].about(c.says) != 1 || err != nil) {
					t.Errorf("log %q, the server ended with %v; want one line with %q", f.logs[0].all, err, c.says)
				}
				if c.ends != "" && (err == nil || !strings.Contains(err.Error(), c.ends)) {
					t.Errorf("the server ended with %v, want an error with %q", err, c.ends)
				}
			})
		})
	}
}
