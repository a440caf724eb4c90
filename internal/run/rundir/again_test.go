package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// TestReopen checks that a continued run appends to its records, and that only one process can open it at a time.
func TestReopen(t *testing.T) {
	d := create1(t)
	must(t, d.Event(Event{Kind: "before"}))
	if _, err := Reopen(d.Path()); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "pid ") {
		t.Errorf("while it is open: %v", err)
	}
	must(t, d.Close())
	again, err := Reopen(d.Path())
	must(t, err)
	must(t, again.Event(Event{Kind: "after"}))
	must(t, again.Point(SeriesPoint{Clock: 7}))
	must(t, again.Close())
	events, err := os.ReadFile(filepath.Join(d.Path(), eventsFile))
	must(t, err)
	if text := string(events); strings.Count(text, "\n") != 2 ||
		strings.Index(text, "before") > strings.Index(text, "after") {
		t.Errorf("events:\n%s", text)
	}
	series, err := os.ReadFile(filepath.Join(d.Path(), seriesFile))
	must(t, err)
	if text := string(series); strings.Count(text, "seconds,") != 1 || !strings.Contains(text, "\n0,7,") {
		t.Errorf("series:\n%s", text)
	}
}

// TestClear checks that the remains of an interrupted Create are removed, and that runs and other files are not.
func TestClear(t *testing.T) {
	d := create1(t)
	must(t, d.Close())
	must(t, os.WriteFile(filepath.Join(d.Path(), "secret"), nil, 0o600))
	if started, err := RemoveIncomplete(d.Path()); started || err != nil {
		t.Errorf("begun %t, %v", started, err)
	}
	d, err := Create(d.Path())
	must(t, err)
	if _, err := RemoveIncomplete(d.Path()); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("while another process creates it: %v", err)
	}
	must(t, d.Close())
	mine := filepath.Join(d.Path(), "mine")
	must(t, os.WriteFile(mine, nil, 0o600))
	if started, err := RemoveIncomplete(d.Path()); started || err != nil {
		t.Errorf("begun %t, %v", started, err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
	must(t, os.Remove(mine))
	must(t, os.WriteFile(filepath.Join(d.Path(), RunFile), nil, 0o600))
	if started, err := RemoveIncomplete(d.Path()); !started || err != nil {
		t.Errorf("begun %t, %v", started, err)
	}
	if _, err := os.Stat(filepath.Join(d.Path(), eventsFile)); err != nil {
		t.Error(err)
	}
	if started, err := RemoveIncomplete(filepath.Join(d.Path(), "nothing")); started || err != nil {
		t.Errorf("missing directory: begun %t, %v", started, err)
	}
}
