// Package settings defines the settings of a run, which are stored in run.json. It reads, checks and completes them.
// The run's parent process writes the file, each process of the run reads it, and a later run resumes or repeats it. A
// Run is completed and checked before anything is started or written: a mistake is reported in one line and has no side
// effects.
//
// A Flags holds a user's request as the user wrote it. Flags.New makes the settings of a new run, Flags.Repeat those
// of a run that starts another run over, and Flags.Resume those of a run that resumes. Values are parsed here
// (parseDelay, parseGoal, …), whether they come from flags or from an edited run.json. Messages name the flag, because
// users know the flags. YAML and JSON files that users write for the command, such as jobs, are read as trees of Nodes,
// and each Node knows its line.
//
// Settings do not change once the run has started, and are then safe for concurrent use.
package settings

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/workload"
)

// Run holds all settings of a run. A run with the same settings repeats it (train --from).
type Run struct {
	Folder string `json:"-"` // where the settings were read; "" if they were not read from a file

	Version   string          `json:"version"` // of Perdure
	Job       perdure.JobSpec `json:"job"`
	Params    workload.Params `json:"params"`
	Faults    []string        `json:"faults"`
	Zones     []string        `json:"zones,omitempty"` // of the servers; "": unknown
	EvalEvery perdure.Clock   `json:"eval_every"`
	// time between two evaluations, in milliseconds; 0: evaluations are by clock
	EvalMs    int64 `json:"eval_ms,omitempty"`
	Until     Goal  `json:"until"`
	ComputeMs int   `json:"compute_ms,omitempty"` // minimum computing time of a worker's clock, in milliseconds
	// limit for the updates that a worker keeps until a checkpoint contains them, in MiB
	RetainMB int `json:"retain_mb,omitempty"`
	// limit for a worker's cached rows, in MiB; 0 for programs that choose it themselves
	CacheMB int `json:"cache_mb,omitempty"`
	// changes of the number of workers: WORKERS@clock:CLOCK
	Scale []string `json:"scale,omitempty"`
	SimulatedNetwork
	Log *Log `json:"log,omitempty"` // nil if the job has no update log

	Trained workload.Description `json:"-"` // set once the workload was opened

	Reach       Reach       `json:"reach,omitzero"`
	Checkpoints Checkpoints `json:"checkpoints"`

	// The state that the run resumed from: the checkpoint that was copied into its directory.
	Resumed    string              `json:"resumed,omitempty"` // the earlier run's directory
	Generation perdure.Generation  `json:"generation"`
	Cut        perdure.Clock       `json:"cut"`
	Tables     []perdure.TableSpec `json:"tables,omitempty"`
	Slots      []protocol.Interval `json:"slots,omitempty"` // when each takes part; empty: all throughout
	Saved      *RunningCheckpoint  `json:"saved,omitempty"` // nil: the checkpoint is of one clock
}

// Reach determines who can reach a run, and over which addresses.
type Reach struct {
	// Listen is the coordinator's address on this machine.
	Listen string `json:"-" group:"job" default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	// Keys is the directory of the job's keys on this machine; "" if the job has none.
	Keys string `json:"keys,omitempty" group:"job" env:"PERDURE_KEYS" placeholder:"DIR" type:"path"`
	// Insecure lets other machines connect although the traffic is not encrypted.
	Insecure bool `json:"-" group:"job"`
}

// Checkpoints holds the settings of a run's checkpoints.
type Checkpoints struct {
	Keep  int    `json:"keep"`            // how many of the newest are kept; 0: all
	Store string `json:"store,omitempty"` // where they are; "": in the run's directory
	// how long a final checkpoint may take when the run is ended early; 0: make none
	Grace time.Duration `json:"-"`
	// MaxFailures is how often the program of a slot may fail at one clock; 0 means the default.
	MaxFailures int `json:"max_failures,omitempty"`
	// From holds the files of the checkpoint that the run resumes from. Earlier is where the earlier run has them, in
	// the form of Store.
	From    []string `json:"-"`
	Earlier string   `json:"-"`
	// Ended is the state in the earlier run's update log, if the run resumes from that.
	Ended *EndedState `json:"-"`
	// Fork is the other job's checkpoint that a forked run starts from. Forked is true for such a run.
	Fork   *checkpoint.Info `json:"-"`
	Forked bool             `json:"forked,omitempty"`
	// Workers is the number of workers of a resumed run if it changed; 0: it did not.
	Workers int `json:"workers,omitempty"`
	// PastClocks is the number of clocks that slots did before their current membership intervals.
	PastClocks int64 `json:"past_clocks,omitempty"`
	// Clocks are the clocks at which the slots start, if each starts at another one than Run.Cut.
	Clocks protocol.SlotClocks `json:"clocks,omitempty"`
	// SkippedNote and LostNote are lines for the user about checkpoints newer than the one that the run starts from:
	// some are damaged, or the store lacks the newest. They are empty otherwise.
	SkippedNote string `json:"-"`
	LostNote    string `json:"-"`
	// Init is the model that the run, or the run that it was resumed from, started with; nil if there is none.
	Init *Init `json:"init,omitempty"`

	furthest perdure.Clock // largest clock that any shard has in the state that the run resumes from
}

// Read reads the run.json of a run.
func Read(path string) (s Run, err error) {
	// defaults for files without these keys
	s.CacheMB, s.RetainMB, s.Checkpoints.Keep = DefaultCacheMB, DefaultRetainMB, 1
	s.Folder = filepath.Dir(path)
	return s, rundir.ReadRun(path, &s)
}

// Encode encodes the settings for a process of the run that does not know its directory.
func Encode(s Run) ([]byte, error) {
	s.Slots, s.Saved, s.Faults = nil, nil, nil // only the coordinator needs these
	return json.Marshal(s)
}

// Decode decodes the settings that a run's coordinator sends.
func Decode(b []byte) (s Run, err error) {
	s.CacheMB, s.RetainMB, s.Checkpoints.Keep = DefaultCacheMB, DefaultRetainMB, 1
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("invalid settings from the run's coordinator: %w", err)
	}
	return s, nil
}

// ReadForNewRun reads a run.json from which a new run is made. It returns an error if no run can have written the file,
// since users may have edited it. The error names the file and the key.
func ReadForNewRun(path string) (s Run, err error) {
	if s, err = Read(path); err != nil {
		return s, err
	}
	if err := s.validate(); err != nil {
		return s, perdure.Usagef("%s: %w", path, err)
	}
	return s, nil
}

// OwnWorkload is the workload name of a job whose workers are the user's own programs.
const OwnWorkload = "own"
