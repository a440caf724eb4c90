package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/run/jobs"
)

// Named is a job in a registry of many, whose leader says there where it is.
type Named struct {
	Registry Finder
	Name     string
}

// Finder is what a host asks of a registry of many jobs.
type Finder interface {
	Find(ctx context.Context, name string) (*jobs.Job, error)
	String() string
}

// String is where the job is, as messages have it.
func (n *Named) String() string { return fmt.Sprintf("%s --job %s", n.Registry, n.Name) }

const (
	// leaderFile has the address of the job's leader, in the host's folder: the host and its processes read it anew
	// whenever they look for the leader.
	leaderFile = "coordinators"
	// followEvery is how often the registry is asked who leads.
	followEvery = time.Second
)

// follower knows where the leader of a job is, by what the registry says.
type follower struct {
	*Named
	path string // of the leader's address
	log  *slog.Logger

	id   string // of the job, once it was found: another one of its name is another job
	at   string // the address that is written
	told string // why there is none, or why it may be old, as was told last
}

// find waits until the registry says where a leader is, or has been. An error says why none will be there.
func (f *follower) find(ctx context.Context) error {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		if err := f.look(ctx); err != nil || f.at != "" {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// run goes on with that, until ctx ends or the job is over.
func (f *follower) run(ctx context.Context) error {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := f.look(ctx); err != nil {
			return err
		}
	}
}

// look asks once. A registry that is away, or cannot be read, changes nothing: what was known stays so.
func (f *follower) look(ctx context.Context) error {
	j, err := f.Registry.Find(ctx, f.Name)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, registry.ErrNoJob) && f.id == "":
		return err
	case errors.Is(err, registry.ErrNoJob), err == nil && f.id != "" && j.ID != f.id:
		return fmt.Errorf("%w: job %s, of id %s, is not in %s any more: somebody has removed it", perdure.ErrStopped,
			f.Name, f.id, f.Registry)
	case err != nil && f.id == "" && !errors.Is(err, registry.ErrAway):
		return err
	case err != nil:
		f.tells("the registry does not say where the job's leader is", "err", err)
		return nil
	}
	f.id = j.ID
	switch j.Phase() {
	case jobs.Done:
		return perdure.ErrDone
	case jobs.Stopped:
		return fmt.Errorf("%w: %s", perdure.ErrStopped, j.State.Why)
	case jobs.Failed:
		return fmt.Errorf("%w: %s", perdure.ErrFailed, j.State.Why)
	}
	if j.State == nil || j.State.Address == "" {
		f.tells("nobody has led the job yet; the host waits")
		return nil
	}
	if j.State.Address == f.at {
		f.told = ""
		return nil
	}
	err = disk.WriteFile(disk.OS(), filepath.ToSlash(f.path), func(w io.Writer) error {
		_, err := fmt.Fprintln(w, j.State.Address)
		return err
	})
	if err != nil { // a full disk, say: it is tried again
		f.tells("the address of the job's leader cannot be written", "err", err)
		return nil
	}
	if f.at != "" {
		f.log.Info("the job has another leader", "address", j.State.Address)
	}
	f.at, f.told = j.State.Address, ""
	return nil
}

// tells says once why the leader is not known.
func (f *follower) tells(why string, args ...any) {
	if text := fmt.Sprint(append([]any{why}, args...)...); text != f.told {
		f.told = text
		f.log.Warn(why, args...)
	}
}

// follow finds the leader of a job in a registry of many. From then on Join is a file that has its address.
func (h *Host) follow(ctx context.Context) (f *follower, err error) {
	if h.Of == nil {
		return nil, nil
	}
	path, err := filepath.Abs(filepath.Join(h.Dir, leaderFile))
	if err != nil {
		return nil, err
	}
	f = &follower{Named: h.Of, path: path, log: h.Log}
	h.Join = "@" + path
	return f, f.find(ctx)
}

// following looks at the job until that is over, as its leader says or, where nobody answers any more, the registry.
func following(ctx context.Context, f *follower, look func(context.Context) error) error {
	if f == nil {
		return look(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		cancel(f.run(ctx))
	}()
	err := look(ctx)
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	cancel(nil)
	<-followed
	return err
}
