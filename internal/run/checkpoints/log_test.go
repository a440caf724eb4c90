package checkpoints_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/logserver"
	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// logged creates the directory of a run with two shards. Its log has some records for each and is served elsewhere.
func logged(t *testing.T, records int) (run string, s *logserver.Server) {
	t.Helper()
	s, err := logserver.Serve(filepath.Join(t.TempDir(), "log"), logserver.ServeOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	l, err := updatelog.Dial(t.Context(), s.URL(),
		updatelog.DialOptions{Options: updatelog.Options{Job: "first", Shards: 2}})
	must(t, err)
	for clock := range records {
		for shard := range 2 {
			tick := wire.Append(nil,
				&wire.Frame{Header: wire.Header{Kind: wire.KindTick, Slot: 3, Clock: perdure.Clock(clock)}})
			done := make(chan error, 1)
			must(t, l.Append(t.Context(), shard, [][]byte{tick}, func(_ updatelog.Position, err error) { done <- err }))
			must(t, <-done)
		}
	}
	must(t, l.Close())
	run = t.TempDir()
	about := settings.Run{Log: &settings.Log{MB: 64, NATS: s.URL()}}
	about.Job = perdure.JobSpec{
		ID: "first", Shards: 2, Log: s.URL(),
		Consistency: perdure.Consistency{Kind: perdure.BSP}, Recovery: perdure.Recovery{Kind: perdure.RecoverStateless},
	}
	text, err := rundir.EncodeRun(about)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(run, "run.json"), text, 0o666))
	return run, s
}

// TestLogLook dumps and verifies a log.
func TestLogLook(t *testing.T) {
	_, s := logged(t, 3)
	at := checkpoints.LogLocation{NATS: s.URL()}
	one := 1
	for name, c := range map[string]struct {
		do   func(out *bytes.Buffer) error
		want []string
	}{
		"dump": {
			func(out *bytes.Buffer) error {
				return checkpoints.DumpLog(t.Context(), out, at, checkpoints.LogSelection{Shard: 1, From: 2}, false)
			},
			[]string{"2 20", "tick slot 3 incarnation 0 clock 1 ", "3 20", "clock 2 "},
		},
		"dump some": {
			func(out *bytes.Buffer) error {
				return checkpoints.DumpLog(t.Context(), out, at, checkpoints.LogSelection{Most: &one}, false)
			},
			[]string{"1 20", "clock 0 "},
		},
		"verify": {
			func(out *bytes.Buffer) error { return checkpoints.VerifyLog(t.Context(), out, at, false) },
			[]string{"job first shard 0: 3 records, 3 entries", "job first shard 1: 3 records, 3 entries", "intact"},
		},
	} {
		var out bytes.Buffer
		must(t, c.do(&out))
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %q in\n%s", name, want, &out)
			}
		}
		if name == "dump some" && strings.Count(out.String(), "producer") != 1 {
			t.Errorf("want one record:\n%s", &out)
		}
	}
}

// TestLogMistakes checks the errors for missing streams and invalid flags.
func TestLogMistakes(t *testing.T) {
	_, s := logged(t, 1)
	none := 0
	verify := func(at checkpoints.LogLocation) error {
		return checkpoints.VerifyLog(t.Context(), os.Stderr, at, false)
	}
	dump := func(at checkpoints.LogLocation, part checkpoints.LogSelection) error {
		return checkpoints.DumpLog(t.Context(), os.Stderr, at, part, false)
	}
	for want, err := range map[string]error{
		"no log given":        verify(checkpoints.LogLocation{}),
		"cert and key belong": verify(checkpoints.LogLocation{NATS: s.URL(), Cert: "x"}),
		"--most 0":            dump(checkpoints.LogLocation{}, checkpoints.LogSelection{Most: &none}),
		"has no shard 7":      dump(checkpoints.LogLocation{NATS: s.URL()}, checkpoints.LogSelection{Shard: 7}),
	} {
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := verify(checkpoints.LogLocation{NATS: s.URL(), Job: "second"}); err == nil ||
		!strings.Contains(err.Error(), "no streams for second") {
		t.Errorf("%v", err)
	}
}

// TestRemoveLogOf removes a run's streams. Until then LogLine counts them.
func TestRemoveLogOf(t *testing.T) {
	run, _ := logged(t, 2)
	if line := checkpoints.LogLine(t.Context(), run); !strings.Contains(line, "in 2 streams, at nats://") {
		t.Errorf("status %q", line)
	}
	set, err := settings.Read(filepath.Join(run, "run.json"))
	must(t, err)
	must(t, checkpoints.RemoveLogOf(&set))
	if line := checkpoints.LogLine(t.Context(), run); !strings.Contains(line, "in 0 streams") {
		t.Errorf("status after removal %q", line)
	}
}
