// Package settings defines the settings of a run, run.json: it reads, checks and completes them. The run's parent
// writes it, each of the run's processes reads it, and a later run goes on or begins again with it; so all that
// two of them must agree on is here. A Run is completed and checked before anything is started or written: what is
// wrong is told in one line, and nothing has happened.
//
// What somebody asks for is an Asked, in his own words: New makes the settings of it, Repeat those
// of a run that begins another again, Resume those of one that goes on. What people write is read
// here too (parseDelay, parseGoal, …), whether it comes from flags or from a run.json that
// somebody has changed. Messages name the flag, since that is what people know. The YAML and JSON files
// that people write for the command, a job among them, are read as trees of a Node that knows its line.
//
// Nothing here is changed once the run has begun, and then it is safe for concurrent use.
package settings

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/workload"
)

// Run is everything that a run was asked to be. The same settings run it again
// (train --from).
type Run struct {
	Folder string `json:"-"` // where they were read; "": nowhere

	Version   string          `json:"version"` // of Perdure
	Job       perdure.JobSpec `json:"job"`
	Params    workload.Params `json:"params"`
	Faults    []string        `json:"faults"`
	Zones     []string        `json:"zones,omitempty"` // of the servers; "": not known
	EvalEvery perdure.Clock   `json:"eval_every"`
	// between two evaluations by time, in milliseconds; 0: they are by clock
	EvalMs    int64 `json:"eval_ms,omitempty"`
	Until     Goal  `json:"until"`
	ComputeMs int   `json:"compute_ms,omitempty"` // least computing of a worker's clock, in milliseconds
	// of updates that a worker keeps until they are in a checkpoint, in MiB
	RetainMB int `json:"retain_mb,omitempty"`
	// of a worker's cached rows, in MiB; 0: of programs that choose it themselves
	CacheMB int `json:"cache_mb,omitempty"`
	// workers that take part from a clock on: WORKERS@clock:CLOCK
	Scale []string `json:"scale,omitempty"`
	Distance
	Log *Log `json:"log,omitempty"` // of a job that has an update log

	Trained workload.Description `json:"-"` // once the workload was opened

	Reach       Reach       `json:"reach,omitzero"`
	Checkpoints Checkpoints `json:"checkpoints"`

	// Where the run goes on from: the checkpoint that was copied into its folder.
	Resumed    string              `json:"resumed,omitempty"` // the earlier run's folder
	Generation perdure.Generation  `json:"generation"`
	Cut        perdure.Clock       `json:"cut"`
	Tables     []perdure.TableSpec `json:"tables,omitempty"`
	Slots      []words.Span        `json:"slots,omitempty"` // when each takes part; none: throughout
	Saved      *Saved              `json:"saved,omitempty"` // nil: the checkpoint is of one clock
}

// Reach is who can reach a run, and what for.
type Reach struct {
	// Listen is the coordinator's address, of this machine only.
	Listen string `json:"-" group:"job" default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	// Keys is the folder of the job's keys, of this machine; "": it has none.
	Keys string `json:"keys,omitempty" group:"job" env:"PERDURE_KEYS" placeholder:"DIR" type:"path"`
	// Insecure lets others reach it, though nothing is encrypted.
	Insecure bool `json:"-" group:"job"`
}

// Checkpoints is what a run does with its checkpoints.
type Checkpoints struct {
	Keep  int    `json:"keep"`            // how many stay, the newest; 0: all
	Store string `json:"store,omitempty"` // where they are; "": in the run's folder
	// how long a last one may take when the run is ended early; 0: none is made
	Grace time.Duration `json:"-"`
	// MaxFailures is how often the program of a slot may fail at one clock; 0: as usual.
	MaxFailures int `json:"max_failures,omitempty"`
	// The files of the one that the run goes on from, and where the earlier run has them, as Store.
	From    []string `json:"-"`
	Earlier string   `json:"-"`
	// Ended is what the earlier run has left in its update log, where the run goes on from that.
	Ended *EndedState `json:"-"`
	// Fork is what a run goes on from that is another job, and Forked says that it did.
	Fork   *checkpoint.Kept `json:"-"`
	Forked bool             `json:"forked,omitempty"`
	// Workers is how many go on, where that is another number than there were; 0: those who were there.
	Workers int `json:"workers,omitempty"`
	// PastClocks are those that slots did before the spans of who goes on.
	PastClocks int64 `json:"past_clocks,omitempty"`
	// Passed and Lost are lines for the user about checkpoints newer than the one that the run starts from: some are
	// damaged, or the store lacks the newest. They are empty otherwise.
	Passed string `json:"-"`
	Lost   string `json:"-"`
	// Init is of a run that begins with a model's file, or that went on from such a run; nil: it is of none.
	Init *Init `json:"init,omitempty"`

	furthest perdure.Clock // of what the run goes on from, the furthest clock that some shard has
}

// Read reads the run.json of a run.
func Read(path string) (s Run, err error) {
	s.CacheMB, s.RetainMB, s.Checkpoints.Keep = DefaultCacheMB, DefaultRetainMB, 1 // of runs that do not say
	s.Folder = filepath.Dir(path)
	return s, rundir.ReadRun(path, &s)
}

// Tell is what a process of the run that does not know its folder is told of the settings.
func Tell(s Run) ([]byte, error) {
	s.Slots, s.Saved, s.Faults = nil, nil, nil // the coordinator's alone
	return json.Marshal(s)
}

// Told reads what a run's coordinator tells of its settings.
func Told(b []byte) (s Run, err error) {
	s.CacheMB, s.RetainMB, s.Checkpoints.Keep = DefaultCacheMB, DefaultRetainMB, 1
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("the run's settings, as its coordinator tells them: %w", err)
	}
	return s, nil
}

// ReadToRun reads a run.json of which a new run is to be made, and refuses one that no run
// can have written: people may have changed it. What is wrong is told with the file's name and
// the key's.
func ReadToRun(path string) (s Run, err error) {
	if s, err = Read(path); err != nil {
		return s, err
	}
	if err := s.odd(); err != nil {
		return s, fmt.Errorf("%w: %s: %w", perdure.ErrUsage, path, err)
	}
	return s, nil
}

// OwnWorkload is what the job of a user's own program trains.
const OwnWorkload = "own"
