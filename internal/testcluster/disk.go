package testcluster

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/data/disk"
)

// processDisk is the disk of one process. Once the process is dead, all its operations fail and change nothing.
type processDisk struct {
	disk.FS
	dead         *atomic.Bool
	syncDuration func() time.Duration // duration of a file sync; nil: 0
}

type processFile struct {
	disk.File
	disk *processDisk
}

func (d *processDisk) alive() error {
	if d.dead.Load() {
		return disk.ErrCrashed
	}
	return nil
}

func (d *processDisk) Create(path string) (disk.File, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	f, err := d.FS.Create(path)
	return &processFile{f, d}, err
}

func (d *processDisk) Rename(from, to string) error {
	if err := d.alive(); err != nil {
		return err
	}
	return d.FS.Rename(from, to)
}

func (d *processDisk) Remove(path string) error {
	if err := d.alive(); err != nil {
		return err
	}
	return d.FS.Remove(path)
}

func (d *processDisk) Open(path string) (io.ReadCloser, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	return d.FS.Open(path)
}

func (f *processFile) Write(b []byte) (int, error) {
	if err := f.disk.alive(); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

func (f *processFile) Sync() error {
	if f.disk.syncDuration != nil {
		<-time.After(f.disk.syncDuration())
	}
	if err := f.disk.alive(); err != nil {
		return err
	}
	return f.File.Sync()
}
