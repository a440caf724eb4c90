package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

func storedState(t *testing.T, fsys disk.FS, number uint64) slotstate.Ref {
	t.Helper()
	state := fmt.Appendf(nil, "state %d", number)
	key := slotstate.Key{Slot: 1, Generation: 1, Incarnation: 1, Number: number}
	ref, err := store.PutState(t.Context(), ckpt(fsys), key, int64(len(state)), store.WriteBytes(state))
	must(t, err)
	return ref
}

// withState publishes a checkpoint of a cut that refers to a slot state of that number.
func withState(t *testing.T, fsys disk.FS, cut perdure.Clock, number uint64) (Manifest, error) {
	t.Helper()
	m, err := save(fsys, 1, cut)
	must(t, err)
	s, err := Restore(ckpt(fsys), m, 1, nil)
	must(t, err)
	s.States = make([][]byte, len(s.Applied))
	s.States[1] = storedState(t, fsys, number).Pack(0)
	m.Segments[1], err = WriteSegment(ckpt(fsys), s)
	must(t, err)
	return m, Publish(ckpt(fsys), m)
}

// TestManifestStates: a checkpoint names the slot states that its segments refer to. A missing one is reported, and
// each is verified to the last byte.
func TestManifestStates(t *testing.T) {
	fsys := newFolder(t)
	m, err := withState(t, fsys, 20, 1)
	must(t, err)
	const name = "state-s00001-g000001-i000001-n000000000001"
	b, err := fsys.ReadFile("ckpt/" + m.key().manifest())
	must(t, err)
	golden(t, "testdata/manifest-states.golden", b)
	got, err := Latest(ckpt(fsys))
	if err != nil || len(got.Segments[1].States) != 1 || got.Segments[1].States[0].File != name {
		t.Fatalf("read %+v, %v", got, err)
	}
	must(t, Verify(ckpt(fsys), got))
	if !slices.Contains(got.Names(), name) {
		t.Errorf("its names are %v", got.Names())
	}
	if _, wrong, whole := NewAudit(ckpt(fsys)).Checkpoint(got); !whole || len(wrong) > 0 {
		t.Errorf("an audit finds %v", wrong)
	}
	flipLast(t, fsys, "ckpt/"+name)
	wantErr(t, Verify(ckpt(fsys), got), ErrCorrupt, name)
	if _, wrong, whole := NewAudit(ckpt(fsys)).Checkpoint(got); whole || len(wrong) != 1 || wrong[0].File != name {
		t.Errorf("an audit finds %v", wrong)
	}
	must(t, ckpt(fsys).Delete(name))
	found, err := List(ckpt(fsys))
	if err != nil || found.Checkpoints[0].IsComplete() || found.Checkpoints[0].Missing[0].File != name {
		t.Errorf("look finds %+v, %v", found, err)
	}
	again, err := save(fsys, 1, 40)
	must(t, err)
	again.Segments[1].States = got.Segments[1].States
	wantErr(t, Publish(ckpt(fsys), again), fs.ErrNotExist, name+" is missing")
}

// TestRunningStates is TestManifestStates for a running checkpoint.
func TestRunningStates(t *testing.T) {
	fsys := newFolder(t)
	m, err := saveRunning(fsys, 2, 3)
	must(t, err)
	ref := storedState(t, fsys, 1)
	m.Shards[1].States = []FileRef{FileRef(ref.File())}
	must(t, PublishRunning(ckpt(fsys), m))
	b, err := fsys.ReadFile("ckpt/" + m.name())
	must(t, err)
	golden(t, "testdata/running-states.golden", b)
	got, _, err := LatestCompleteRunning(ckpt(fsys))
	if err != nil || len(got.Shards[1].States) != 1 {
		t.Fatalf("read %+v, %v", got, err)
	}
	flipLast(t, fsys, "ckpt/"+ref.Name())
	_, passed, err := LatestCompleteRunning(ckpt(fsys))
	if !errors.Is(err, ErrNoCheckpoint) || len(passed) != 1 || passed[0].File != ref.Name() {
		t.Errorf("a damaged one: %v, %v", passed, err)
	}
}

// TestRemovedStates: when old checkpoints of a finished job are deleted, the slot states that only they name are
// deleted also. While the job runs, they remain: the coordinator knows which are needed.
func TestRemovedStates(t *testing.T) {
	fsys := newFolder(t)
	want := []string(nil)
	for i := uint64(1); i <= 3; i++ {
		m, err := withState(t, fsys, perdure.Clock(20*i), i)
		must(t, err)
		want = append(want, m.Segments[1].States[0].File)
	}
	loose := storedState(t, fsys, 9).Name()
	found, err := List(ckpt(fsys))
	must(t, err)
	if r := found.PlanRemoval(1, true); slices.ContainsFunc(r.Files, isState) {
		t.Errorf("while the job runs, %v would be deleted", r.Files)
	}
	r := found.PlanRemoval(1, false)
	if got := slices.DeleteFunc(r.Files, func(n string) bool { return !isState(n) }); !slices.Equal(got, want[:2]) {
		t.Errorf("states %v would be deleted, want %v", got, want[:2])
	}
	must(t, Remove(ckpt(fsys), found.PlanRemoval(1, false)))
	if !Exists(ckpt(fsys), loose) {
		t.Error("the state that no manifest names is gone")
	}
	overwrite(t, fsys, "ckpt/g000001-c0000000080.manifest", []byte("x")) // its references are unknown
	found, err = List(ckpt(fsys))
	must(t, err)
	if r := found.PlanRemoval(1, false); slices.ContainsFunc(r.Files, isState) {
		t.Errorf("with an unreadable manifest, %v would be deleted", r.Files)
	}
}
