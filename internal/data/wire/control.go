package wire

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// Role is the role of a process in the job.
type Role string

// The roles of processes.
const (
	RoleCoordinator Role = "coordinator"
	RoleServer      Role = "server"
	RoleWorker      Role = "worker"
	RoleObserver    Role = "observer" // reads rows, owns no slot
	RoleSupervisor  Role = "supervisor"
)

// Hello is the first frame of every connection.
type Hello struct {
	Role    Role   `json:"role"`
	Job     string `json:"job"`            // "" for any job, at the first contact with the coordinator
	Index   int    `json:"index"`          // server number or slot; -1: the coordinator chooses
	Process string `json:"process"`        // unique to this process
	PID     int    `json:"pid"`            // 0 inside one process
	Addr    string `json:"addr,omitempty"` // where a server listens for workers
	// Incarnation is what the coordinator granted earlier, on a reconnect.
	Incarnation perdure.Incarnation `json:"incarnation,omitempty"`
	// Revision is that of the view on which the process acts; 0: it has none.
	Revision    uint64 `json:"revision,omitempty"`
	Zone        string `json:"zone,omitempty"`    // a server's failure domain
	SavesAtCuts bool   `json:"at_cuts,omitempty"` // of a worker: it saves its state only for checkpoints
	// Grow is set by a worker that asks for an additional slot if none is free.
	Grow          bool           `json:"grow,omitempty"`
	DisplayName   string         `json:"called,omitempty"`  // of an observer that is a host: its display name
	WantsSettings bool           `json:"asks,omitempty"`    // of an observer: it asks for the run's settings
	Secret        perdure.Secret `json:"secret,omitempty"`  // of the run, for this role
	Nonce         perdure.Secret `json:"nonce,omitempty"`   // of a worker: random, drawn at its start
	Ticket        perdure.Secret `json:"ticket,omitempty"`  // of a worker: the ticket from its Welcome, for servers
	Version       string         `json:"version,omitempty"` // of Perdure, for displays; "": unknown
}

// Welcome answers Hello.
type Welcome struct {
	Job          perdure.JobSpec     `json:"job"`
	Index        int                 `json:"index"`
	Incarnation  perdure.Incarnation `json:"incarnation"`
	Ticket       perdure.Secret      `json:"ticket,omitempty"` // of a worker: proves that it speaks for its slot
	Store        string              `json:"store,omitempty"`  // of a worker: location of the job's store
	StoreIsLocal bool                `json:"local,omitempty"`  // it is in the run's directory
	// Of an observer with WantsSettings: the run's settings in the form of run.json, and its directory.
	RunSettings json.RawMessage `json:"run,omitempty"`
	Dir         string          `json:"folder,omitempty"`
}

// Refusal is the reason for which a connection is closed permanently.
type Refusal struct {
	Reason    string `json:"reason"`
	Fenced    bool   `json:"fenced,omitempty"` // another process has taken the slot or server index; this one must end
	JobEnded  bool   `json:"over,omitempty"`   // the job has ended; no work is left
	JobDone   bool   `json:"done,omitempty"`   // the job has ended because it is complete
	JobFailed bool   `json:"failed,omitempty"` // the job has ended because it cannot continue
	Temporary bool   `json:"again,omitempty"`  // temporary; the process may try again
}

// Report contains measurements of a training program.
type Report struct {
	Slot         perdure.Slot       `json:"slot"`
	Generation   perdure.Generation `json:"generation"`
	Clock        perdure.Clock      `json:"clock"`
	TrainLoss    *float64           `json:"train_loss,omitempty"`
	TestLoss     *float64           `json:"test_loss,omitempty"`
	TestAccuracy *float64           `json:"test_accuracy,omitempty"`
	TrainRMSE    *float64           `json:"train_rmse,omitempty"`
	TestRMSE     *float64           `json:"test_rmse,omitempty"`
	// Backlog says that the evaluated rows lacked updates that had been made.
	Backlog bool `json:"backlog,omitempty"`
	// EndAfter asks the coordinator to end the job, because the goal is reached, at the earliest clock after Clock at
	// which every slot can still stop.
	EndAfter bool `json:"end_after,omitempty"`
	// Tentative, with EndAfter, says that the end may be withdrawn once the model of that clock has been evaluated. At
	// a tentative end, EndAfter alone confirms it and Continue withdraws it.
	Tentative bool `json:"tentative,omitempty"`
	Continue  bool `json:"continue,omitempty"`
	// Untrained describes the part of its data that the slot did not train because the job ended first.
	Untrained *Untrained `json:"untrained,omitempty"`
	// SavesOnTerm says that the program saves its work since its last update when it receives SIGTERM.
	SavesOnTerm bool `json:"saves_on_term,omitempty"`
	// Warning is a warning of the training program, which users would otherwise find only in its log.
	Warning string `json:"warning,omitempty"`
}

// Untrained describes the part of its data that a slot did not train because the job ended first.
type Untrained struct {
	Left   *int64 `json:"left,omitempty"`   // batches or steps; nil if unknown
	Total  int64  `json:"of,omitempty"`     // total number
	Unit   string `json:"unit,omitempty"`   // UnitSteps; any other value means batches
	Unsent int64  `json:"unsent,omitempty"` // steps since the last outer step; they do not count
}

// UnitSteps is the unit of trainers: optimizer steps.
const UnitSteps = "steps"

// Describe describes the untrained data of a slot for users.
func (u *Untrained) Describe(slot perdure.Slot) string {
	unit, what := "batches", []string(nil)
	if u.Unit == UnitSteps {
		unit = UnitSteps
	}
	if u.Left != nil {
		what = append(what, fmt.Sprintf("%d of %d %s were not trained", *u.Left, u.Total, unit))
	}
	if u.Unsent > 0 {
		what = append(what, fmt.Sprintf("%d steps since its last outer step do not count", u.Unsent))
	}
	if len(what) == 0 {
		what = []string{"its loop had not ended"}
	}
	return fmt.Sprintf("slot %d was not done when the job ended: %s", slot, strings.Join(what, ", "))
}

// Event is something that happened to the job.
type Event struct {
	Kind         string        `json:"kind"`
	Target       string        `json:"target,omitempty"` // "server:0"
	Clock        perdure.Clock `json:"clock"`            // of the job: see Progress
	UnixNs       int64         `json:"unix_ns"`
	Text         string        `json:"text"`
	UpdatesLost  int64         `json:"updates_lost"` // of the job so far
	ClocksRedone int64         `json:"clocks_redone"`
	Output       string        `json:"said,omitempty"`    // the last lines of a failed program, if not reported before
	Vacated      bool          `json:"vacated,omitempty"` // of detected: a worker left its slot without a failure
}

// Progress is the coordinator's state of the job for its parent and for users. It is sent at every tick, at alarms, and
// when the job is complete.
type Progress struct {
	Revision   uint64             `json:"revision"`
	Generation perdure.Generation `json:"generation"`
	// Clock is the smallest clock of all slots, or the mean if all tables use asp.
	Clock    perdure.Clock `json:"clock"`
	End      perdure.Clock `json:"end"`
	Durable  perdure.Clock `json:"durable"`
	Complete bool          `json:"complete"` // only the export of the model is left to do
	Done     bool          `json:"done"`     // nothing is left to do, and no further process will be admitted
	// Closed says that the job ends early and that its last possible checkpoint is durable.
	Closed          bool  `json:"closed"`
	SavesAtCuts     bool  `json:"saves_at_cuts,omitempty"` // a checkpoint needs a state that programs save
	Serving         bool  `json:"serving"`                 // every shard serves and every slot works
	UpdatesApplied  int64 `json:"updates_in"`              // in the rows now
	UpdatesExpected int64 `json:"updates_due"`             // in the rows at the end if none is lost
	UpdatesLost     int64 `json:"updates_lost"`
	ClocksRedone    int64 `json:"clocks_redone"`
	// Members contains all servers and slots in the first Progress of a connection, and later only those that have
	// changed.
	Members []MemberProgress `json:"places"`
	Saving  *protocol.Saving `json:"saving,omitempty"` // if the interval is chosen automatically, or rows are saved
}

// MemberProgress is the part of a Progress for one server or slot.
type MemberProgress struct {
	Role              Role                    `json:"role"`
	Index             int                     `json:"index"`
	Process           string                  `json:"process"`
	PID               int                     `json:"pid"`
	Incarnation       perdure.Incarnation     `json:"incarnation"`
	State             string                  `json:"state"` // waiting, alive, silent, dead, left
	Clock             perdure.Clock           `json:"clock"`
	Problem           string                  `json:"problem,omitempty"`
	Worker            *perdure.WorkerCounters `json:"worker,omitempty"`
	protocol.Interval                         // of a slot
	// Awaited says, for a slot added to a running job, that its process must be started now.
	Awaited bool `json:"awaited,omitempty"`
}

// OrderKind is the kind of an order.
type OrderKind string

// The kinds of orders.
const (
	// To the supervisor: kill a process that was given up, inject a fault, end the job.
	OrderKill  OrderKind = "kill"
	OrderFault OrderKind = "fault" // also to servers and workers: fail in this way
	OrderStop  OrderKind = "stop"
	// Report whether a silent process is runnable; the answer is OrderRunning or OrderIdle for the same process.
	OrderProbe OrderKind = "look"
	// To a server: hand over its replicas and end. To a host: have all its processes do so.
	OrderDrain OrderKind = "drain"

	// To the coordinator.
	OrderFinalCheckpoint OrderKind = "close"  // make a last checkpoint before the job ends
	OrderEnd             OrderKind = "end"    // end the job; Spec is the reason
	OrderFinish          OrderKind = "finish" // the job's results are safe; all processes may end
	OrderDrop            OrderKind = "drop"   // drop some of the shards
	OrderForward         OrderKind = "pass"   // forward a fault to a process
	OrderLogState        OrderKind = "log"    // record the state of the update log's process
	OrderRunning         OrderKind = "runs"   // the silent process is running or waiting for the processor
	OrderIdle            OrderKind = "idle"   // the silent process is stopped or waits for something else
)

// Order asks a process to do something.
type Order struct {
	Kind   OrderKind `json:"kind"`
	Target string    `json:"target,omitempty"`
	PID    int       `json:"pid,omitempty"`
	Spec   string    `json:"spec,omitempty"`
}

// DrainOrder returns the order to hand over and end within a preemption notice in milliseconds; 0 means no deadline.
func DrainOrder(notice int64) Order {
	return Order{Kind: OrderDrain, Spec: strconv.FormatInt(notice, 10)}
}

// Notice returns the milliseconds that the receiver of a drain order has; 0 means no deadline.
func (o *Order) Notice() int64 {
	ms, _ := strconv.ParseInt(o.Spec, 10, 64)
	return max(0, ms)
}

// Exited notifies the coordinator that a process has ended, as observed by its parent.
type Exited struct {
	Role  Role   `json:"role"`
	Index int    `json:"index"`
	PID   int    `json:"pid"`
	How   string `json:"how"`
	Host  string `json:"host,omitempty"` // of an observer that is a host: the prefix of its processes' names
	// Vacated says that a worker left its slot without a failure, for example on SIGTERM.
	Vacated bool `json:"vacated,omitempty"`
	// Failed says that a worker's program ended by itself (code 0 included), and not by a signal from outside, a
	// planned fault or an order. Index is then the slot, or of a host the number of its worker.
	Failed bool   `json:"failed,omitempty"`
	Final  bool   `json:"final,omitempty"` // the failure is a usage error; a restart would fail again
	Code   int    `json:"code,omitempty"`
	Detail string `json:"why,omitempty"`  // of a failure: the last line of output
	Output string `json:"said,omitempty"` // of a failure: the last lines of output
}

// ExitRolledBack is the exit code of a worker's program that has ended because the job was rolled back.
const ExitRolledBack = 6

// HostVariable is the environment variable with the prefix of the names of a host's processes.
const HostVariable = "PERDURE_HOST"

// OfHost returns the prefix of the name of a host's process, which reports its number to the host. It is empty for a
// process that no host has started.
func OfHost(host string, pid int) string {
	if host == "" {
		return ""
	}
	return fmt.Sprintf("%s-%d-", host, pid)
}

// Control returns a control frame of the given kind with v as its payload. Pointers to views, statuses and their deltas
// are encoded in varints, because they are sent to all processes or by all. Any other plain data is encoded in JSON.
func Control(kind Kind, v any) Frame {
	var c coder
	if !codeBinary(&c, v) {
		c.b = JSON(v)
	}
	return Frame{Header: Header{Kind: kind, Slot: perdure.NoSlot, Shard: -1}, Payload: c.b}
}

// JSON encodes a control type, or any other plain data, as in payloads.
func JSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // impossible for plain data
		panic(fmt.Sprintf("wire: encode %T: %v", v, err))
	}
	return b
}

// ParseControl reads a control frame's payload into v, which must be zero.
func ParseControl(f *Frame, v any) error {
	c := coder{b: f.Payload, reading: true}
	if codeBinary(&c, v) {
		if err := c.done(); err != nil {
			return fmt.Errorf("frame of kind %d: %w", f.Kind, err)
		}
		return nil
	}
	if err := json.Unmarshal(f.Payload, v); err != nil {
		return fmt.Errorf("%w: frame of kind %d: %v", ErrPayload, f.Kind, err)
	}
	return nil
}
