package checkpoint

import (
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store/storetest"
)

// TestListLags: if a store does not list the newest checkpoint yet, an older complete one is found, and no file of the
// newest is deleted, whether Prune keeps the newest or the one before it.
func TestListLags(t *testing.T) {
	fsys := newFolder(t)
	published(t, fsys, 1, 10)
	older := published(t, fsys, 1, 20)
	newest := published(t, fsys, 1, 30)
	in := &storetest.LaggingList{Store: ckpt(fsys), Hidden: []string{newest.key().manifest()}}
	if m, err := Latest(in); err != nil || m.Cut != 20 {
		t.Errorf("found clock %d, %v", m.Cut, err)
	}
	if m, err := LatestOfCut(in, 30, 2); err != nil || m.Cut != 30 || m.Generation != 1 {
		t.Errorf("by name, found clock %d of generation %d, %v", m.Cut, m.Generation, err)
	}
	if err := Prune(in, newest, 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("prune for an unlisted checkpoint: %v", err)
	}
	wantLatest(t, fsys, 1, 30)
	for i := range newest.Segments {
		must(t, Prune(in, older, 1)) // first with its segments listed, then without
		in.Hidden = append(in.Hidden, newest.Segments[i].File)
	}
	wantWhole(t, fsys, 2)

	runs := newFolder(t)
	for number := range uint64(3) {
		publishedRunning(t, runs, 1, number+1)
	}
	in = &storetest.LaggingList{Store: ckpt(runs), Hidden: []string{RunningFile(3)}}
	r, err := LatestRunning(in)
	if err != nil || r.Number != 2 {
		t.Fatalf("found number %d, %v", r.Number, err)
	}
	must(t, PruneRunning(in, r, 1))
	wantWhole(t, runs, 2)
}

// wantWhole checks that n checkpoints exist, all complete.
func wantWhole(t *testing.T, fsys disk.FS, n int) {
	t.Helper()
	found, err := List(ckpt(fsys))
	must(t, err)
	missing := slices.ContainsFunc(found.Checkpoints, func(k Info) bool { return k.Err != nil || len(k.Missing) > 0 })
	if len(found.Checkpoints) != n || missing {
		t.Errorf("found %d checkpoints, or one is incomplete: %+v", len(found.Checkpoints), found.Checkpoints)
	}
}
