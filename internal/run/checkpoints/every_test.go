package checkpoints

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/store/storetest"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// record writes the last job record of a run's coordinator.
func record(t *testing.T, f *Location, known membership.JobRecord) {
	t.Helper()
	reg, err := registry.OpenFile(disk.OS(), filepath.ToSlash(filepath.Join(f.Run, "registry", "facts")))
	must(t, err)
	lease, err := reg.Acquire(context.Background(), registry.Holder{})
	must(t, err)
	doc, err := json.Marshal(known)
	must(t, err)
	_, err = lease.Save(context.Background(), doc, 0)
	must(t, err)
	must(t, reg.Close())
}

// looseFiles adds files that no checkpoint names: a slot state that a job saved just before its end, and a claim.
func looseFiles(t *testing.T, f *Location) {
	t.Helper()
	key := slotstate.Key{Slot: 0, Generation: 1, Incarnation: 1, Number: 1}
	_, err := store.PutState(t.Context(), f.Store, key, 5, store.WriteBytes([]byte("state")))
	must(t, err)
	sealed, err := claimOf(&testJob)
	must(t, err)
	must(t, f.Store.PutNew(claimName, sealed))
}

// TestEveryFile damages every file of a store, one at a time, and checks that Verify names it. A deleted file must be
// named if a manifest refers to it or, for a manifest, the job record.
func TestEveryFile(t *testing.T) {
	for kind, store := range map[string]func(*testing.T) (*Location, *disk.Memory){
		"cuts": func(t *testing.T) (*Location, *disk.Memory) {
			f, fsys := kept(t, 3)
			_, err := checkpoint.WriteSegment(f.Store, segment(40, 1, nil))
			must(t, err)
			record(t, f, membership.NewJobRecord(testJob, 1, 30, nil))
			return f, fsys
		},
		"rows": func(t *testing.T) (*Location, *disk.Memory) {
			f, fsys := keptRows(t, 3)
			_, err := checkpoint.WriteSegment(f.Store, rowsSegment(1, 4))
			must(t, err)
			known := membership.NewJobRecord(rowsJob(), 1, 0, nil)
			known.Running.Number, known.Running.Published = 3, 3
			record(t, f, known)
			return f, fsys
		},
		"snapshots": func(t *testing.T) (*Location, *disk.Memory) {
			f, fsys := kept(t, 0)
			f.Run = "" // as if opened by URL
			for shard := range perdure.ShardID(2) {
				for _, at := range []uint64{7, 9} {
					about := shardstore.SnapshotHeader{
						Job: testJob.ID, Shard: shard, Generation: 1, Epoch: 1, Position: at, Head: 4, Rows: 40,
					}
					_, err := shardstore.WriteSnapshot(f.Store, &about, func(w io.Writer) error {
						_, err := w.Write(make([]byte, about.Head+about.Rows))
						return err
					})
					must(t, err)
				}
			}
			return f, fsys
		},
	} {
		t.Run(kind, func(t *testing.T) {
			f, fsys := store(t)
			looseFiles(t, f)
			must(t, f.Verify(&bytes.Buffer{}, false))
			all, err := f.Store.List("")
			must(t, err)
			for _, e := range all {
				everyDamage(t, f, fsys, e)
			}
		})
	}
}

// TestUnwrittenManifest checks that Verify accepts the store of a run that ended after it had recorded saved rows and
// before it had written their manifest. The record may also lack the number of the newest manifest.
func TestUnwrittenManifest(t *testing.T) {
	for _, c := range []struct {
		published, newest uint64
		kept              int
	}{{3, 4, 3}, {2, 4, 3}, {2, 3, 3}, {0, 1, 1}, {0, 4, 3}} {
		f, _ := keptRows(t, c.kept)
		known := membership.NewJobRecord(rowsJob(), 1, 0, nil)
		known.Running.Number, known.Running.Published = c.newest, c.published
		record(t, f, known)
		if err := f.Verify(&bytes.Buffer{}, false); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	f, _ := keptRows(t, 3)
	must(t, f.Store.Delete(runningName(3)))
	known := membership.NewJobRecord(rowsJob(), 1, 0, nil)
	known.Running.Number, known.Running.Published = 4, 3
	record(t, f, known)
	var out bytes.Buffer
	if err := f.Verify(&out, false); !oneLine(err, "1 damaged") || !strings.Contains(out.String(), runningName(3)) {
		t.Errorf("the newest written manifest is deleted: %v\n%s", err, &out)
	}
}

// everyDamage flips bits of a file, truncates it, empties it, and deletes it.
func everyDamage(t *testing.T, f *Location, fsys *disk.Memory, e store.Entry) {
	t.Helper()
	good := read(t, fsys, e.Name)
	name := strings.TrimPrefix(e.Name, "g000001-") // nothing reveals the generation of a missing file
	named := func(how string) {
		t.Helper()
		for _, asJSON := range []bool{false, true} {
			var out bytes.Buffer
			if err := f.Verify(&out, asJSON); !oneLine(err, "") || !strings.Contains(out.String(), name) {
				t.Errorf("%s, %s: Verify: %v\n%s", e.Name, how, err, &out)
			}
		}
	}
	for at := 0; at < len(good); at += max(1, len(good)/7) {
		write(t, fsys, e.Name, flipped(at)(good))
		named(fmt.Sprintf("byte %d", at))
	}
	write(t, fsys, e.Name, flipped(-1)(good))
	named("the last byte")
	write(t, fsys, e.Name, good[:len(good)/2])
	named("cut")
	write(t, fsys, e.Name, nil)
	named("emptied")
	must(t, f.Store.Delete(e.Name))
	if names(f, e.Name) {
		named("deleted")
	}
	write(t, fsys, e.Name, good)
}

// names reports whether a manifest or the job record refers to a file.
func names(f *Location, name string) bool {
	if name == manifestName(30) || name == runningName(3) {
		return true
	}
	found, err := checkpoint.List(f.Store)
	for i := range found.Checkpoints {
		for _, file := range found.Checkpoints[i].Files() {
			if err == nil && file.File == name {
				return true
			}
		}
	}
	return false
}

// TestLostManifest checks that all commands report that the newest recorded checkpoint is missing, and that none
// silently uses an older one. While the run is alive it may be about to write the checkpoint.
func TestLostManifest(t *testing.T) {
	f, _ := kept(t, 2)
	record(t, f, membership.NewJobRecord(testJob, 1, 20, nil))
	must(t, f.List(&bytes.Buffer{}, false))
	must(t, f.Store.Delete(manifestName(20)))
	var out bytes.Buffer
	for what, err := range map[string]error{
		"verify": f.Verify(&out, false), "ls": f.List(&out, false), "show": f.Show(&out, false),
	} {
		if !oneLine(err, "") || !strings.Contains(out.String()+err.Error(), "c0000000020.manifest: it is missing") {
			t.Errorf("%s: %v\n%s", what, err, &out)
		}
	}
	if _, err := f.Choose(); err == nil {
		t.Error("an older checkpoint is chosen silently")
	}
	clock := perdure.Clock(10)
	f.Clock = &clock
	must(t, f.Verify(&bytes.Buffer{}, false))
	if _, err := f.Choose(); err != nil {
		t.Errorf("cannot choose the older one by its clock: %v", err)
	}
	f.Clock = nil
	hold, err := disk.OS().(disk.Locker).Lock(filepath.ToSlash(filepath.Join(f.Run, "lock")), "somebody")
	must(t, err)
	must(t, f.Verify(&bytes.Buffer{}, false))
	must(t, hold.Close())
}

// TestUnlistedManifest checks that a recorded checkpoint that exists but that the store does not list yet is not
// missing.
func TestUnlistedManifest(t *testing.T) {
	for _, last := range []int{20, 30} { // the second was never written
		f, _ := kept(t, 2)
		f.Store = &storetest.LaggingList{Store: f.Store, Hidden: []string{manifestName(20)}}
		record(t, f, membership.NewJobRecord(testJob, 1, perdure.Clock(last), nil))
		var out bytes.Buffer
		if _ = f.Verify(&out, false); strings.Contains(out.String(), "manifest: it is missing") != (last == 30) {
			t.Errorf("recorded clock %d:\n%s", last, &out)
		}
	}
}
