package updatelog

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of the given size.
func smallDisk(t *testing.T, size string) (dir string) {
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// TestDiskFull fills the disk of a log. Producers must be notified why they wait, and must continue when there is space
// again. No acknowledged record may be lost. Opening the log in the meantime must wait as well.
func TestDiskFull(t *testing.T) {
	disk := smallDisk(t, "80m")
	s, err := Serve(filepath.Join(disk, "log"), ServeOptions{})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	defer func() { cancel(); must(t, <-ended) }()

	waits := make(chan error, 9999)
	o := Options{Job: job, Shards: 1, Status: func(_ int, why error) { waits <- why }}
	l, err := Dial(t.Context(), s.URL(), DialOptions{Options: o})
	must(t, err)
	defer l.Close()
	put := func(i byte) <-chan error {
		done := make(chan error, 1)
		must(t, l.Append(t.Context(), 0, [][]byte{bytes.Repeat([]byte{i}, 1<<20)},
			func(_ Position, err error) { done <- err }))
		return done
	}
	must(t, <-put(0))
	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	const n = 24 // more than the operating system may buffer
	var done []<-chan error
	for i := range byte(n) {
		done = append(done, put(i+1))
	}
	for !errors.Is(<-waits, ErrDisk) {
	}
	for to, err := s.Look(ctx); to.Waits == ""; to, err = s.Look(ctx) { // callers of Look see the reason, too
		must(t, err)
	}
	late := make(chan error, 1)
	again := o
	again.Status = func(shard int, why error) {
		if shard == -1 && errors.Is(why, ErrDisk) {
			_ = os.Remove(filler) // both clients wait now
		}
	}
	go func() {
		l, err := Dial(t.Context(), s.URL(), DialOptions{Options: again})
		if err == nil {
			err = l.Close()
		}
		late <- err
	}()
	must(t, <-late)
	for _, d := range done {
		must(t, <-d)
	}
	for why := range waits {
		if why == nil {
			break // reported that appends continue
		}
	}
	seen := map[byte]bool{}
	err = l.Read(t.Context(), 0, Oldest, func(e Entry) error {
		if i := e.Payload[0]; !bytes.Equal(e.Payload, bytes.Repeat([]byte{i}, 1<<20)) {
			t.Errorf("entry %d differs from the appended one", i)
		} else if seen[i] = true; i < n {
			return nil
		}
		return errEnough
	}, nil)
	if err != errEnough || len(seen) != n+1 {
		t.Errorf("read %d of %d entries: %v", len(seen), n+1, err)
	}
}

// fill creates a file that uses up all free space of its disk.
func fill(t *testing.T, path string) {
	f, err := os.Create(path)
	must(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 1<<16))
	}
	must(t, f.Close())
}

// TestNoRoom checks the one-line error for streams that do not fit on the disk.
func TestNoRoom(t *testing.T) {
	s, err := Serve(filepath.Join(smallDisk(t, "64m"), "log"), ServeOptions{})
	must(t, err)
	defer s.Close()
	_, err = Dial(t.Context(), s.URL(), DialOptions{Options: Options{Job: job, Shards: 2}, MaxBytes: 100 << 20})
	wantError(t, "a stream that is too large", err, ErrRefused,
		"does not have enough space for stream perdure-job-1-0, which may take 100 MiB")
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has several lines: %v", err)
	}
}

// TestInspectNoRoom checks the error if there is no space for the copy of a log: it says how much is needed, and where.
func TestInspectNoRoom(t *testing.T) {
	w := newServerBackend(t, SyncInterval)
	put1(t, open1(t, w), pattern(0, 2<<20))
	w.restart(t, func() {
		small := smallDisk(t, "17m")
		t.Setenv("TMPDIR", small)
		_, err := InspectFolder(t.Context(), w.dir, time.Minute, DialOptions{})
		wantError(t, "a small disk", err, ErrRefused,
			"requires a copy of 18 MiB, but "+small+" does not have enough space")
		t.Setenv("TMPDIR", smallDisk(t, "19m"))
		i, err := InspectFolder(t.Context(), w.dir, time.Minute, DialOptions{})
		must(t, err)
		must(t, i.Close())
	})
}
