package localrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/settings"
)

// runStore is the store of a run's checkpoints, with that of its snapshots.
type runStore struct {
	store.Store
	snapshots store.Store // nil: the job has no snapshots
	s         *settings.Run
	claimed   bool // this process claimed the store, rather than another coordinator of the job
}

// openRunStore opens and claims the run's store, and copies the checkpoint there that the run resumes from. shared
// means that another coordinator of the same job may have claimed it.
func openRunStore(ctx context.Context, s *settings.Run, dir string, shared bool) (k runStore, err error) {
	ctx = context.WithoutCancel(ctx) // the store is still read when the run is ending
	in, err := s.OpenStore(ctx, dir)
	if err != nil {
		return k, fmt.Errorf("--store: %w", err)
	}
	own := false
	if s.Checkpoints.Store != "" { // otherwise it is in the run's own directory
		claim := checkpoints.ClaimShared
		if !shared {
			claim = func(in store.Store, job *perdure.JobSpec) (bool, error) { return true, checkpoints.Claim(in, job) }
		}
		if own, err = claim(in, &s.Job); err != nil {
			return k, err
		}
	}
	k = runStore{Store: in, s: s, claimed: own}
	if k.snapshots, err = s.OpenSnapshots(ctx, dir); err != nil {
		return k, errors.Join(err, k.release())
	}
	if s.Checkpoints.Init != nil && s.Checkpoints.Init.Model != nil {
		if err := k.writeInitialModel(); err != nil {
			return k, errors.Join(err, k.release())
		}
	}
	if s.Resumed != "" {
		if err := k.writeResumedState(ctx); err != nil {
			return k, errors.Join(err, k.release())
		}
	}
	return k, nil
}

// writeInitialModel writes the model that the run starts with, and then releases its memory.
func (k runStore) writeInitialModel() error {
	saved, err := k.s.Checkpoints.Init.Model.Write(k, &k.s.Job, k.s.Tables, time.Now())
	if err != nil {
		return fmt.Errorf("--init: %w", err)
	}
	if saved != nil {
		k.s.Saved = &settings.RunningCheckpoint{Number: 1, Files: saved}
	}
	k.s.Checkpoints.Init.Model = nil
	return nil
}

// writeResumedState copies or writes the state that the run resumes from.
func (k runStore) writeResumedState(ctx context.Context) (err error) {
	if k.s.Checkpoints.Ended != nil {
		if err := k.copyStates(ctx); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
		return k.s.Checkpoints.Ended.Write(ctx, k.snapshots, &k.s.Job)
	}
	if k.s.Checkpoints.Fork != nil {
		from, err := checkpoints.Open(k.s.Resumed)
		if err == nil {
			k.s.Saved, err = from.Fork(k.s.Checkpoints.Fork, &checkpoints.Location{Store: k.Store}, &k.s.Job)
		}
		return err
	}
	from, err := k.s.OpenEarlier(ctx)
	if err == nil {
		err = copyObjects(from, k.Store, k.s.Checkpoints.From)
	}
	if err == nil {
		err = k.copyDrafts(from)
	}
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	return nil
}

// copyStates copies the slot states that the shards of an ended job only refer to.
func (k runStore) copyStates(ctx context.Context) error {
	files := k.s.Checkpoints.Ended.States()
	if len(files) == 0 {
		return nil
	}
	from, err := k.s.OpenEarlier(ctx)
	if err = errors.Join(err, k.Prepare()); err != nil {
		return err
	}
	for _, f := range files {
		if err := store.CopyState(from, k.Store, f); err != nil {
			return err
		}
	}
	return nil
}

// release releases the store while it contains nothing that is needed. Only this run can have written to it.
func (k runStore) release() error {
	if !k.claimed {
		return nil
	}
	err := checkpoints.Unclaim(k.Store)
	if k.s.Checkpoints.Ended != nil {
		err = errors.Join(err, k.s.Checkpoints.Ended.Remove(k.snapshots))
		for _, f := range k.s.Checkpoints.Ended.States() {
			err = errors.Join(err, k.Delete(f.File))
		}
	}
	return err
}

// copyDrafts copies the drafts of the slots' programs: their work since the last update.
func (k runStore) copyDrafts(from store.Store) error {
	for slot := range k.s.Job.Slots {
		name := slotstate.Draft(perdure.Slot(slot)).Name()
		o, err := from.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = putOpened(k.Store, name, o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// putOpened stores the content of an object of another store, which it closes.
func putOpened(to store.Store, name string, o io.ReadCloser) error {
	err := to.Put(name, func(w io.Writer) error {
		_, err := io.Copy(w, o)
		return err
	})
	return errors.Join(err, o.Close())
}

// copyObjects copies objects from one store to another that must not contain them.
func copyObjects(from, to store.Store, names []string) error {
	for _, name := range names {
		if n, err := store.Size(to, name); err == nil {
			return fmt.Errorf("%s/%s, of %d bytes, already exists: %w", to, name, n, fs.ErrExist)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		o, err := from.Open(name)
		if err == nil {
			err = putOpened(to, name, o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
