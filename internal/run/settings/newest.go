package settings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
)

// This file finds the newest checkpoint even if the store's listing lacks it, by the name that the run's coordinator
// recorded.

// unpublished is how many of the most recently recorded manifests of a running checkpoint may be missing, for example
// because the disk was full.
const unpublished = 4

// withRecordedManifests wraps a store so that its listings include the most recently recorded manifests of the running
// checkpoints. known is nil if nothing is recorded.
func withRecordedManifests(from store.Store, known *membership.JobRecord) store.Store {
	if known == nil {
		return from
	}
	var names []string
	for n := range min(unpublished, known.Running.Number) {
		names = append(names, checkpoint.RunningFile(known.Running.Number-n))
	}
	return store.WithNames{Store: from, Names: names}
}

// newest returns the newest checkpoint of a store among those that it lists and the last recorded one.
func newest(from store.Store, known *membership.JobRecord) (m checkpoint.Manifest, err error) {
	m, err = checkpoint.Latest(from)
	if known == nil || err != nil && !errors.Is(err, checkpoint.ErrNoCheckpoint) {
		return m, err
	}
	k, bad := checkpoint.LatestOfCut(from, known.View.Durable, known.View.Generation)
	older := cmp.Or(cmp.Compare(m.Generation, k.Generation), cmp.Compare(m.Cut, k.Cut)) < 0
	if bad == nil && (err != nil || older) {
		return k, nil
	}
	return m, err // the recorded one may be damaged; the listed one serves
}

// readNewest returns the newest usable checkpoint of a store for a run to start from, and notes newer ones that are
// damaged.
func readNewest(from store.Store, known *membership.JobRecord, s *Run) (m checkpoint.Manifest, err error) {
	if m, err = newest(from, known); err != nil {
		return m, err
	}
	found, err := checkpoint.List(from)
	var passed []checkpoint.Defect
	for i := range found.Checkpoints { // newest first
		if k := &found.Checkpoints[i]; k.File == m.Names()[0] {
			break
		} else if errors.Is(k.Err, checkpoint.ErrCorrupt) {
			passed = append(passed, k.Defects()...)
		}
	}
	s.Checkpoints.SkippedNote = skippedNote(from, m.Names()[0], m.Cut, passed)
	return m, err
}

// noteLost notes that the store lacks the last recorded checkpoint, and that the run starts from m instead. saved is
// nil unless m describes a running checkpoint.
func (c *Checkpoints) noteLost(
	from store.Store,
	known *membership.JobRecord,
	m *checkpoint.Manifest,
	saved *RunningCheckpoint,
) {
	k := missingCheckpoint(known, func(k *checkpoint.Info) bool {
		if saved != nil {
			return k.Number <= saved.Number || saved.Note != "" // the newer one exists but is damaged
		}
		return k.Cut <= m.Cut || c.SkippedNote != "" // the same checkpoint
	})
	if k != nil {
		c.LostNote = fmt.Sprintf("%s/%s; this run starts from clock %d", from, k.Defects()[0], m.Cut)
	}
}

// MissingCheckpoint returns the checkpoint that the coordinator of the run in a directory recorded last, if the store
// lacks its manifest. It returns nil if the manifest exists or nothing is recorded. found holds the checkpoints that
// the store lists. A listing may lack the newest checkpoint, so MissingCheckpoint also looks it up by name.
func MissingCheckpoint(ctx context.Context, dir string, in store.Store, found []checkpoint.Info) *checkpoint.Info {
	known := lastRecord(ctx, dir)
	return missingCheckpoint(known, func(k *checkpoint.Info) bool {
		if slices.ContainsFunc(found, func(f checkpoint.Info) bool {
			if k.Number > 0 { // the record may lag, and then this one may be superseded
				return f.Number >= k.Number
			}
			return f.Number == 0 && f.Cut == k.Cut
		}) {
			return true
		}
		if k.Number > 0 {
			_, err := store.Size(in, k.File)
			return !errors.Is(err, fs.ErrNotExist)
		}
		_, err := checkpoint.LatestOfCut(in, k.Cut, known.View.Generation)
		return !errors.Is(err, checkpoint.ErrNoCheckpoint)
	})
}

// errMissing is the defect of a checkpoint that is recorded but missing.
var errMissing = store.WithKind(
	fs.ErrNotExist,
	fmt.Errorf("%w: it is missing, although the run recorded it as its newest "+
		"checkpoint", checkpoint.ErrCorrupt),
)

// missingCheckpoint returns the last recorded checkpoint unless there reports that it exists.
func missingCheckpoint(known *membership.JobRecord, there func(*checkpoint.Info) bool) *checkpoint.Info {
	if known == nil {
		return nil
	}
	k := checkpoint.Info{Recorded: true, Err: errMissing, Cut: known.View.Durable}
	switch traits := recovery.Of(known.Job.Recovery).Traits(); {
	// The coordinator records saved rows before it writes the manifest, so a job may end without the newest manifest.
	case recovery.RoundsOf(known.Job.Recovery).Any() && known.Running.Published > 0:
		k.Number, k.Cut = known.Running.Published, -1 // its clock is not recorded
		k.File = checkpoint.RunningFile(k.Number)
	case traits.SavesCuts() && k.Cut > 0:
		k.File = fmt.Sprintf("g*-c%010d.manifest", k.Cut) // of the job's generation or an earlier one
	default:
		return nil
	}
	if there(&k) {
		return nil
	}
	return &k
}
