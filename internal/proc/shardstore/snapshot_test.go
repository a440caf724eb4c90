package shardstore

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

var update = flag.Bool("update", false, "write the golden files")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var snapshotOf = SnapshotHeader{Job: "job", Shard: 3, Generation: 1, Epoch: 2, Seq: 40, Position: 17, Head: 4, Rows: 8}

func writeSnapshot(t *testing.T, fsys disk.FS, s SnapshotHeader) SnapshotFile {
	t.Helper()
	f, err := WriteSnapshot(store.NewDir(fsys, ""), &s, func(w io.Writer) error {
		_, err := w.Write([]byte("headrows 123"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func readSnapshot(fsys disk.FS, name, job string) (s SnapshotHeader, body string, err error) {
	err = ReadSnapshot(store.NewDir(fsys, ""), name, job, 3, func(about *SnapshotHeader, r io.Reader) error {
		b, err := io.ReadAll(r)
		s, body = *about, string(b)
		return err
	})
	return s, body, err
}

func TestRoundTrip(t *testing.T) {
	fsys := disk.NewMemory()
	f := writeSnapshot(t, fsys, snapshotOf)
	b, err := fsys.ReadFile(f.Name)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		must(t, os.WriteFile("testdata/snapshot.golden", b, 0o666))
	}
	if want, err := os.ReadFile("testdata/snapshot.golden"); err != nil || !bytes.Equal(b, want) {
		t.Errorf("the bytes differ from the golden file: a change of the format requires a new version (%v)", err)
	}
	s, body, err := readSnapshot(fsys, f.Name, "job")
	if err != nil || s != snapshotOf || body != "headrows 123" {
		t.Errorf("read %+v %q, %v", s, body, err)
	}
	if _, _, err := readSnapshot(fsys, f.Name, "another"); !errors.Is(err, ErrOtherJob) {
		t.Errorf("another job's: %v", err)
	}
}

// TestDamage checks that any change or truncation is detected, with an error that names the file.
func TestDamage(t *testing.T) {
	whole := disk.NewMemory()
	f := writeSnapshot(t, whole, snapshotOf)
	b, err := whole.ReadFile(f.Name)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, at int, b []byte) {
		fsys := disk.NewMemory()
		if err := disk.WriteFile(fsys, f.Name,
			func(w io.Writer) error { _, err := w.Write(b); return err }); err != nil {
			t.Fatal(err)
		}
		_, _, err := readSnapshot(fsys, f.Name, "job")
		if err == nil || !strings.Contains(err.Error(), f.Name) {
			t.Errorf("%s at %d: %v", what, at, err)
		}
	}
	for at := range b {
		changed := bytes.Clone(b)
		changed[at] ^= 1
		try("changed", at, changed)
		try("cut off", at, b[:at])
	}
	try("longer", len(b), append(bytes.Clone(b), 0))
	for _, version := range []byte{SnapshotVersion - 1, SnapshotVersion + 1} {
		other := bytes.Clone(b)
		other[8] = version
		fsys := disk.NewMemory()
		must(t, disk.WriteFile(fsys, f.Name, func(w io.Writer) error { _, err := w.Write(other); return err }))
		_, _, err := readSnapshot(fsys, f.Name, "job")
		want := fmt.Sprintf("%s was written by another version of Perdure (format %d, this one reads format %d); "+
			"use the version that wrote it", f.Name, version, SnapshotVersion)
		if !errors.Is(err, disk.ErrOtherVersion) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

// TestListAndPrune checks that snapshots are listed newest first, and that old ones are deleted, including incomplete
// ones.
func TestListAndPrune(t *testing.T) {
	fsys := disk.NewMemory()
	var want []string
	for _, position := range []uint64{5, 30, 200} {
		s := snapshotOf
		s.Position = position
		want = append([]string{writeSnapshot(t, fsys, s).Name}, want...)
	}
	other := snapshotOf
	other.Shard, other.Position = 4, 1
	writeSnapshot(t, fsys, other)
	started, _ := fsys.Create("." + want[2] + ".7-1.tmp")
	_ = started.Close()
	names := func() (names []string) {
		files, err := ListSnapshots(store.NewDir(fsys, ""), 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			names = append(names, f.Name)
		}
		return names
	}
	if got := names(); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%v, want %v", got, want)
	}
	if err := PruneSnapshots(store.NewDir(fsys, ""), 3, 30); err != nil {
		t.Fatal(err)
	}
	if got := names(); strings.Join(got, " ") != strings.Join(want[:2], " ") {
		t.Errorf("pruned: %v, want %v", got, want[:2])
	}
	if left, _ := fsys.List(""); len(left) != 3 {
		t.Errorf("left: %v", left)
	}
}
