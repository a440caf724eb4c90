package membership

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/slotstate"
)

// TestStatesWhileJoining checks that a state that the head has superseded is garbage even while a replica joins the
// chain, because the joiner will have everything that was committed. If the head acknowledges early, however, the
// joiner may become the next head with the updates that it has copied.
func TestStatesWhileJoining(t *testing.T) {
	for _, c := range []struct {
		recovery string
		joining  bool
		garbage  int
	}{
		{"chain:2", false, 1},
		{"chain:2", true, 1},
		{"chain:2,async", false, 1},
		{"chain:2,async", true, 0},
		{"chain:2,every:5", true, 0},
	} {
		how, err := perdure.ParseRecovery(c.recovery)
		if err != nil {
			t.Fatal(err)
		}
		job := perdure.JobSpec{ID: "j", Slots: 1, Servers: 2, Shards: 1, Clocks: 100, Recovery: how}
		f := NewJobRecord(job, 1, 0, nil)
		f.Servers[0].Incarnation, f.Servers[1].Incarnation = 1, 1
		sv := &f.View.Shards[0]
		sv.Server, sv.Incarnation, sv.Epoch = 0, 1, 1
		if c.joining {
			sv.Joining = &protocol.Holder{Server: 1, Incarnation: 1}
		}
		core := New(f, 10, mutation.Set{})
		name := func(n uint64) string { return slotstate.Key{Generation: 1, Incarnation: 1, Number: n}.Name() }
		core.job.servers[0].server = &protocol.ObservedServer{Shards: map[perdure.ShardID]*protocol.ObservedShard{0: {
			ShardStatus: protocol.ShardStatus{Epoch: 1, Generation: 1, Ready: true, States: []string{name(2)}},
		}}}
		if got := core.LiveStates().Garbage([]string{name(1), name(2)}); len(got) != c.garbage {
			t.Errorf("%s, joining %t: %v is garbage", c.recovery, c.joining, got)
		}
	}
}
