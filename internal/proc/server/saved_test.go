package server_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/server"
)

// TestNextHeadSaves checks that only the head of a chain with checkpoints writes the segment. If it dies meanwhile, the
// next head writes it. The other replicas, including a joiner, wait at the cut.
func TestNextHeadSaves(t *testing.T) {
	inFleet(t, "asp", "chain:3,checkpoint:2", 1, 4, func(f *fleet) {
		full := f.Disk
		f.chain(0, 1, 2)
		f.table(dense())
		w := f.works(0, 0)
		full.SetLimit(1)
		for clock := range perdure.Clock(3) {
			w.say(wire.KindUpdate, clock, add(1))
		}
		f.say(func(_ *protocol.View, sv *protocol.ShardView) {
			joining := f.holder(3, f.view.Revision)
			sv.Joining = &joining
		})
		f.pass(3 * time.Second)
		for i := range 4 {
			st := f.shard(i)
			if len(st.Segments) > 0 || i < 3 && st.MinClock != 2 || i == 3 && !st.Joined {
				t.Errorf("server %d at a cut that cannot be written: %+v", i, st)
			}
			if tries := st.Problem != ""; tries != (i == 0) {
				t.Errorf("server %d tries to write: %v", i, tries)
			}
		}

		f.stop(0)
		f.pass(time.Second)
		if names := segments(f); len(names) > 0 {
			t.Errorf("the dead head left %v", names)
		}
		full.SetLimit(0)
		f.chain(1, 2, 3)
		f.pass(time.Second)
		saved := f.shard(1).Segments
		if names := segments(f); len(saved) != 1 || saved[0].Cut != 2 || !slices.Equal(names, []string{saved[0].File}) {
			t.Fatalf("the next head has saved %+v; on the disk are %v", saved, names)
		}
		for i := 1; i <= 3; i++ {
			if st := f.shard(i); !reflect.DeepEqual(st.Segments, saved) || st.MinClock != 3 {
				t.Errorf("server %d after the cut: %+v", i, st)
			}
		}
		if held := f.end(1, 2, 3); held[0] != held[1] || held[0] != held[2] {
			t.Errorf("the replicas differ: %q", held)
		}
	})
}

// TestRestoreIsTriedAgain checks a server that learns late of a rollback, when the checkpoint may already be deleted
// because others have continued. The server waits for a newer view, but not forever.
func TestRestoreIsTriedAgain(t *testing.T) {
	inFleet(t, "asp", "chain:2,checkpoint:2", 1, 2, func(f *fleet) {
		f.chain(0, 1)
		f.say(func(v *protocol.View, _ *protocol.ShardView) { v.Generation, v.Cut, v.Durable = 2, 2, 2 })
		f.pass(3 * time.Second)
		for i := range 2 {
			if st := f.shard(i); st.Ready || !strings.Contains(st.Problem, "no checkpoint") {
				t.Errorf("server %d without a checkpoint: %+v", i, st)
			}
		}
		f.chain(1)
		f.pass(10 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.err(0) != nil || !errors.Is(f.err(1), server.ErrCheckpoint) {
			t.Errorf("the unneeded server ended with %v, the other with %v", f.err(0), f.err(1))
		}
	})
}

// segments lists the complete segments on the servers' disk.
func segments(f *fleet) []string {
	f.Helper()
	names, err := f.Disk.List("checkpoint")
	if err != nil {
		f.Fatal(err)
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".segment") })
}
