package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// State is the state of a run, or how it ended.
type State string

// A run is running; has a result (done); was ended early and gracefully (stopped); has no coordinator, while its job
// may continue on its hosts (detached); could not continue (failed); or ended without notice (killed), because its
// parent was killed. The state of a damaged run is unknown.
const (
	Running  State = "running"
	Done     State = "done"
	Stopped  State = "stopped"
	Detached State = "detached"
	Failed   State = "failed"
	Killed   State = "killed"
	Damaged  State = "damaged"
)

// Run is a run as it was read from its directory.
type Run struct {
	Folder   string
	State    State
	Began    time.Time // zero: unknown
	Settings settings.Run
	Summary  *rundir.Summary // nil: it has no summary
	Clock    perdure.Clock   // reached, as far as known
	Last     string          // text of the last event; "": none
	Prices   *Prices         // for its cost; nil: no cost is shown
	Problem  error           // why it cannot be read completely; nil: it can
}

// Read reads the run in a directory.
func Read(dir string) *Run {
	r := &Run{Folder: dir, Began: rundir.StartTime(dir)}
	if r.Settings, r.Problem = settings.Read(filepath.Join(dir, rundir.RunFile)); r.Problem != nil {
		r.State = Damaged
		return r
	}
	s, err := rundir.ReadSummary(dir)
	switch {
	case err == nil:
		r.Summary, r.Clock, r.State = &s, s.Clocks, Done
	case !errors.Is(err, fs.ErrNotExist):
		r.State, r.Problem = Damaged, fmt.Errorf("cannot read its summary: %w", cause(err))
	}
	r.readLast()
	if _, err := rundir.CheckEnded(dir); errors.Is(err, rundir.ErrRunning) {
		r.State = Running // a resumed run has a directory of its own
	}
	return r
}

// Flat returns the run's settings by their paths in run.json, without those that identify the run.
func (r *Run) Flat() (map[string]string, error) {
	values, err := flat(&r.Settings)
	maps.DeleteFunc(values, func(path, _ string) bool {
		return path == "job.id" || strings.HasPrefix(path, "job.seal.")
	})
	return values, err
}

// flat returns the leaves of v's JSON by path, as texts.
func flat(v any) (map[string]string, error) {
	leaves, err := settings.Flatten(v)
	texts := map[string]string{}
	for path, leaf := range leaves {
		if text, is := leaf.(string); is {
			texts[path] = text
		} else if b, err := json.Marshal(leaf); err == nil {
			texts[path] = string(b)
		}
	}
	return texts, err
}

// readLast reads the clock and the state from the last events.
func (r *Run) readLast() {
	events, err := rundir.LastEvents(r.Folder)
	if err != nil && r.Problem == nil {
		r.Problem = fmt.Errorf("cannot read its events: %w", cause(err))
	}
	ended := Killed
	if rundir.IsDistributed(r.Folder) { // hosts continue after the death of their coordinator
		ended = Detached
	}
	for _, e := range events {
		r.Clock, r.Last = max(r.Clock, e.Clock), e.Text
		switch e.Kind {
		case "failed":
			ended = Failed
		case "closing", "stopped":
			ended = Stopped
		case "attached", "detached": // after "attached", the coordinator was killed
			ended = Detached
		}
	}
	if r.State == "" {
		r.State = ended
	}
}
