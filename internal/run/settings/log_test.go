package settings

import (
	"errors"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
)

// TestOddLog checks that an invalid log setting is reported in the same words for a flag and for an edited run.json.
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
		{func(l *Log) { l.MB = 63 }, "mb", "mb", "63; a log of 2 shards needs at least 64"},
		{func(l *Log) { l.MB = MaxLogMB + 1 }, "mb", "mb", "1073741825; choose at most 1073741824"},
		{func(l *Log) { l.Sync = "never" }, "sync", "sync", "never; choose interval or always"},
		{func(l *Log) { l.SnapshotMB = -1 }, "snapshot-mb", "snapshot_mb", "-1; choose 1 to 100, " +
			"the size of the log"},
		{func(l *Log) { l.SnapshotMB = 101 }, "snapshot-mb", "snapshot_mb", "101; choose 1 to 100, " +
			"the size of the log"},
		{func(l *Log) { l.Replicas = 6 }, "replicas", "nats_replicas", "6; choose 1 to 5"},
	} {
		l := Log{Sync: updatelog.SyncInterval, MB: 100, SnapshotMB: 50}
		c.change(&l)
		asked := LogFlags{Log: l}
		if _, err := NewLog(asked, &job); !errors.Is(err, perdure.ErrUsage) ||
			!strings.HasSuffix(err.Error(), "--log: "+c.flag+" is "+c.wrong) {
			t.Errorf("%s: %v, want %s", c.flag, err, c.wrong)
		}
		if err := (&Run{Job: job, Log: &l}).validateLog(); err == nil || err.Error() != "log."+c.key+" is "+c.wrong {
			t.Errorf("log.%s: %v, want %s", c.key, err, c.wrong)
		}
	}
	for flag, want := range map[string]string{
		"mb": "0; a log of 2 shards", "snapshot-mb": "0; choose 1 to 4096", "replicas": "0; choose 1 to 5",
	} { // the user explicitly chose 0
		asked := LogFlags{Given: map[string]bool{flag: true}}
		if _, err := NewLog(asked, &job); err == nil || !strings.Contains(err.Error(), "--log: "+flag+" is "+want) {
			t.Errorf("%s 0: %v", flag, err)
		}
	}
}

// TestParseLog checks that a log is parsed as people write it, and that errors name the option.
func TestParseLog(t *testing.T) {
	l, err := ParseLog("file:?sync=always&mb=600&snapshot-mb=5")
	if err != nil || l.Sync != "always" || l.MB != 600 || l.SnapshotMB != 5 || l.NATS != "" || !l.Given["mb"] {
		t.Errorf("%+v, %v", l, err)
	}
	l, err = ParseLog("nats://me:secret@a:1?creds=/c%26d&ca=/e&cert=/f&key=/g&replicas=3")
	if err != nil || l.NATS != "nats://me:secret@a:1" || l.Creds != "/c&d" || l.CA != "/e" || l.Cert != "/f" ||
		l.Key != "/g" || l.Replicas != 3 {
		t.Errorf("%+v, %v", l, err)
	}
	for written, want := range map[string]string{
		"file:?replicas=3": "replicas applies only to a log on a cluster; leave it out, or write " +
			"nats://HOST:PORT",
		"nats://a:1?sync=always":       "sync applies only to the job's own log",
		"file:?mb=4&mb=5":              "mb is given twice",
		"file:?mb=many":                `mb: "many" is not a whole number`,
		"file:?size=4":                 `no option "size"; choose mb, snapshot-mb, sync`,
		"file:?sync=":                  "sync: it is empty",
		"file:///tmp/log":              "--log file:///tmp/log; write, for example, file:?sync=always",
		"http://me:secret@a:1?mb=4":    "--log http://a:1; write, for example, file:",
		"me:secret@a:1":                "--log a:1; write, for example, file:",
		"here":                         "--log here; write, for example, file:",
		"nats://a:1?creds=%zz":         "--log: creds: invalid",
		"nats://a:1?mb=4&log=5&key=/k": `no option "log"; choose ca, cert, creds, key, mb, replicas, snapshot-mb`,
	} {
		if _, err := ParseLog(written); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", written, err, want)
		}
	}
}
