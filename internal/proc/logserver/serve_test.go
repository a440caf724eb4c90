package logserver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/internal/data/updatelog"
)

// TestSyncs checks that SyncAlways syncs every record, and that no log leaves syncing to the operating system.
func TestSyncs(t *testing.T) {
	for sync, always := range map[updatelog.Sync]bool{updatelog.SyncAlways: true, updatelog.SyncInterval: false} {
		s, err := Serve(t.TempDir(), ServeOptions{Sync: sync})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		info, err := s.nats.Jsz(nil)
		if err != nil {
			t.Fatal(err)
		}
		if c := info.Config; c.SyncAlways != always || c.SyncInterval != syncEvery {
			t.Errorf("%s: SyncAlways %v, SyncInterval %v", sync, c.SyncAlways, c.SyncInterval)
		}
	}
}

// TestStreamInProgress checks that a log does not restart because of the directory of a stream that is being created or
// deleted, or was when the log was killed. It restarts if a stream cannot be opened at its start.
func TestStreamInProgress(t *testing.T) {
	dir := t.TempDir()
	mkdir := func(name string, files ...string) {
		t.Helper()
		at := filepath.Join(dir, streamsDir, name)
		if err := os.MkdirAll(at, 0o777); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(at, f), []byte("text"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(want bool, about string) {
		t.Helper()
		s, err := Serve(dir, ServeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if got := s.failed(); got != want {
			t.Errorf("%s at the start: failed %t", about, got)
		}
		mkdir("perdure-created-0")
		mkdir("perdure-created-1", metaFile) // written before the server knows the stream
		mkdir(".perdure-deleted-0", metaFile)
		if got := s.failed(); got != want {
			t.Errorf("%s at the start, and then streams in progress: failed %t", about, got)
		}
		if err := os.RemoveAll(filepath.Join(dir, streamsDir, "perdure-created-1")); err != nil {
			t.Fatal(err)
		}
	}
	check(false, "no stream")
	mkdir(".perdure-deleted-1", metaFile) // the server removes it while it runs
	check(false, "streams in progress")
	mkdir("perdure-damaged-0", metaFile, sumFile)
	check(true, "a damaged stream")
}
