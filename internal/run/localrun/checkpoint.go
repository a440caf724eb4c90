package localrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/settings"
)

// kept is where a run has its checkpoints, and its snapshots.
type kept struct {
	store.Store
	snapshots store.Store // nil: it has none
	s         *settings.Run
	own       bool // this run has taken the store, and not another coordinator of its job
}

// keep opens the run's store and takes it, and brings the checkpoint there that the run goes on from.
// shared: other coordinators of the same job may have taken it.
func keep(ctx context.Context, s *settings.Run, folder string, shared bool) (k kept, err error) {
	ctx = context.WithoutCancel(ctx) // what is said at the end of a run is looked up there
	in, err := s.OpenStore(ctx, folder)
	if err != nil {
		return k, fmt.Errorf("--store: %w", err)
	}
	own := false
	if s.Checkpoints.Store != "" { // the run's folder is its own
		claim := checkpoints.Share
		if !shared {
			claim = func(in store.Store, job *perdure.JobSpec) (bool, error) { return true, checkpoints.Claim(in, job) }
		}
		if own, err = claim(in, &s.Job); err != nil {
			return k, err
		}
	}
	k = kept{Store: in, s: s, own: own}
	if k.snapshots, err = s.OpenSnapshots(ctx, folder); err != nil {
		return k, errors.Join(err, k.leave())
	}
	if s.Checkpoints.Init != nil && s.Checkpoints.Init.Model != nil {
		if err := k.begin(); err != nil {
			return k, errors.Join(err, k.leave())
		}
	}
	if s.Resumed != "" {
		if err := k.goOn(ctx); err != nil {
			return k, errors.Join(err, k.leave())
		}
	}
	return k, nil
}

// begin writes the model that the run begins with, which is not needed in memory after that.
func (k kept) begin() error {
	saved, err := k.s.Checkpoints.Init.Model.Write(k, &k.s.Job, k.s.Tables, time.Now())
	if err != nil {
		return fmt.Errorf("--init: %w", err)
	}
	if saved != nil {
		k.s.Saved = &settings.Saved{Number: 1, Files: saved, Current: true}
	}
	k.s.Checkpoints.Init.Model = nil
	return nil
}

// goOn brings what the run goes on from.
func (k kept) goOn(ctx context.Context) (err error) {
	if k.s.Checkpoints.Ended != nil {
		if err := k.bringStates(ctx); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
		return k.s.Checkpoints.Ended.Write(ctx, k.snapshots, &k.s.Job)
	}
	if k.s.Checkpoints.Fork != nil {
		from, err := checkpoints.Open(k.s.Resumed)
		if err == nil {
			k.s.Saved, err = from.Fork(k.s.Checkpoints.Fork, &checkpoints.Folder{Store: k.Store}, &k.s.Job)
		}
		return err
	}
	from, err := k.s.OpenEarlier(ctx)
	if err == nil {
		err = bring(from, k.Store, k.s.Checkpoints.From)
	}
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	return nil
}

// bringStates brings what slots have saved that the shards of an ended job only refer to.
func (k kept) bringStates(ctx context.Context) error {
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

// leave gives a store back that has nothing yet which anybody needs. Nobody else has put anything
// there.
func (k kept) leave() error {
	if !k.own {
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

// bring copies objects from one store to another that has none of them.
func bring(from, to store.Store, names []string) error {
	for _, name := range names {
		if n, err := store.Size(to, name); err == nil {
			return fmt.Errorf("%s/%s, of %d bytes, is there already: %w", to, name, n, fs.ErrExist)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		o, err := from.Open(name)
		if err != nil {
			return err
		}
		err = to.Put(name, func(w io.Writer) error {
			_, err := io.Copy(w, o)
			return err
		})
		if err := errors.Join(err, o.Close()); err != nil {
			return err
		}
	}
	return nil
}
