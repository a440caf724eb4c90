// Package control implements the control API of a job, with which people, scripts and the dashboard watch it and
// steer it. It speaks Connect, so that one schema (control/v1/control.proto) serves Go, Python, curl and the
// browser.
//
// [Backend] is the API in plain Go values. The coordinator implements it and
// hands it to [NewHandler]; [NewClient] gives the same interface to whoever
// asks from outside. An error keeps its kind on the way: what errors.Is calls
// [perdure.ErrUsage], [perdure.ErrStopped], [perdure.ErrFenced] or
// [perdure.ErrRefused] at the coordinator, it calls so at the client, with the
// same message.
//
// Everything here is safe for concurrent use, as far as the Backend is.
package control

import (
	"context"
	"errors"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// Backend is a job that can be watched and steered. Its methods may be called
// concurrently, and return soon: none waits for the job.
type Backend interface {
	// Status says how the job is doing.
	Status(ctx context.Context) (Status, error)
	// View returns the job's present view.
	View(ctx context.Context) (words.View, error)
	// Fault adds a fault, KIND:TARGET@WHEN[+FOR], and says in words what will
	// happen. A spec that does not parse, or that has no target in this job, gives
	// perdure.ErrUsage.
	Fault(ctx context.Context, spec string) (accepted string, err error)
	// Scale lets workers join or leave, and says in words what will happen. What
	// cannot be gives perdure.ErrUsage; while another change is being made, or when
	// the job is over, perdure.ErrRefused and perdure.ErrStopped.
	Scale(ctx context.Context, s Scale) (accepted string, err error)
	// Drain has others take over what a server holds, or all servers of a host, whose
	// workers leave. It returns who is to end; Status says how far that has come. Who is not
	// there gives perdure.ErrUsage, what nobody could take over perdure.ErrRefused.
	Drain(ctx context.Context, d Drain) (Draining, error)
	// Stop ends the job in order, without waiting for the end. A job that is over
	// gives perdure.ErrStopped.
	Stop(ctx context.Context) error
}

// Scale is a change of who takes part in a job.
type Scale struct {
	Workers int            // how many are to take part; 0: Leave says it
	Leave   []perdure.Slot // slots that leave
	At      perdure.Clock  // from this clock on, or nothing changes; 0: from the next that no slot has begun
}

// Drain says who is to hand over what is held there, and to end.
type Drain struct {
	Who    string        // server:N, or the name of a host
	Notice time.Duration // how long they have; 0: as long as it takes, or as the host was told
}

// MostNotice bounds a notice: who has longer needs none.
const MostNotice = 24 * time.Hour

// Draining is what a Drain has begun.
type Draining struct {
	Places []DrainedPlace
}

// DrainedPlace is a place whose process is to end.
type DrainedPlace struct {
	Role        string // server or worker
	Index       int
	Incarnation perdure.Incarnation
}

// State says what a job is doing.
type State string

// The states of a job.
const (
	StateStarting   State = "starting"   // some slot or shard has never had a process
	StateTraining   State = "training"   // every shard is served
	StateRecovering State = "recovering" // some shard is in an outage, or the job is rolling back
	StateDone       State = "done"       // every slot has finished its clocks
)

// Status says how a job is doing.
type Status struct {
	Job             string // the job's id
	Workload        string
	RunDir          string
	Generation      perdure.Generation
	Clock           perdure.Clock // the job's MinClock
	End             perdure.Clock // the job ends at this clock; 0: no end
	State           State
	Loss            *float64 // on the training data; nil: none reported yet
	Accuracy        *float64 // on the test data, 0 to 1; nil: none reported yet
	ClocksPerSecond float64
	BytesPushed     int64 // by workers, since the job's start
	BytesPulled     int64
	UpdatesLost     int64 // under strategies that may lose updates
	Processes       []Process
	LastEvent       string // one line
	Recovery        perdure.Recovery
	NoReplace       bool   // a dead server's place stays empty
	Coordinator     string // the address at which processes join the job
	// Saving is how often a checkpoint is made where the job chooses that; nil: it does not.
	Saving *words.Saving
	// RegistryAway says that the coordinator waits for its registry; nil: it does not. Of processes this status has
	// what was known when that began, and of decisions those that are recorded.
	RegistryAway *Away
}

// Away is a coordinator's waiting for its registry.
type Away struct {
	Seconds float64 // so far
	Why     string  // the last try has failed; "": none has yet
}

// Process is one process of the job.
type Process struct {
	Role        string // coordinator, server, worker, log or supervisor
	Index       int    // the server's number or the worker's slot
	PID         int    // 0: inside the coordinator's process
	Incarnation perdure.Incarnation
	State       ProcessState
	Clock       perdure.Clock // worker: its clock; server: MinClock of its shards
	Draining    bool          // a server that is to end, and hands over what it holds
	KeptBytes   int64         // of a worker: of updates that it keeps until they are in a checkpoint
	// Unread is how many records of the update log the rows of a server's shards lack; nil:
	// there is no such log, or it is not known.
	Unread *int64
	// Outage is what a worker goes on without; nil: nothing is out, or it waits.
	Outage *perdure.WorkerOutage
	Host   string // the name of the host that has started it; "": none has, or it is not connected
	Shards int    // of a server: how many it holds, or begins to hold
	Bytes  int64  // of their rows, as far as it has said
	// Drained is the newest incarnation of a server's place of which others have taken over all.
	Drained perdure.Incarnation

	words.Resources // zero: not known
	words.Span      // of a slot: when it takes part
}

// ProcessState says whether a process lives, as far as the coordinator knows.
type ProcessState string

// The states of a process.
const (
	ProcessStarting ProcessState = "starting"
	ProcessLive     ProcessState = "live"
	ProcessSuspect  ProcessState = "suspect" // silent, and not yet given up
	ProcessDead     ProcessState = "dead"
	ProcessLeft     ProcessState = "left" // its slot has done the last of its clocks
)

// ErrUnreachable wraps what a Client returns when nobody answers as a
// coordinator at its address.
var ErrUnreachable = errors.New("control: no coordinator answers")
