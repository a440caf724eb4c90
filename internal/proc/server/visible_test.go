package server_test

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestProcessOfAnEarlierLife checks that a process which appears in the same view as the shard's new epoch counts as a
// reader with cached rows of the previous epoch. Updates are not seen by all until it has opened the shard. A process
// that appears within an epoch has no cached rows yet.
func TestProcessOfAnEarlierLife(t *testing.T) {
	next := func(v *protocol.View) { v.Slots[1].Incarnation++ }
	for name, tc := range map[string]struct {
		seen perdure.Clock // before slot 1 has opened the shard
		news func(f *fleet)
	}{
		"together": {0, func(f *fleet) {
			f.say(func(v *protocol.View, sv *protocol.ShardView) { next(v); f.setChain(sv, 0) })
		}},
		"after": {1, func(f *fleet) {
			f.chain(0)
			f.say(func(v *protocol.View, _ *protocol.ShardView) { next(v) })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, "vap:1", "chain:2", 2, 1, func(f *fleet) {
				f.chain(0)
				f.table(dense())
				f.works(0, 1)
				tc.news(f)
				sees := func(when string, w *speaker, want perdure.Clock) {
					t.Helper()
					counts, err := wire.ParseCounts(w.last(wire.KindAck).Payload)
					if err != nil || counts.Applied != 1 || counts.Seen != want {
						t.Errorf("%s: %+v, %v; want 1 clock applied and %d seen", when, counts, err, want)
					}
				}
				first := f.works(0, 0)
				first.say(wire.KindUpdate, 0, add(1))
				sees("before slot 1 has opened the shard", first, tc.seen)
				f.works(0, 1)
				sees("since it has", first, 1)
			})
		})
	}
}
