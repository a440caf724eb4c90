package logserver

import (
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
