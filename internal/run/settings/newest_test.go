package settings

import (
	"io"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/store/storetest"
)

// keeping returns a store with three checkpoints of a job, of one clock each or running ones. It does not list the
// newest.
func keeping(t *testing.T, recovery string) (in store.Store, job perdure.JobSpec) {
	t.Helper()
	job = perdure.JobSpec{ID: "j", Slots: 1, Servers: 1, Shards: 1, Consistency: perdure.Consistency{Kind: perdure.ASP}}
	var err error
	if job.Recovery, err = perdure.ParseRecovery(recovery); err != nil {
		t.Fatal(err)
	}
	in = store.NewDir(disk.NewMemory(), "checkpoint")
	if err := in.Prepare(); err != nil {
		t.Fatal(err)
	}
	name := ""
	for n := perdure.Clock(1); n <= 3; n++ {
		if job.Recovery.Kind == perdure.RecoverScar {
			m := checkpoint.Running{
				Number: uint64(n), Job: job, Generation: 1, Clock: 10 * n, Shards: make([]checkpoint.RunningShard, 1),
			}
			name, err = checkpoint.RunningFile(m.Number), checkpoint.PublishRunning(in, m)
		} else {
			m := checkpoint.Manifest{Job: job, Generation: 2, Cut: 10 * n}
			ref, bad := checkpoint.WriteSegment(in, &checkpoint.Segment{
				Job: "j", Generation: 2, Cut: 10 * n, Epoch: 1, Applied: []perdure.Clock{10 * n}, States: [][]byte{nil},
			})
			if bad != nil {
				t.Fatal(bad)
			}
			m.Segments = []checkpoint.SegmentRef{ref}
			name, err = m.Names()[0], checkpoint.Publish(in, m)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return &storetest.LaggingList{Store: in, Hidden: []string{name}}, job
}

// TestNewestUnlisted checks that the newest checkpoint is found by its record although the store's listing lacks it,
// and that a checkpoint without a record is found in the listing.
func TestNewestUnlisted(t *testing.T) {
	for _, recovery := range []string{"scar:1,1,round", "checkpoint:10"} {
		in, job := keeping(t, recovery)
		find := func(known *membership.JobRecord) perdure.Clock {
			if job.Recovery.Kind == perdure.RecoverScar {
				m, err := ReadRunningCheckpoint(withRecordedManifests(in, known), &Run{Job: job})
				if err != nil {
					t.Fatal(err)
				}
				return m.Cut
			}
			m, err := newest(in, known)
			if err != nil {
				t.Fatal(err)
			}
			return m.Cut
		}
		// the job has rolled back since, or a later manifest could not be published
		known := membership.NewJobRecord(job, 5, 30, nil)
		known.Running.Number = 5
		if at := find(&known); at != 30 {
			t.Errorf("%s: clock 30 is recorded, and clock %d is found", recovery, at)
		}
		before := membership.NewJobRecord(job, 1, 10, nil)
		before.Running.Number = 1
		for _, f := range []*membership.JobRecord{nil, &before} {
			if at := find(f); at != 20 {
				t.Errorf("%s: clock 20 is listed, and clock %d is found", recovery, at)
			}
		}
	}
}

// TestNewestLost checks that a run reports starting from an older checkpoint because the newest recorded one is missing
// or damaged. A running checkpoint whose manifest the earlier run never wrote is not lost.
func TestNewestLost(t *testing.T) {
	for _, recovery := range []string{"scar:1,1,round", "checkpoint:10"} {
		for _, damage := range []string{"", "deleted", "changed", "unwritten"} {
			in, job := keeping(t, recovery)
			lags := in.(*storetest.LaggingList)
			in = lags.Store
			name := lags.Hidden[0]
			switch damage {
			case "deleted":
				if err := in.Delete(name); err != nil {
					t.Fatal(err)
				}
			case "changed":
				err := in.Put(name, func(w io.Writer) error {
					_, err := w.Write([]byte("something else"))
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			known := membership.NewJobRecord(job, 2, 30, nil)
			known.Running.Number, known.Running.Published = 3, 3
			if damage == "unwritten" {
				known.Running.Number++
			}
			s, want := Run{Job: job}, perdure.Clock(30)
			var m checkpoint.Manifest
			var err error
			if job.Recovery.Kind == perdure.RecoverScar {
				m, err = ReadRunningCheckpoint(withRecordedManifests(in, &known), &s)
			} else {
				m, err = readNewest(in, &known, &s)
			}
			if err != nil {
				t.Fatal(err)
			}
			s.Checkpoints.noteLost(in, &known, &m, s.Saved)
			passed, lost := s.Checkpoints.SkippedNote, s.Checkpoints.LostNote
			if s.Saved != nil {
				passed = s.Saved.Note
			}
			if damage == "deleted" || damage == "changed" {
				want = 20
			}
			if m.Cut != want || (lost != "") != (damage == "deleted") || (passed != "") != (damage == "changed") {
				t.Errorf("%s, the newest is %q: clock %d; passed over %q, lost %q", recovery, damage, m.Cut, passed,
					lost)
			}
		}
	}
}
