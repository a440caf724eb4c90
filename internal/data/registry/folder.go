package registry

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/perdure/perdure/internal/data/disk"
)

// A catalog in a folder has a folder for each job, NAME, with these files. facts is the registry's, with its lock
// beside it. A folder without a record is no job's.
const (
	recordFile = "job"
	stateFile  = "state"
	wishFile   = "wish"
	factsFile  = "facts"
	lockFile   = factsFile + ".lock"
	removed    = ".removed-" // and then name and time: the folder of a job that is being removed
)

// Folder is a catalog in a folder of this machine, or of a disk that several share whose locks reach all of them. It
// needs a system with locks.
type Folder struct {
	// Poll is as of a File, of each registry that is opened here. Set it before anything else is called.
	Poll time.Duration

	path   string // with forward slashes
	closed chan struct{}
	shut   func()
}

// OpenFolder opens the catalog in a folder, which the first Create makes.
func OpenFolder(folder string) (*Folder, error) {
	info, err := os.Stat(folder)
	switch {
	case err == nil && !info.IsDir():
		return nil, fmt.Errorf("registry: %s is no folder; a registry of many jobs is one, or is in etcd", folder)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("registry: %w", err)
	}
	f := &Folder{path: path.Clean(folder), closed: make(chan struct{})}
	f.shut = sync.OnceFunc(func() { close(f.closed) })
	return f, nil
}

// of is a file of a job's.
func (f *Folder) of(name, file string) string { return path.Join(f.path, name, file) }

// usable refuses what cannot be asked, and names that would lead elsewhere.
func (f *Folder) usable(ctx context.Context, name string) error {
	if err := usable(ctx, f.closed); err != nil {
		return err
	}
	return CheckName(name)
}

// Create implements Catalog. The record gets its name by a link, which there is once.
func (f *Folder) Create(ctx context.Context, name string, record []byte) error {
	if err := errors.Join(f.usable(ctx, name), CheckRecord(record)); err != nil {
		return err
	}
	if err := f.sweep(); err != nil {
		return err
	}
	err := f.create(name, record)
	for again := 0; absent(err) && again < looks; again++ { // a job of that name was removed just now, with the folder
		err = f.create(name, record)
	}
	if errors.Is(err, fs.ErrExist) {
		is, err := f.read(name, recordFile)
		if err == nil && !bytes.Equal(is, record) {
			err = ErrTaken
		}
		return err
	}
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	return nil
}

func (f *Folder) create(name string, record []byte) error {
	if err := disk.OS().MkdirAll(f.of(name, "")); err != nil {
		return err
	}
	return disk.WriteNewFile(disk.OS(), f.of(name, recordFile), content(record))
}

func content(b []byte) func(w io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

// List implements Catalog.
func (f *Folder) List(ctx context.Context) (all []Entry, err error) {
	if err := usable(ctx, f.closed); err != nil {
		return nil, err
	}
	names, err := disk.OS().List(f.path)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	for _, name := range names {
		if CheckName(name) != nil {
			continue // of somebody else's
		}
		e, err := f.find(name)
		if !errors.Is(err, ErrNoJob) {
			e.Err = err
			all = append(all, e)
		}
	}
	return all, nil
}

// Find implements Catalog.
func (f *Folder) Find(ctx context.Context, name string) (Entry, error) {
	if err := f.usable(ctx, name); err != nil {
		return Entry{}, err
	}
	return f.find(name)
}

func (f *Folder) find(name string) (e Entry, err error) {
	e.Name = name
	for file, to := range map[string]*[]byte{recordFile: &e.Record, stateFile: &e.State, wishFile: &e.Wish} {
		if *to, err = f.read(name, file); err != nil {
			return e, err
		}
	}
	if e.Record == nil {
		return e, ErrNoJob
	}
	e.Holder, err = f.holder(name)
	return e, err
}

// read returns what a file of a job's has; nil: it is not there.
func (f *Folder) read(name, file string) ([]byte, error) {
	b, err := disk.ReadRegular(f.of(name, file), MostRecord+1)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return b, nil
}

// absent reports that what was looked for is not there, or is in no folder.
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) }

// holder is who has the lease of a job; "": nobody.
func (f *Folder) holder(name string) (string, error) {
	lock, err := disk.Share(f.of(name, lockFile))
	var locked *disk.LockedError
	switch {
	case errors.As(err, &locked):
		return cmp.Or(strings.ToValidUTF8(locked.Holder, "?"), "?"), nil // it may not have written its line yet
	case absent(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("registry: %w", err)
	}
	return "", lock.Close()
}

// Wish implements Catalog. A job that is removed just now may get a wish, which goes with it.
func (f *Folder) Wish(ctx context.Context, name string, record, wish []byte) error {
	if err := errors.Join(f.usable(ctx, name), CheckRecord(wish)); err != nil {
		return err
	}
	if err := f.same(name, record); err != nil {
		return err
	}
	err := disk.WriteFile(disk.OS(), f.of(name, wishFile), content(wish))
	if absent(err) {
		return ErrNoJob
	}
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	return nil
}

// same sees that a job is the one that has that record.
func (f *Folder) same(name string, record []byte) error {
	is, err := f.read(name, recordFile)
	if err == nil && !bytes.Equal(is, record) || is == nil {
		err = errors.Join(err, ErrNoJob)
	}
	return err
}

// Remove implements Catalog. Who removes a job has its lease meanwhile. The job goes as a whole, when its folder gets
// another name.
func (f *Folder) Remove(ctx context.Context, name string, record []byte) error {
	if err := f.usable(ctx, name); err != nil {
		return err
	}
	if err := f.same(name, record); err != nil {
		return err
	}
	p, err := f.open(name)
	if err != nil {
		return err
	}
	defer p.Close() // the folder is another one
	if err := p.hold(ctx); err != nil {
		return err
	}
	if err := f.same(name, record); err != nil { // with the lease it stays the same
		return err
	}
	to := path.Join(f.path, fmt.Sprintf("%s%s-%d", removed, name, time.Now().UnixNano()))
	if err := disk.OS().Rename(f.of(name, ""), to); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	if err := disk.OS().SyncDir(f.path); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	return f.sweep()
}

// looks is how often a lock is tried that somebody may only look at.
const looks = 20

// hold takes the lease. Who lists jobs looks at their locks, and has each for a moment.
func (p *folderPost) hold(ctx context.Context) (err error) {
	for range looks {
		if _, err = p.Acquire(ctx, Self()); !errors.Is(err, ErrHeld) {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// sweep deletes what is left of jobs that were removed, perhaps by somebody who has died before it was done.
func (f *Folder) sweep() error {
	names, err := disk.OS().List(f.path)
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, removed) {
			if err := os.RemoveAll(path.Join(f.path, name)); err != nil {
				return fmt.Errorf("registry: %w", err)
			}
		}
	}
	return nil
}

// Open implements Catalog.
func (f *Folder) Open(ctx context.Context, name string) (Post, error) {
	if err := f.usable(ctx, name); err != nil {
		return nil, err
	}
	if b, err := f.read(name, recordFile); b == nil { // else the folder would be made
		return nil, errors.Join(err, ErrNoJob)
	}
	p, err := f.open(name)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (f *Folder) open(name string) (*folderPost, error) {
	r, err := OpenFile(disk.OS(), f.of(name, factsFile))
	if err != nil {
		return nil, err
	}
	r.Poll = f.Poll
	return &folderPost{File: r, state: f.of(name, stateFile), wish: f.of(name, wishFile)}, nil
}

// Close implements Catalog.
func (f *Folder) Close() error {
	f.shut()
	return nil
}

// folderPost is the registry of a job in a folder.
type folderPost struct {
	*File
	state, wish string // files
}

// Publish implements Post.
func (p *folderPost) Publish(ctx context.Context, state []byte) error {
	if err := CheckRecord(state); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := usable(ctx, p.closed); err != nil {
		return err
	}
	if p.lease == nil {
		return ErrLost
	}
	if err := p.lease.held(); err != nil {
		return err
	}
	if err := disk.WriteFile(p.fsys, p.state, content(state)); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	return nil
}

// Wish implements Post.
func (p *folderPost) Wish(ctx context.Context) ([]byte, error) {
	if err := usable(ctx, p.closed); err != nil {
		return nil, err
	}
	b, err := disk.ReadRegular(p.wish, MostRecord+1)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return b, nil
}
