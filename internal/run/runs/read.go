package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// State says how a run is doing, or how it ended.
type State string

// A run goes on; has a result; was ended early, in order; could not go on; or ended without a word,
// as one whose parent was killed does. Of a damaged one that is not known.
const (
	Running State = "running"
	Done    State = "done"
	Stopped State = "stopped"
	Failed  State = "failed"
	Killed  State = "killed"
	Damaged State = "damaged"
)

// Run is a run's folder as it was read.
type Run struct {
	Folder   string
	State    State
	Began    time.Time // zero: not known
	Settings settings.Run
	Summary  *rundir.Summary // nil: it has none
	Clock    perdure.Clock   // that was reached, as far as is known
	Last     string          // what happened last, in words; "": nothing
	Prices   *Prices         // that its cost is told by; nil: it is not told
	Problem  error           // why it cannot be read, wholly or in part; nil: it can
}

// Read reads the run in a folder.
func Read(folder string) *Run {
	r := &Run{Folder: folder, Began: rundir.Began(folder)}
	if r.Settings, r.Problem = settings.Read(filepath.Join(folder, rundir.RunFile)); r.Problem != nil {
		r.State = Damaged
		return r
	}
	s, err := rundir.ReadSummary(folder)
	switch {
	case err == nil:
		r.Summary, r.Clock, r.State = &s, s.Clocks, Done
	case !errors.Is(err, fs.ErrNotExist):
		r.State, r.Problem = Damaged, fmt.Errorf("its summary cannot be read: %w", cause(err))
	}
	r.readLast()
	if _, err := rundir.Alive(folder); errors.Is(err, rundir.ErrAlive) {
		r.State = Running // one that resumes a run has a folder of its own
	}
	return r
}

// readLast takes over what the last events say.
func (r *Run) readLast() {
	events, err := rundir.LastEvents(r.Folder)
	if err != nil && r.Problem == nil {
		r.Problem = fmt.Errorf("what happened cannot be read: %w", cause(err))
	}
	ended := Killed
	for _, e := range events {
		r.Clock, r.Last = max(r.Clock, e.Clock), e.Text
		switch e.Kind {
		case "failed":
			ended = Failed
		case "closing":
			ended = Stopped
		}
	}
	if r.State == "" {
		r.State = ended
	}
}
