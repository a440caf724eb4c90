package server_test

import (
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
)

// TestSmallCopies checks that small shards are copied concurrently. Each copy waits for its receiver a few times, which
// dominates if answers are slow.
func TestSmallCopies(t *testing.T) {
	const shards, delay = 48, 20 * time.Millisecond
	slow := func(cfg *server.Config) {
		l := transport.NewFaultLayer(cfg.Network)
		l.SetLink(transport.LinkModel{Delay: delay})
		cfg.Network = l
	}
	inShards(t, "asp", "chain:2", 1, 2, shards, func(f *fleet) {
		change := func(h func(sv *protocol.ShardView)) {
			f.say(func(v *protocol.View, _ *protocol.ShardView) {
				for i := range v.Shards {
					h(&v.Shards[i])
				}
			})
		}
		change(func(sv *protocol.ShardView) { f.setChain(sv, 0) })
		f.pass(time.Second)
		began := time.Now()
		change(func(sv *protocol.ShardView) {
			h := f.holder(1, f.view.Revision)
			sv.Joining = &h
		})
		joined := func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			all := f.status[1].Shards
			return len(all) == shards && !slices.ContainsFunc(all,
				func(st protocol.ShardStatus) bool { return !st.Joined })
		}
		for !joined() {
			if f.pass(delay); time.Since(began) > time.Minute {
				f.Fatalf("server 1 does not join: %+v", f.status[1])
			}
		}
		if took := time.Since(began); took > 40*delay {
			t.Errorf("copying %d small shards took %v, which is %d round trips", shards, took, took/delay)
		} else {
			t.Logf("%d small shards were copied in %v", shards, took)
		}
	}, slow)
}
