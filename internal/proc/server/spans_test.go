package server_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// of makes an update cover n clocks.
func of(n uint16) func(h *wire.Header) { return func(h *wire.Header) { h.Clocks = n } }

// TestUpdatesOfSeveralClocks checks that an update of several clocks counts as all of them on every replica, including
// a replica that joins when only a part of the update has arrived.
func TestUpdatesOfSeveralClocks(t *testing.T) {
	inFleet(t, "asp", "chain:2", 2, 3, func(f *fleet) {
		f.chain(0, 1)
		f.table(dense())
		ws := []*speaker{f.works(0, 0), f.works(0, 1)}
		reads := f.works(1, 0)
		ws[0].say(wire.KindUpdate, 0, add(1))
		ws[0].say(wire.KindUpdate, 1, add(2), of(5))
		if got := reads.counts(); got.Applied != 6 || got.Staged != 6 {
			t.Errorf("the tail counts %+v, want 6 clocks", got)
		}
		if v, ok := ws[0].row(0); !ok || v != 3 {
			t.Errorf("the row is %v, %v; want 3", v, ok)
		}
		ws[1].say(wire.KindUpdate, 0, wire.AppendStateBlock(add(4), []byte("saved")), of(3), partOf(0))
		f.joins(2)
		f.chain(0, 1, 2)
		ws = []*speaker{f.works(0, 0), f.works(0, 1)}
		reads = f.works(2, 1)
		ws[1].say(wire.KindUpdate, 0, add(8), of(3), partOf(1))
		ws[1].say(wire.KindUpdate, 3, add(16), of(9))
		ws[0].say(wire.KindUpdate, 3, add(32)) // is already there
		f.pass(time.Second)
		if got := reads.counts(); got.Applied != 12 || f.shard(0).MinClock != 6 || f.shard(0).Seq != 18 {
			t.Errorf("the joiner counts %+v and the head %+v; want 12 clocks, MinClock 6 and 18 updates", got,
				f.shard(0))
		}
		if v, ok := reads.row(6); !ok || v != 31 {
			t.Errorf("the row is %v, %v; want 31", v, ok)
		}
		if held := f.end(0, 1, 2); held[1] != held[0] || held[2] != held[0] {
			t.Errorf("they hold\n%s\n%s\n%s", held[0], held[1], held[2])
		}
	})
}

// TestTornUpdate checks that a sender is rejected with one line in the log if the shard has some clocks of its update
// and lacks others. No replica applies any part of it.
func TestTornUpdate(t *testing.T) {
	for name, c := range map[string]struct {
		model    string
		from, to perdure.Clock
		applied  perdure.Clock
	}{
		"starts before":    {"asp", 1, 4, 2},
		"crosses a cut":    {"asp", 2, 7, 2},
		"of ticked clocks": {"bsp", 0, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, c.model, "chain:2,checkpoint:5", 1, 2, func(f *fleet) {
				f.chain(0, 1)
				f.table(dense())
				w := f.works(0, 0)
				if c.applied > 0 {
					w.say(wire.KindUpdate, 0, add(1), of(uint16(c.applied)))
				}
				w.say(wire.KindUpdate, c.from, add(5), of(uint16(c.to-c.from)))
				f.pass(time.Second)
				if w.last(wire.KindRefuse) == nil || f.logs[0].about("the update is rejected") != 1 {
					t.Errorf("its sender was not rejected; log is %q", f.logs[0].all)
				}
				if other := f.logs[1]; f.err(0) != nil || f.err(1) != nil || len(other.all) > 0 {
					t.Errorf("the follower's log is %q; the servers ended with %v, %v", other.all, f.err(0), f.err(1))
				}
				w = f.works(0, 0)
				if got := w.counts(); got.Staged != c.applied || got.Applied != c.applied {
					t.Errorf("it counts %+v, want %d clocks", got, c.applied)
				}
				w.say(wire.KindUpdate, c.applied, add(2), func(h *wire.Header) { h.Flags = wire.FlagTicked })
				if got, ok := w.row(0); !ok || got != 2+float32(min(c.applied, 1)) {
					t.Errorf("the row is %v, %v", got, ok)
				}
				if held := f.end(0, 1); held[1] != held[0] {
					t.Errorf("they hold\n%s\n%s", held[0], held[1])
				}
			})
		})
	}
}
