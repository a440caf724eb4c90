package settings

import (
	"errors"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
)

// TestOddLog: what no log can have is told in the same words to who writes a flag, and to who has
// changed run.json.
func TestOddLog(t *testing.T) {
	job, err := Shape{
		Workers: 1, Servers: 1, Shards: 2, Consistency: "bsp", Recovery: "stateless", Clocks: 5,
	}.Job(OwnWorkload)
	must(t, err)
	for _, c := range []struct {
		change    func(l *Log)
		flag, key string
		wrong     string
	}{
		{func(l *Log) { l.MB = 63 }, "log-mb", "mb", "63; a log of 2 shards needs at least 64"},
		{func(l *Log) { l.MB = MostLogMB + 1 }, "log-mb", "mb", "1073741825; choose at most 1073741824"},
		{func(l *Log) { l.Sync = "never" }, "log-sync", "sync", "never; choose interval or always"},
		{func(l *Log) { l.SnapshotMB = -1 }, "snapshot-mb", "snapshot_mb", "-1; choose 1 to 100, " +
			"the size of the log"},
		{func(l *Log) { l.SnapshotMB = 101 }, "snapshot-mb", "snapshot_mb", "101; choose 1 to 100, " +
			"the size of the log"},
		{func(l *Log) { l.Replicas = 6 }, "nats-replicas", "nats_replicas", "6; choose 1 to 5"},
	} {
		l := Log{Sync: updatelog.SyncInterval, MB: 100, SnapshotMB: 50}
		c.change(&l)
		asked := LogAsked{Sync: string(l.Sync), MB: l.MB, SnapshotMB: l.SnapshotMB, Replicas: l.Replicas}
		if _, err := NewLog(asked, &job); !errors.Is(err, perdure.ErrUsage) ||
			!strings.HasSuffix(err.Error(), "--"+c.flag+" "+c.wrong) {
			t.Errorf("--%s: %v, want %s", c.flag, err, c.wrong)
		}
		if err := (&Run{Job: job, Log: &l}).oddLog(); err == nil || err.Error() != "log."+c.key+" "+c.wrong {
			t.Errorf("log.%s: %v, want %s", c.key, err, c.wrong)
		}
	}
	for flag, want := range map[string]string{
		"log-mb": "0; a log of 2 shards", "snapshot-mb": "0; choose 1 to 4096", "nats-replicas": "0; choose 1 to 5",
	} { // of who writes 0, and so has chosen
		asked := LogAsked{Given: map[string]bool{flag: true}}
		if _, err := NewLog(asked, &job); err == nil || !strings.Contains(err.Error(), "--"+flag+" "+want) {
			t.Errorf("--%s 0: %v", flag, err)
		}
	}
}
