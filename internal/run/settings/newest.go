package settings

import (
	"cmp"
	"errors"

	"github.com/perdure/perdure/internal/core/membership"
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
