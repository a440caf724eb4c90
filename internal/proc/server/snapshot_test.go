package server_test

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// joins adds a server to the shard's chain as a joiner, and waits until it has caught up.
func (f *fleet) joins(i int) {
	f.Helper()
	f.say(func(v *protocol.View, sv *protocol.ShardView) {
		h := f.holder(i, v.Revision)
		sv.Joining = &h
	})
	for range 100 {
		if f.shard(i).Joined {
			return
		}
		f.pass(50 * time.Millisecond)
	}
	f.Fatalf("server %d does not join: %+v; log is %q", i, f.shard(i), f.logs[i].all)
}

// letJoin adds a server as a joiner without waiting for it.
func (f *fleet) letJoin(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.holder(i, f.view.Revision+1)
	f.view.Shards = slices.Clone(f.view.Shards)
	f.view.Shards[0].Joining = &h
	f.view.Revision++
	for _, c := range f.told {
		_ = c.Send(wire.Control(wire.KindView, f.view)) // the servers are connected
	}
}

// block returns an update of one row of a table.
func block(table perdure.TableID, sparse bool, row perdure.RowID, values ...float32) []byte {
	rows := wire.Rows{Table: table, First: row, Count: 1}
	if sparse {
		rows = wire.Rows{Table: table, IDs: []perdure.RowID{row}, Count: 1}
	}
	return wire.AppendBlock(nil, &wire.Block{Rows: rows, Values: values})
}

// once finishes a clock of all slots with one update each.
func once(ws []*speaker, clock perdure.Clock, payload []byte) {
	for _, w := range ws {
		w.say(wire.KindUpdate, clock, payload)
	}
	for _, w := range ws {
		w.say(wire.KindTick, clock, nil)
	}
}

// snapshotCase describes events before and after a snapshot.
type snapshotCase struct {
	before, after func(f *fleet, ws []*speaker)
	applied       perdure.Clock // of slot 0, at the end
}

func partOf(i uint16) func(*wire.Header) {
	return func(h *wire.Header) { h.Part, h.Parts = i, 2 }
}

func ticked(h *wire.Header) { h.Flags |= wire.FlagTicked }

func repeats(h *wire.Header) { h.Flags |= wire.FlagDuplicateRows }

func tickAll(ws []*speaker, clock perdure.Clock) {
	for _, w := range ws {
		w.say(wire.KindTick, clock, nil)
	}
}

func clocks(from, to perdure.Clock, payload []byte) func(*fleet, []*speaker) {
	return func(_ *fleet, ws []*speaker) {
		for clock := from; clock < to; clock++ {
			once(ws, clock, payload)
		}
	}
}

func snapshotCases() map[string]snapshotCase {
	all := pendingCases()
	maps.Copy(all, map[string]snapshotCase{
		"rows":        {clocks(0, 2, add(1.5)), clocks(2, 3, add(2)), 3},
		"a rule":      {clocks(0, 2, block(1, false, 1, 3)), clocks(2, 4, block(1, false, 1, 5)), 4},
		"sparse rows": {clocks(0, 2, block(2, true, 1<<50, 3)), clocks(2, 3, block(2, true, 1<<51, 5)), 3},
		"evicted before": {func(f *fleet, ws []*speaker) {
			once(ws, 0, block(2, true, 1<<50, 3))
			clocks(1, 6, block(2, true, 7, 1))(f, ws)
		}, clocks(6, 7, block(2, true, 1<<50, 5)), 7},
		"evicted after": {func(f *fleet, ws []*speaker) {
			once(ws, 0, block(2, true, 1<<50, 3))
			once(ws, 1, block(2, true, 1<<51, 3))
		}, clocks(2, 4, block(2, true, 7, 1)), 4},
		"saved state": {clocks(0, 1, wire.AppendStateBlock(add(1), []byte("saved"))), clocks(1, 2, add(1)), 2},
	})
	return all
}

// pendingCases contain updates that are not applied yet, or never will be.
func pendingCases() map[string]snapshotCase {
	return map[string]snapshotCase{
		"a staged update": {func(_ *fleet, ws []*speaker) {
			ws[0].say(wire.KindUpdate, 0, wire.AppendStateBlock(add(3), []byte("staged")))
			ws[1].say(wire.KindUpdate, 0, add(4))
		}, func(_ *fleet, ws []*speaker) { tickAll(ws, 0) }, 1},
		"a ticked update": {func(_ *fleet, ws []*speaker) {
			ws[0].say(wire.KindUpdate, 0, add(3))
			ws[0].say(wire.KindTick, 0, nil)
			ws[0].say(wire.KindUpdate, 1, add(5), ticked)
		}, func(_ *fleet, ws []*speaker) { ws[1].say(wire.KindUpdate, 0, add(4), ticked) }, 1},
		"part of an update": {func(_ *fleet, ws []*speaker) {
			ws[0].say(wire.KindUpdate, 0, add(3), partOf(1))
			ws[1].say(wire.KindUpdate, 0, add(5), partOf(0), ticked)
		}, func(_ *fleet, ws []*speaker) {
			ws[0].say(wire.KindUpdate, 0, add(4), partOf(0))
			ws[1].say(wire.KindUpdate, 0, add(6), partOf(1))
			tickAll(ws[:1], 0)
		}, 1},
		"rows named twice": {func(_ *fleet, ws []*speaker) {
			ws[0].say(wire.KindUpdate, 0, append(add(1), add(3)...), repeats)
			ws[1].say(wire.KindUpdate, 0, add(4))
		}, func(_ *fleet, ws []*speaker) { tickAll(ws, 0) }, 1},
		"the job's end": {func(f *fleet, ws []*speaker) {
			f.say(func(v *protocol.View, _ *protocol.ShardView) { v.End = 1 })
		}, clocks(0, 2, add(1)), 1},
		"a lost update": {func(f *fleet, ws []*speaker) {
			f.say(func(v *protocol.View, _ *protocol.ShardView) {
				v.Slots[0] = protocol.SlotView{Incarnation: 2, Decided: true, Start: 2}
			})
		}, func(_ *fleet, ws []*speaker) {
			ws[1].say(wire.KindUpdate, 0, add(4), ticked)
			ws[1].say(wire.KindUpdate, 1, add(5), ticked)
		}, 2},
		"a decision carried out": {func(f *fleet, _ []*speaker) {
			f.say(func(v *protocol.View, _ *protocol.ShardView) {
				v.Slots[0] = protocol.SlotView{Incarnation: 2, Decided: true}
			})
			f.works(0, 0).say(wire.KindUpdate, 0, add(3)) // kept for the decision of the next epoch's head
		}, func(*fleet, []*speaker) {}, 0},
		"fences": {func(f *fleet, ws []*speaker) {
			ws[0].say(wire.KindUpdate, 0, add(3))
			f.say(func(v *protocol.View, _ *protocol.ShardView) { v.Slots[0] = protocol.SlotView{Incarnation: 3} })
		}, func(*fleet, []*speaker) {}, 0},
	}
}

// TestSnapshotHasEverything checks that a snapshot contains every part of a shard's state. Whatever happened before it
// and continues after it, the joiner ends up byte for byte equal to the other replica.
func TestSnapshotHasEverything(t *testing.T) {
	for name, c := range snapshotCases() {
		t.Run(name, func(t *testing.T) {
			inFleet(t, "bsp", "chain:2", 2, 2, func(f *fleet) {
				f.chain(0)
				f.table(dense())
				spec := dense()
				spec.Name, spec.Rule = "m", perdure.Rule{Kind: perdure.RuleMomentum, Rate: 0.1, Momentum: 0.9}
				f.table(spec)
				f.table(perdure.TableSpec{
					Name: "s", Sparse: true, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd},
					Evict: 2,
				})
				ws := []*speaker{f.works(0, 0), f.works(0, 1)}
				c.before(f, ws)
				f.joins(1)
				c.after(f, ws)
				if got := f.counted(0); got.MinClock < min(c.applied, 1) {
					t.Fatalf("nothing was applied after all: %+v", got)
				}
				f.chain(0, 1)
				f.pass(time.Second)
				if one, other := f.shard(0), f.shard(1); !other.Ready || !reflect.DeepEqual(one.Fences, other.Fences) {
					t.Errorf("the joiner reports %+v, the other %+v", other, one)
				}
				held := f.end(0, 1)
				if f.ended[0].Applied[0] != c.applied {
					t.Errorf("slot 0 has %v applied, want %d", f.ended[0].Applied, c.applied)
				}
				if held[0] != held[1] {
					t.Errorf("the joiner has\n%s, the other\n%s", held[1], held[0])
				}
			})
		})
	}
}

// TestMovedShardGoesOnAtItsCut checks that a shard which moves to another server, or temporarily has a second replica,
// keeps its next cut, the job's end, and its saved segments.
func TestMovedShardGoesOnAtItsCut(t *testing.T) {
	for _, c := range []struct {
		name    string
		joins   perdure.Clock // when
		with    int           // clocks finished while it joins
		members []int         // at the end
	}{{"before a cut is saved", 1, 1, []int{1}}, {"after one", 3, 0, []int{1}}, {"as a replica", 1, 1, []int{0, 1}}} {
		t.Run(c.name, func(t *testing.T) {
			inFleet(t, "asp", "checkpoint:2", 1, 2, func(f *fleet) {
				f.chain(0)
				f.table(dense())
				w := []*speaker{f.works(0, 0)}
				for clock := range c.joins {
					once(w, clock, add(1))
				}
				f.say(func(v *protocol.View, _ *protocol.ShardView) { v.End = 7 })
				f.pass(time.Second)
				f.joins(1)
				for i := range c.with {
					once(w, c.joins+perdure.Clock(i), add(1))
				}
				f.chain(0, 1)
				f.pass(time.Second)
				if len(c.members) == 1 {
					f.chain(1)
					f.pass(time.Second)
				}
				w = []*speaker{f.works(c.members[0], 0)}
				for clock := c.joins + perdure.Clock(c.with); clock < 9; clock++ {
					once(w, clock, add(1))
				}
				f.pass(time.Second)
				var cuts []perdure.Clock
				for _, g := range f.shard(1).Segments {
					cuts = append(cuts, g.Cut)
				}
				if want := []perdure.Clock{2, 4, 6, 7}; !slices.Equal(cuts, want) {
					t.Errorf("it has saved %v, want %v", cuts, want)
				}
				if got := w[0].counts(); got.Applied != 7 {
					t.Errorf("it has applied %+v, want 7 clocks", got)
				}
				if held := f.end(c.members...); held[0] != held[len(held)-1] {
					t.Errorf("one has\n%s, the other\n%s", held[0], held[1])
				}
			})
		})
	}
}

// TestJoinsWhileAllGoesOn checks that a server can join during updates of all kinds: the snapshot is of one moment, and
// later updates follow it.
func TestJoinsWhileAllGoesOn(t *testing.T) {
	inFleet(t, "bsp", "chain:2", 2, 2, func(f *fleet) {
		f.chain(0)
		spec := dense()
		spec.Rule = perdure.Rule{Kind: perdure.RuleMomentum, Rate: 0.1, Momentum: 0.9}
		f.table(spec)
		f.table(perdure.TableSpec{Name: "s", Sparse: true, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Evict: 3})
		ws := []*speaker{f.works(0, 0), f.works(0, 1)}
		send := func(w *speaker, kind wire.Kind, clock perdure.Clock, flags uint16, part uint16, payload []byte) {
			h := wire.Header{
				Kind: kind, Flags: flags, Generation: 1, Epoch: 1, Slot: w.slot, Incarnation: 1,
				Clock: clock, Part: part,
			}
			if kind == wire.KindUpdate {
				h.Parts = 2
			}
			if err := w.Send(wire.Frame{Header: h, Payload: payload}); err != nil {
				t.Fatal(err)
			}
		}
		joined := func() bool { return f.shard(1).Joined }
		after := 0
		for clock := perdure.Clock(0); after < 200; clock++ {
			if clock == 50 {
				f.letJoin(1)
			}
			for slot, w := range ws {
				v := float32(clock) + float32(slot)/3
				send(w, wire.KindUpdate, clock, 0, 0,
					append(block(0, false, perdure.RowID(clock%4), v), block(0, false, 0, v)...))
				flags := uint16(0)
				if slot == 0 {
					flags = wire.FlagTicked
				}
				send(w, wire.KindUpdate, clock, flags, 1,
					wire.AppendStateBlock(block(1, true, perdure.RowID(clock)<<40, v), []byte{byte(clock)}))
				if slot == 1 {
					send(w, wire.KindTick, clock, 0, 0, nil)
				}
			}
			if <-time.After(100 * time.Microsecond); joined() {
				after++
			}
			if clock > 20_000 {
				t.Fatalf("it does not join: %+v; %q", f.shard(1), f.logs[1].all)
			}
		}
		f.pass(time.Second)
		f.chain(0, 1)
		f.pass(time.Second)
		if held := f.end(0, 1); held[0] != held[1] {
			t.Errorf("the joiner has\n%s, the other\n%s", held[1], held[0])
		}
	})
}
