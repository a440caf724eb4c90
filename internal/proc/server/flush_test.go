package server_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// head is the head of all shards' chains, played by the test.
type head struct {
	*speaker
	pos []uint64 // by shard: the end of its log
}

// playHead plays the head of chains whose tail is a real server, and adds a table to the shards.
func (f *fleet) playHead(tail int, spec perdure.TableSpec) *head {
	f.Helper()
	f.say(func(v *protocol.View, _ *protocol.ShardView) {
		for s := range v.Shards {
			f.setChain(&v.Shards[s], 9, tail)
		}
	})
	h := &head{f.speak(tail, wire.Hello{Role: wire.RoleServer, Index: 9}), make([]uint64, len(f.view.Shards))}
	h.slot = perdure.NoSlot
	spec.Consistency = f.job.Consistency
	table, err := json.Marshal(spec)
	if err != nil {
		f.Fatal(err)
	}
	for s := range h.pos {
		h.follow(perdure.ShardID(s), 0)
		h.entry(wire.Header{Kind: wire.KindAddTable, Shard: perdure.ShardID(s), Slot: perdure.NoSlot}, table)
		if got := h.committed(perdure.ShardID(s)); !slices.Equal(got, []uint64{0, 1}) {
			f.Fatalf("shard %d reported commits %v, want 0 and 1 immediately", s, got)
		}
	}
	return h
}

// follow sends the tail a Follow for a log that ends at a position.
func (h *head) follow(shard perdure.ShardID, end uint64) {
	h.send(wire.Header{Kind: wire.KindFollow, Shard: shard, Request: end, Slot: perdure.NoSlot}, nil)
}

// entry sends the next entry of a shard's log.
func (h *head) entry(e wire.Header, payload []byte) {
	h.pos[e.Shard]++
	e.Request = h.pos[e.Shard]
	if e.Slot >= 0 {
		e.Incarnation = 1
	}
	if e.Kind == wire.KindUpdate {
		e.Parts = max(e.Parts, 1)
	}
	h.send(e, payload)
}

// send sends a frame and waits for its immediate effects.
func (h *head) send(e wire.Header, payload []byte) {
	e.Generation, e.Epoch = h.f.view.Generation, h.f.view.Shards[e.Shard].Epoch
	if err := h.Send(wire.Frame{Header: e, Payload: payload}); err != nil {
		h.f.Fatal(err)
	}
	h.f.pass(atOnce)
}

// committed returns the commits that the tail has reported for a shard since the last call.
func (h *head) committed(shard perdure.ShardID) (pos []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = slices.DeleteFunc(h.got, func(f wire.Frame) bool {
		said := f.Kind == wire.KindCommitted && f.Shard == shard
		if said {
			pos = append(pos, f.Request)
		}
		return said
	})
	return pos
}

const (
	atOnce = time.Millisecond // a round trip
	soon   = 5 * time.Millisecond
)

// wide returns a table in which each row is a 64 KiB update.
func wide() perdure.TableSpec {
	spec := dense()
	spec.Dim = 16 << 10
	return spec
}

func row(spec perdure.TableSpec) []byte {
	return wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{Count: 1}, Values: make([]float32, spec.Dim)})
}

// TestWhenTheHeadHears checks when a tail reports commits to its head. If reads go to the tail, it reports several
// clocks together, after a short delay. It reports immediately after a Follow, when a process waits, and for large
// amounts. If the head answers reads itself, it is always notified immediately.
func TestWhenTheHeadHears(t *testing.T) {
	for _, model := range []string{"bsp", "vap:1", "asp", "ssp:1"} {
		waits := model == "bsp" || model == "vap:1"
		inFleet(t, model, "chain:2", 1, 2, func(f *fleet) {
			h := f.playHead(1, wide())
			said := func(when string, want ...uint64) {
				f.Helper()
				if got := h.committed(0); !slices.Equal(got, want) {
					f.Errorf("%s, %s: the tail reported %v, want %v", model, when, got, want)
				}
			}
			empty := func(clock perdure.Clock) {
				h.entry(wire.Header{Kind: wire.KindUpdate, Clock: clock}, nil)
				h.entry(wire.Header{Kind: wire.KindTick, Clock: clock}, nil)
			}
			empty(0)
			empty(1)
			if !waits {
				said("entries", 2, 3, 4, 5)
				return
			}
			said("entries")
			f.pass(soon)
			said("entries, a while ago", 5)
			again := func() { f.pass(2 * soon); h.committed(0) }
			h.entry(wire.Header{Kind: wire.KindUpdate, Clock: 2}, row(wide()))
			said("many bytes", 6)
			again()
			empty(3)
			h.entry(wire.Header{Kind: wire.KindFence}, nil)
			said("a fact", 9)
			again()
			empty(4)
			h.follow(0, 13)
			said("asked", 11)
			again()
			empty(5)
			said("entries before a Follow", 12, 13)
			again()
			empty(6)
			said("entries after that")
			again()
			h.entry(wire.Header{Kind: wire.KindEnd, Clock: 8}, nil)
			said("the job's end becomes known", 16)
			again()
			h.entry(wire.Header{Kind: wire.KindUpdate, Clock: 7}, nil)
			h.entry(wire.Header{Kind: wire.KindTick, Clock: 7}, nil)
			if got := h.committed(0); len(got) == 0 || got[len(got)-1] != 18 {
				t.Errorf("%s: at the job's end the tail reported %v, want 18", model, got)
			}
			f.pass(time.Second)
			said("nothing since")
		})
	}
}

// TestAnswersThatGoTogether checks that answers for which a worker waits from several shards of one server arrive
// together, and only slightly later if one of the shards has none.
func TestAnswersThatGoTogether(t *testing.T) {
	inShards(t, "bsp", "chain:2", 1, 2, 2, func(f *fleet) {
		h := f.playHead(1, dense())
		w := f.works(1, 0)
		w.say(wire.KindOpen, 0, nil, func(to *wire.Header) { to.Shard = 1 })
		step := func(kind wire.Kind, shard perdure.ShardID, clock perdure.Clock) {
			h.entry(wire.Header{Kind: kind, Shard: shard, Clock: clock}, nil)
		}
		for clock := range perdure.Clock(3) {
			said := func(when string, got, want int) {
				f.Helper()
				if got != want {
					f.Errorf("clock %d, %s: received answers of %d shards, want %d", clock, when, got, want)
				}
			}
			step(wire.KindUpdate, 0, clock)
			alone := 0
			if clock == 0 { // the number of shards is not known yet
				alone = 1
			}
			said("staged on one", w.staged(clock), alone)
			if clock == 2 {
				f.pass(soon)
				said("staged on one a while ago", w.staged(clock), 1)
			}
			h.entry(wire.Header{Kind: wire.KindUpdate, Shard: 1, Clock: clock, Part: 0, Parts: 2}, nil)
			said("staged on one, and a part on the other", w.staged(clock), max(alone, int(clock)-1))
			h.entry(wire.Header{Kind: wire.KindUpdate, Shard: 1, Clock: clock, Part: 1, Parts: 2}, nil)
			said("staged on both", w.staged(clock), 2)
			for shard := range perdure.ShardID(2) {
				first := wire.Rows{First: perdure.RowID(2 * shard), Count: 1}
				w.say(wire.KindGet, clock+1, wire.AppendRows(nil, &first), func(to *wire.Header) { to.Shard = shard })
			}
			before := w.count(wire.KindRows)
			step(wire.KindTick, 0, clock)
			said("one can be read", w.count(wire.KindRows)-before, 0)
			if clock == 2 {
				f.pass(soon)
				said("one can be read for a while", w.count(wire.KindRows)-before, 1)
			}
			step(wire.KindTick, 1, clock)
			said("both can be read", w.count(wire.KindRows)-before, 2)
		}
	})
}

// staged returns how many shards have reported a clock as staged but not applied.
func (s *speaker) staged(clock perdure.Clock) (shards int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.got {
		if s.got[i].Kind != wire.KindAck {
			continue
		}
		counts, err := wire.ParseCounts(s.got[i].Payload)
		if err == nil && counts.Staged == clock+1 && counts.Applied == clock {
			shards++
		}
	}
	return shards
}

// TestTicksThatGoTogether checks that a tick is sent down the chain together with the ticks of the other slots, or
// after a short delay. A clock takes effect only when all slots have ticked.
func TestTicksThatGoTogether(t *testing.T) {
	inFleet(t, "bsp", "chain:2", 2, 1, func(f *fleet) {
		p := f.playTail(9)
		f.chain(0, 9)
		f.table(dense())
		p.commit()
		ws := []*speaker{f.works(0, 0), f.works(0, 1)}
		at := func() uint64 {
			f.mu.Lock()
			defer f.mu.Unlock()
			return p.pos
		}
		tick := func(slot int, clock perdure.Clock) (sent uint64) {
			before := at()
			h := &head{speaker: ws[slot]}
			h.send(wire.Header{Kind: wire.KindTick, Clock: clock, Slot: perdure.Slot(slot), Incarnation: 1}, nil)
			return at() - before
		}
		stage := func(clock perdure.Clock) {
			for _, w := range ws {
				w.say(wire.KindUpdate, clock, add(1))
			}
			p.commit()
		}
		for clock := range perdure.Clock(2) {
			stage(clock)
			one := int(clock) % 2 // in the first clock it is slot 0, because no other slot has ticked before
			if first, last := tick(one, clock), tick(1-one, clock); first != 0 || last != 2 {
				t.Errorf("clock %d: the first tick forwarded %d entries, the last %d; want 0 and 2", clock, first, last)
			}
			p.commit()
		}
		stage(2)
		if sent := tick(0, 2); sent != 0 {
			t.Errorf("a single tick forwarded %d entries immediately", sent)
		}
		before := at()
		if f.pass(soon); at() != before+1 {
			t.Errorf("a single tick forwarded %d entries after a delay, want 1", at()-before)
		}
	})
}
