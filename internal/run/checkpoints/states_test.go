package checkpoints

import (
	"bytes"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
)

// TestForkStates checks that a fork copies the slot states of its run, and that they are verified with a checkpoint.
func TestForkStates(t *testing.T) {
	f, _ := kept(t, 1)
	m, err := checkpoint.Latest(f.Store)
	must(t, err)
	key := slotstate.Key{Slot: 0, Generation: 1, Incarnation: 1, Number: 1}
	ref, err := store.PutState(t.Context(), f.Store, key, 5, store.WriteBytes([]byte("state")))
	must(t, err)
	next := m
	next.Generation, next.Segments = m.Generation+1, nil
	for _, seg := range m.Segments {
		s, err := checkpoint.Restore(f.Store, m, seg.Shard, nil)
		must(t, err)
		s.Generation = next.Generation
		if s.States = make([][]byte, len(s.Applied)); seg.Shard == 0 {
			s.States[0] = ref.Pack(7)
		}
		seg, err = checkpoint.WriteSegment(f.Store, s)
		must(t, err)
		next.Segments = append(next.Segments, seg)
	}
	must(t, checkpoint.Publish(f.Store, next))
	k, err := f.Choose()
	must(t, err)
	to, _ := forked(t)
	job := next.Job
	job.ID = "second"
	_, err = f.Fork(k, to, &job)
	must(t, err)
	if got, err := store.GetState(to.Store, ref); err != nil || string(got) != "state" {
		t.Errorf("the fork has %q, %v", got, err)
	}
	must(t, to.Verify(&bytes.Buffer{}, false))
	must(t, to.Store.Delete(ref.Name()))
	var out bytes.Buffer
	if err := to.Verify(&out, false); err == nil || !strings.Contains(out.String()+err.Error(), ref.Name()) {
		t.Errorf("without it: %v, %s", err, &out)
	}
}
