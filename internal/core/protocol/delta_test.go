package protocol_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

func drawHolder(t *rapid.T) protocol.Holder {
	return protocol.Holder{
		Server:      rapid.IntRange(-1, 3).Draw(t, "server"),
		Incarnation: perdure.Incarnation(rapid.IntRange(0, 3).Draw(t, "incarnation")),
		Addr:        rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "addr"),
		Since:       rapid.Uint64Range(0, 3).Draw(t, "since"),
	}
}

func drawShard(t *rapid.T) protocol.ShardView {
	s := protocol.ShardView{
		Holder: drawHolder(t), Epoch: perdure.Epoch(rapid.IntRange(0, 3).Draw(t, "epoch")),
		Lost: rapid.Bool().Draw(t, "lost"),
	}
	for range rapid.IntRange(0, 2).Draw(t, "followers") {
		s.Followers = append(s.Followers, drawHolder(t))
	}
	if rapid.Bool().Draw(t, "joins") {
		h := drawHolder(t)
		s.Joining = &h
	}
	if rapid.Bool().Draw(t, "based") {
		s.Base = []perdure.Clock{perdure.Clock(rapid.IntRange(0, 1).Draw(t, "base"))}
	}
	return s
}

func drawSlot(t *rapid.T) protocol.SlotView {
	return protocol.SlotView{
		Incarnation: perdure.Incarnation(rapid.IntRange(0, 2).Draw(t, "incarnation")),
		Decided:     rapid.Bool().Draw(t, "decided"),
		Start:       perdure.Clock(rapid.IntRange(0, 2).Draw(t, "start")), Settled: rapid.Bool().Draw(t, "settled"),
		Interval: protocol.Interval{From: perdure.Clock(rapid.IntRange(0, 1).Draw(t, "from"))},
		Left:     rapid.Bool().Draw(t, "left"),
	}
}

// drawView draws a view of 5 shards and 4 or more slots that can follow an earlier view.
func drawView(t *rapid.T, before *protocol.View) protocol.View {
	v := protocol.View{
		Revision:   before.Revision + rapid.Uint64Range(1, 3).Draw(t, "revisions"),
		Generation: perdure.Generation(rapid.IntRange(1, 3).Draw(t, "generation")),
		Cut:        perdure.Clock(rapid.IntRange(0, 3).Draw(t, "cut")),
		End:        perdure.Clock(rapid.IntRange(0, 3).Draw(t, "end")), Pause: rapid.Bool().Draw(t, "pause"),
		Tentative: rapid.Bool().Draw(t, "tentative"),
		Durable:   perdure.Clock(rapid.IntRange(0, 3).Draw(t, "durable")), Done: rapid.Bool().Draw(t, "done"),
		Tables: before.Tables[:len(before.Tables):len(before.Tables)],
		Shards: append([]protocol.ShardView(nil), before.Shards...),
		Slots:  append([]protocol.SlotView(nil), before.Slots...),
	}
	for range rapid.IntRange(0, 2).Draw(t, "tables") {
		v.Tables = append(v.Tables, perdure.TableSpec{
			Name: rapid.SampledFrom([]string{"v", "w"}).Draw(t, "table"), Rows: 3, Dim: 2,
			Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: perdure.Consistency{Kind: perdure.BSP},
		})
	}
	for range rapid.IntRange(0, 4).Draw(t, "shards") {
		v.Shards[rapid.IntRange(0, len(v.Shards)-1).Draw(t, "shard")] = drawShard(t)
	}
	for range rapid.IntRange(0, 2).Draw(t, "joined") {
		v.Slots = append(v.Slots, drawSlot(t))
	}
	v.Roster = before.Roster + rapid.Uint64Range(0, 1).Draw(t, "rosters")
	for range rapid.IntRange(0, 3).Draw(t, "slots") {
		v.Slots[rapid.IntRange(0, len(v.Slots)-1).Draw(t, "slot")] = drawSlot(t)
	}
	return v
}

// changed returns the indexes at which two lists differ.
func changed[N ~int32, T any](older, newer []T) (list []N) {
	for i := range newer {
		if i >= len(older) || !reflect.DeepEqual(older[i], newer[i]) {
			list = append(list, N(i))
		}
	}
	return list
}

func merged[N ~int32](a, b []N) []N {
	all := append(slices.Clone(a), b...)
	slices.Sort(all)
	return slices.Compact(all)
}

// TestViewDelta checks that a delta turns the view that it starts from, and every view in between, into the newest one,
// and that no other view accepts it.
func TestViewDelta(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		views := []protocol.View{drawView(t,
			&protocol.View{Revision: 1, Shards: make([]protocol.ShardView, 5), Slots: make([]protocol.SlotView, 4)})}
		var shards []perdure.ShardID
		var slots []perdure.Slot
		for range rapid.IntRange(1, 3).Draw(t, "views") {
			before := &views[len(views)-1]
			next := drawView(t, before)
			shards, slots = merged(shards, changed[perdure.ShardID](before.Shards, next.Shards)),
				merged(slots, changed[perdure.Slot](before.Slots, next.Slots))
			views = append(views, next)
		}
		oldest, newest := &views[0], &views[len(views)-1]
		tables := len(newest.Tables) > len(oldest.Tables)
		b, err := json.Marshal(protocol.DeltaOf(newest, oldest.Revision, tables, shards, slots))
		if err != nil {
			t.Fatal(err)
		}
		var d protocol.ViewDelta
		if err := json.Unmarshal(b, &d); err != nil {
			t.Fatal(err)
		}
		for i := range views[:len(views)-1] {
			kept := views[i]
			kept.Shards, kept.Slots = slices.Clone(kept.Shards), slices.Clone(kept.Slots)
			got, err := d.Apply(&views[i])
			if err != nil || !reflect.DeepEqual(got, *newest) {
				t.Fatalf("%s makes\n%+v of\n%+v, want\n%+v (error: %v)", b, got, views[i], newest, err)
			}
			if !reflect.DeepEqual(views[i], kept) {
				t.Fatalf("the older view has become %+v", views[i])
			}
		}
		earlier := *oldest
		earlier.Revision--
		for _, v := range []*protocol.View{newest, &earlier, {}} {
			if _, err := d.Apply(v); !errors.Is(err, protocol.ErrViewGap) {
				t.Fatalf("%s, for revision %d: %v", b, v.Revision, err)
			}
		}
	})
}

// TestViewDeltaOfAnotherShape checks that a delta for a job of another shape, or with other tables, has no effect.
func TestViewDeltaOfAnotherShape(t *testing.T) {
	v := smallView()
	for _, d := range []protocol.ViewDelta{
		{Base: 7, Revision: 8, Shards: []protocol.ShardChange{{Shard: 2}}},
		{Base: 7, Revision: 8, Shards: []protocol.ShardChange{{Shard: -1}}},
		{Base: 7, Revision: 8, Slots: []protocol.SlotChange{{Slot: 2}}},
		{Base: 7, Revision: 8, Slots: []protocol.SlotChange{{Slot: -1}}},
		{Base: 7, Revision: 8, Tables: []perdure.TableSpec{{Name: "v"}}},
		{Base: 6, Revision: 7},
		{Base: 8, Revision: 9},
	} {
		if _, err := d.Apply(&v); !errors.Is(err, protocol.ErrViewGap) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", d, err)
		}
	}
}

func smallView() protocol.View {
	return protocol.View{
		Revision: 7, Tables: []perdure.TableSpec{{Name: "w"}}, Shards: make([]protocol.ShardView, 2),
		Slots: make([]protocol.SlotView, 1),
	}
}

// FuzzViewDelta checks that for any input a view either rejects the delta, or stays a valid view of its job with a
// higher revision.
func FuzzViewDelta(f *testing.F) {
	f.Add([]byte(`{"base":7,"revision":8,"shards":[{"shard":1,"server":2,"epoch":3}],` +
		`"slots":[{"slot":0,"settled":true}],"tables":[{"name":"w"}]}`))
	f.Add([]byte(`{"base":6,"revision":9,"shards":[{"shard":-1}]}`))
	f.Add([]byte(`{"base":8,"revision":18446744073709551615}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d protocol.ViewDelta
		if json.Unmarshal(b, &d) != nil {
			return
		}
		v, kept := smallView(), smallView()
		got, err := d.Apply(&v)
		if !reflect.DeepEqual(v, kept) {
			t.Fatalf("the view has become %+v", v)
		}
		if err == nil && (got.Revision <= v.Revision || len(got.Shards) != 2 || len(got.Slots) != 1 ||
			len(got.Tables) < 1 || got.Tables[0] != v.Tables[0]) {
			t.Fatalf("%s makes %+v", b, got)
		}
		if err != nil && (!errors.Is(err, protocol.ErrViewGap) || got.Revision != 0) {
			t.Fatalf("%v, with %+v", err, got)
		}
	})
}
