// Package control implements the control API of a job, through which people, scripts and the dashboard observe and
// control it. It uses Connect, so that one schema (control/v1/control.proto) serves Go, Python, curl and browsers.
//
// [Backend] is the API in plain Go values. The coordinator implements it and passes it to [NewHandler]. [NewClient]
// returns the same interface for callers in other processes. Errors keep their kind in transit: errors.Is reports
// [perdure.ErrUsage], [perdure.ErrStopped], [perdure.ErrFenced] or [perdure.ErrRefused] at the client as it does at the
// coordinator, with the same message.
//
// All of the package is safe for concurrent use if the Backend is.
package control

import (
	"context"
	"errors"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// Backend is a job that can be observed and controlled. Its methods may be called concurrently. They return soon and do
// not wait for the job.
type Backend interface {
	// Status returns the state of the job.
	Status(ctx context.Context) (Status, error)
	// View returns the job's current view.
	View(ctx context.Context) (protocol.View, error)
	// Fault adds a fault, KIND:TARGET@WHEN[+FOR], and returns a description of what will happen. It returns
	// perdure.ErrUsage if spec is invalid or its target does not exist in this job.
	Fault(ctx context.Context, spec string) (accepted string, err error)
	// Scale lets workers join or leave, and returns a description of what will happen. It returns perdure.ErrUsage for
	// an impossible change, perdure.ErrRefused while another change is in progress, and perdure.ErrStopped when the job
	// is over.
	Scale(ctx context.Context, s Scale) (accepted string, err error)
	// Drain moves the replicas of a server, or of all servers of a host, to other servers, and lets the host's workers
	// leave. It returns the processes that will end; Status reports the progress. It returns perdure.ErrUsage if the
	// server or host does not exist, and perdure.ErrRefused if no other process can take over.
	Drain(ctx context.Context, d Drain) (DrainResult, error)
	// Stop ends the job gracefully, without waiting for the end. It returns perdure.ErrStopped if the job is already
	// over.
	Stop(ctx context.Context) error
}

// Scale is a change of the slots that participate in a job.
type Scale struct {
	Workers int            // desired number of workers; 0: see Leave
	Leave   []perdure.Slot // slots that leave
	// The clock of the change; it fails if that has started. 0: the next clock that no slot has started.
	At perdure.Clock
}

// Drain selects the processes that hand over their replicas and end.
type Drain struct {
	Target string        // server:N, or a host's name
	Notice time.Duration // time limit; 0: no limit, or the host's own notice
}

// MaxNotice is the maximum notice. With more time, a notice is pointless.
const MaxNotice = 24 * time.Hour

// DrainResult lists the processes that a Drain has told to end.
type DrainResult struct {
	Places []DrainedProcess
}

// DrainedProcess identifies a process that will end.
type DrainedProcess struct {
	Role        string // server or worker
	Index       int
	Incarnation perdure.Incarnation
}

// State is the state of a job.
type State string

// The states of a job.
const (
	StateStarting   State = "starting"   // some slot or shard has never had a process
	StateTraining   State = "training"   // every shard is served
	StateRecovering State = "recovering" // some shard is unavailable, or the job is rolling back
	StateDone       State = "done"       // every slot has finished its clocks
)

// Status describes the state of a job.
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
	NoReplace       bool   // dead servers are not replaced
	Coordinator     string // the address at which processes join the job
	// Saving is the checkpoint interval if the job chooses it; nil: the job does not choose it.
	Saving   *protocol.Saving
	Standbys []Standby // processes that wait for a free slot or server index
	// RegistryAway is set while the coordinator waits for its registry. Then the status shows the processes as last
	// known and the decisions as last recorded.
	RegistryAway *RegistryWait
}

// Standby is a process that waits for a free slot or server index.
type Standby struct {
	Role    string // server or worker
	PID     int
	Host    string // name of the host that started it; "": none, or disconnected
	Version string // of Perdure; "": unknown
}

// RegistryWait describes how long a coordinator has waited for its registry, and why.
type RegistryWait struct {
	Seconds float64 // so far
	Why     string  // error of the last attempt; "" if none has failed yet
}

// Process is one process of the job.
type Process struct {
	Role        string // coordinator, server, worker, log or supervisor
	Index       int    // the server's number or the worker's slot
	PID         int    // 0: inside the coordinator's process
	Incarnation perdure.Incarnation
	State       ProcessState
	Clock       perdure.Clock // worker: its clock; server: MinClock of its shards
	Draining    bool          // the server is draining and will end
	KeptBytes   int64         // of a worker: bytes of updates that are not in a checkpoint yet
	// Unread is the number of update log records that a server's shards have not applied; nil: no update log, or
	// unknown.
	Unread *int64
	// Outage lists the unavailable shards that a worker continues without; nil: none, or the worker waits.
	Outage *perdure.WorkerOutage
	Host   string // name of the host that started it; "": none, or disconnected
	Shards int    // of a server: shards that it holds or is about to hold
	Bytes  int64  // size of their rows, as last reported
	// Drained is the newest incarnation of the server whose replicas other servers have all taken over.
	Drained perdure.Incarnation
	Version string // of Perdure; "": unknown, or not connected

	protocol.Resources // zero: unknown
	protocol.Interval  // of a slot: its membership interval
}

// ProcessState is the state of a process, as known to the coordinator.
type ProcessState string

// The states of a process.
const (
	ProcessStarting ProcessState = "starting"
	ProcessLive     ProcessState = "live"
	ProcessSuspect  ProcessState = "suspect" // silent, but not yet considered dead
	ProcessDead     ProcessState = "dead"
	ProcessLeft     ProcessState = "left" // its slot has finished its last clock
)

// ErrUnreachable is wrapped by a Client's errors if no coordinator answers at its address.
var ErrUnreachable = errors.New("control: no coordinator answers")
