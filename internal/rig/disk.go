package rig

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/data/disk"
)

// mortalDisk is the disk of one process. Once the process is dead, all its operations fail and change nothing.
type mortalDisk struct {
	disk.FS
	dead *atomic.Bool
	sync func() time.Duration // duration of a file sync; nil: 0
}

type mortalFile struct {
	disk.File
	disk *mortalDisk
}

func (d *mortalDisk) alive() error {
	if d.dead.Load() {
		return disk.ErrCrashed
	}
	return nil
}

func (d *mortalDisk) Create(path string) (disk.File, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	f, err := d.FS.Create(path)
	return &mortalFile{f, d}, err
}

func (d *mortalDisk) Rename(from, to string) error {
	if err := d.alive(); err != nil {
		return err
	}
	return d.FS.Rename(from, to)
}

func (d *mortalDisk) Remove(path string) error {
	if err := d.alive(); err != nil {
		return err
	}
	return d.FS.Remove(path)
}

func (d *mortalDisk) Open(path string) (io.ReadCloser, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	return d.FS.Open(path)
}

func (f *mortalFile) Write(b []byte) (int, error) {
	if err := f.disk.alive(); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

func (f *mortalFile) Sync() error {
	if f.disk.sync != nil {
		<-time.After(f.disk.sync())
	}
	if err := f.disk.alive(); err != nil {
		return err
	}
	return f.File.Sync()
}
