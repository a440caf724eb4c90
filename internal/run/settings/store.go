package settings

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// OpenStore opens where a run has its checkpoints, whose folder is known. All that is done there
// ends with ctx.
func (s *Run) OpenStore(ctx context.Context, folder string) (store.Store, error) {
	return openStore(ctx, s.Checkpoints.Store, folder)
}

// StoreAt says where that is, as a process that does not know the run's folder is told it: without what is secret.
func (s *Run) StoreAt(folder string) (string, error) {
	if s.Checkpoints.Store != "" {
		return s.Checkpoints.Store, nil
	}
	dir, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	return store.FolderLocation(filepath.ToSlash(filepath.Join(dir, "checkpoint"))).String(), nil
}

// OpenEarlier opens where the run has its checkpoints that this one goes on from.
func (s *Run) OpenEarlier(ctx context.Context) (store.Store, error) {
	return openStore(ctx, s.Checkpoints.Earlier, s.Resumed)
}

func openStore(ctx context.Context, text, folder string) (store.Store, error) {
	if text == "" {
		return store.Folder(disk.OS(), filepath.ToSlash(filepath.Join(folder, "checkpoint"))), nil
	}
	l, err := store.ParseLocation(text)
	if err != nil {
		return nil, err
	}
	return l.Open(ctx)
}

// takeStore completes settings with where checkpoints are to be. One run's place is no other's.
func (a *Asked) takeStore(s *Run, file string) error {
	s.Checkpoints.Earlier = s.Checkpoints.Store
	if s.Checkpoints.Store != "" && !a.Given["store"] {
		return fmt.Errorf("%w: the run of %s has its checkpoints in %s; say with --store where those of this run are "+
			"to be, another prefix, say", perdure.ErrUsage, file, s.Checkpoints.Store)
	}
	s.Checkpoints.Store = ""
	if !a.Given["store"] {
		return nil
	}
	l, err := store.ParseLocation(a.Store)
	if err != nil {
		return fmt.Errorf("%w: --store: %w", perdure.ErrUsage, err)
	}
	s.Checkpoints.Store = l.String()
	return nil
}

// oddStore: what is there must be a location, as it is written here.
func (s *Run) oddStore() error {
	if s.Checkpoints.Store == "" {
		return nil
	}
	l, err := store.ParseLocation(s.Checkpoints.Store)
	if err == nil && l.String() != s.Checkpoints.Store {
		err = fmt.Errorf("%q is not how it is written; write %q", s.Checkpoints.Store, l)
	}
	return err
}
