package localrun

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestEndedEarly checks what the user is told when a job on several hosts was ended early: what remains depends on the
// recovery strategy.
func TestEndedEarly(t *testing.T) {
	dir, err := rundir.Create(filepath.Join(t.TempDir(), "job"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for strategy, want := range map[string]string{
		"checkpoint:20": "at clock 0, with a checkpoint of clock 0; it continues when its coordinator is",
		"stateless":     "at clock 0, and all updates are in its log; it continues when",
		"chain:2":       "at clock 0, and there is nothing to resume from: a run with recovery chain:2 keeps",
		"none":          "and there is nothing to resume from: a run with recovery none keeps",
	} {
		recovery, err := perdure.ParseRecovery(strategy)
		if err != nil {
			t.Fatal(err)
		}
		s := settings.Run{Job: perdure.JobSpec{Recovery: recovery}}
		a := DistributedRun{&Run{s: s, stats: newStats(&s, time.Now()), dir: dir}}
		err = a.endedEarly(supervisor.ErrStopAsked)
		if !errors.Is(err, ErrStopped) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", strategy, err, want)
		}
	}
	if why := errors.New("another reason"); (&DistributedRun{&Run{}}).endedEarly(why) != why {
		t.Error("the original reason is not returned")
	}
}
