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

// This file has how the newest checkpoint is found where a store's list may lack it: by the name that the run's
// coordinator has recorded.

// unpublished is of how many manifests of a running checkpoint, that were recorded last, none may be there: the disk
// was full, say.
const unpublished = 4

// naming is a store whose lists have the manifests of the running checkpoints that were recorded last. known is nil
// where nothing is.
func naming(from store.Store, known *membership.Facts) store.Store {
	if known == nil {
		return from
	}
	var names []string
	for n := range min(unpublished, known.Running.Number) {
		names = append(names, checkpoint.RunningFile(known.Running.Number-n))
	}
	return store.Named{Store: from, Names: names}
}

// newest returns the newest checkpoint of a store: of those that it lists, and of the one that was recorded last.
func newest(from store.Store, known *membership.Facts) (m checkpoint.Manifest, err error) {
	m, err = checkpoint.Latest(from)
	if known == nil || err != nil && !errors.Is(err, checkpoint.ErrNoCheckpoint) {
		return m, err
	}
	k, bad := checkpoint.Of(from, known.View.Durable, known.View.Generation)
	older := cmp.Or(cmp.Compare(m.Generation, k.Generation), cmp.Compare(m.Cut, k.Cut)) < 0
	if bad == nil && (err != nil || older) {
		return k, nil
	}
	return m, err // and what is recorded is damaged, say, and what is listed will do
}

// readNewest returns the newest checkpoint of a store for a run to start from, and notes damaged ones that are newer.
func readNewest(from store.Store, known *membership.Facts, s *Run) (m checkpoint.Manifest, err error) {
	if m, err = newest(from, known); err != nil {
		return m, err
	}
	found, err := checkpoint.Look(from)
	var passed []checkpoint.Defect
	for i := range found.Kept { // the newest first
		if k := &found.Kept[i]; k.File == m.Names()[0] {
			break
		} else if errors.Is(k.Err, checkpoint.ErrCorrupt) {
			passed = append(passed, k.Defects()...)
		}
	}
	s.Checkpoints.Passed = passedOver(from, m.Names()[0], m.Cut, passed)
	return m, err
}

// noteLost notes that the store lacks the checkpoint that the run recorded last, and that m is used in its place. saved
// is nil unless m describes a running checkpoint.
func (c *Checkpoints) noteLost(from store.Store, known *membership.Facts, m *checkpoint.Manifest, saved *Saved) {
	k := lost(known, func(k *checkpoint.Kept) bool {
		if saved != nil {
			return k.Number <= saved.Number || saved.Note != "" // the newer one is there, and damaged
		}
		return k.Cut <= m.Cut || c.Passed != "" // the same
	})
	if k != nil {
		c.Lost = fmt.Sprintf("%s/%s; this run starts from clock %d", from, k.Defects()[0], m.Cut)
	}
}

// Lost returns the checkpoint that the coordinator of a run in a folder recorded last, if the store lacks its manifest;
// nil: it does not, or nothing is recorded. found are those that the store lists, which may lack the newest: so it is
// asked for by its name. A live job may be about to write it.
func Lost(ctx context.Context, folder string, in store.Store, found []checkpoint.Kept) *checkpoint.Kept {
	known := recorded(ctx, folder)
	return lost(known, func(k *checkpoint.Kept) bool {
		if slices.ContainsFunc(found, func(f checkpoint.Kept) bool {
			return f.Number == k.Number && (k.Number > 0 || f.Cut == k.Cut)
		}) {
			return true
		}
		if k.Number > 0 {
			_, err := store.Size(in, k.File)
			return !errors.Is(err, fs.ErrNotExist)
		}
		_, err := checkpoint.Of(in, k.Cut, known.View.Generation)
		return !errors.Is(err, checkpoint.ErrNoCheckpoint)
	})
}

// errLost is the defect of a checkpoint that is only recorded.
var errLost = store.Kind(fs.ErrNotExist, fmt.Errorf("%w: it is missing, and the run recorded it as its newest "+
	"checkpoint", checkpoint.ErrCorrupt))

// lost returns the checkpoint that was recorded last, unless it is there.
func lost(known *membership.Facts, there func(*checkpoint.Kept) bool) *checkpoint.Kept {
	if known == nil {
		return nil
	}
	k := checkpoint.Kept{Recorded: true, Err: errLost, Cut: known.View.Durable}
	switch traits := recovery.Of(known.Job.Recovery).Traits(); {
	case recovery.RoundsOf(known.Job.Recovery).Any() && known.Running.Number > 0:
		k.Number, k.Cut = known.Running.Number, -1 // its clock is not recorded
		k.File = checkpoint.RunningFile(k.Number)
	case traits.Saves() && k.Cut > 0:
		k.File = fmt.Sprintf("g*-c%010d.manifest", k.Cut) // of the job's generation or an earlier one
	default:
		return nil
	}
	if there(&k) {
		return nil
	}
	return &k
}
