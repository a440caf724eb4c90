package settings

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// OpenStore opens the store of a run's checkpoints, given the run's directory. All operations on the store end with
// ctx.
func (s *Run) OpenStore(ctx context.Context, dir string) (store.Store, error) {
	return openStore(ctx, s.Checkpoints.Store, dir)
}

// StoreAt returns the location of the store, without secrets, for a process that does not know the run's directory.
func (s *Run) StoreAt(folder string) (string, error) {
	if s.Checkpoints.Store != "" {
		return s.Checkpoints.Store, nil
	}
	dir, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	return store.DirLocation(filepath.ToSlash(filepath.Join(dir, "checkpoint"))).String(), nil
}

// OpenEarlier opens the store of the run that this one resumes from.
func (s *Run) OpenEarlier(ctx context.Context) (store.Store, error) {
	return openStore(ctx, s.Checkpoints.Earlier, s.Resumed)
}

func openStore(ctx context.Context, text, dir string) (store.Store, error) {
	if text == "" {
		return store.NewDir(disk.OS(), filepath.ToSlash(filepath.Join(dir, "checkpoint"))), nil
	}
	l, err := store.ParseLocation(text)
	if err != nil {
		return nil, err
	}
	return l.Open(ctx)
}

// applyStore completes the settings with the store of the checkpoints. Two runs never share a store location.
func (a *Flags) applyStore(s *Run, file string) error {
	s.Checkpoints.Earlier = s.Checkpoints.Store
	if s.Checkpoints.Store != "" && !a.Given["store"] {
		return perdure.Usagef("the run of %s has its checkpoints in %s; set --store to another location for this "+
			"run's checkpoints, for example under another prefix", file, s.Checkpoints.Store)
	}
	s.Checkpoints.Store = ""
	if !a.Given["store"] {
		return nil
	}
	l, err := store.ParseLocation(a.Store)
	if err != nil {
		return perdure.Usagef("--store: %w", err)
	}
	s.Checkpoints.Store = l.String()
	return nil
}

// validateStore checks that the location is in canonical form.
func (s *Run) validateStore() error {
	if s.Checkpoints.Store == "" {
		return nil
	}
	l, err := store.ParseLocation(s.Checkpoints.Store)
	if err == nil && l.String() != s.Checkpoints.Store {
		err = fmt.Errorf("%q is not in canonical form; write %q", s.Checkpoints.Store, l)
	}
	return err
}
