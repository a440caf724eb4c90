package wire

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// Role says what a process is to the job.
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
	Job     string `json:"job"`            // "" on a first contact with the coordinator: any
	Index   int    `json:"index"`          // server number or slot; -1: the coordinator chooses
	Process string `json:"process"`        // unique to this process
	PID     int    `json:"pid"`            // 0 inside one process
	Addr    string `json:"addr,omitempty"` // where a server listens for workers
	// Incarnation is what the coordinator granted earlier, on a reconnect.
	Incarnation perdure.Incarnation `json:"incarnation,omitempty"`
	Zone        string              `json:"zone,omitempty"`    // the failure domain that a server is in
	AtCuts      bool                `json:"at_cuts,omitempty"` // a worker that saves its state for checkpoints only
	// Grow: a worker that finds no free slot asks for one more.
	Grow   bool           `json:"grow,omitempty"`
	Called string         `json:"called,omitempty"` // of an observer that is a host: what people call it
	Asks   bool           `json:"asks,omitempty"`   // an observer wants to know what the job was asked to be
	Secret perdure.Secret `json:"secret,omitempty"` // of the run, for this role
	Nonce  perdure.Secret `json:"nonce,omitempty"`  // of a worker: what it drew at its beginning
	Ticket perdure.Secret `json:"ticket,omitempty"` // of a worker: what the coordinator's Welcome gave it, for servers
}

// Welcome answers Hello.
type Welcome struct {
	Job         perdure.JobSpec     `json:"job"`
	Index       int                 `json:"index"`
	Incarnation perdure.Incarnation `json:"incarnation"`
	Ticket      perdure.Secret      `json:"ticket,omitempty"` // of a worker: it shows that it speaks for its slot
	Store       string              `json:"store,omitempty"`  // of a worker: where the job's store is
	Local       bool                `json:"local,omitempty"`  // that is in the run's folder, with the coordinator
	// Of an observer that asks: the run's settings as run.json has them, and its folder.
	Run    json.RawMessage `json:"run,omitempty"`
	Folder string          `json:"folder,omitempty"`
}

// Refusal says why a connection is being closed for good.
type Refusal struct {
	Reason string `json:"reason"`
	Fenced bool   `json:"fenced,omitempty"` // the process's place was taken: it must end
	Over   bool   `json:"over,omitempty"`   // the job has ended: there is nothing left to do
	Done   bool   `json:"done,omitempty"`   // likewise, since all of it is done
	Failed bool   `json:"failed,omitempty"` // likewise, since the job cannot continue
	Again  bool   `json:"again,omitempty"`  // not now: the process may ask again
}

// Report is what a training program measured.
type Report struct {
	Slot         perdure.Slot       `json:"slot"`
	Generation   perdure.Generation `json:"generation"`
	Clock        perdure.Clock      `json:"clock"`
	TrainLoss    *float64           `json:"train_loss,omitempty"`
	TestLoss     *float64           `json:"test_loss,omitempty"`
	TestAccuracy *float64           `json:"test_accuracy,omitempty"`
	TrainRMSE    *float64           `json:"train_rmse,omitempty"`
	TestRMSE     *float64           `json:"test_rmse,omitempty"`
	// Backlog says that the rows that were judged lacked updates that had been made.
	Backlog bool `json:"backlog,omitempty"`
	// EndAfter asks the coordinator to end the job at the earliest clock after
	// Clock that every slot can still meet: the goal is reached.
	EndAfter bool `json:"end_after,omitempty"`
	// Tentative, with EndAfter, says that the end may be taken back once the model of that clock is evaluated. EndAfter
	// alone at a tentative end confirms it, and Continue takes it back.
	Tentative bool `json:"tentative,omitempty"`
	Continue  bool `json:"continue,omitempty"`
	// Untrained is the part of its data that the slot has not trained, since the job ended first.
	Untrained *Untrained `json:"untrained,omitempty"`
}

// Untrained is the part of its data that a slot has not trained, since the job ended first.
type Untrained struct {
	Left   *int64 `json:"left,omitempty"`   // batches or steps; nil: it is not known how many
	Total  int64  `json:"of,omitempty"`     // of how many
	Unit   string `json:"unit,omitempty"`   // UnitSteps, or anything else: batches
	Unsent int64  `json:"unsent,omitempty"` // steps since the last outer step, which do not count
}

// UnitSteps is the unit of trainers: steps of the optimizer.
const UnitSteps = "steps"

// Of describes for people the data that a slot has not trained.
func (u *Untrained) Of(slot perdure.Slot) string {
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
	Clock        perdure.Clock `json:"clock"`            // the job's MinClock
	UnixNs       int64         `json:"unix_ns"`
	Text         string        `json:"text"`
	UpdatesLost  int64         `json:"updates_lost"` // of the job so far
	ClocksRedone int64         `json:"clocks_redone"`
	Said         string        `json:"said,omitempty"` // the last lines of a program that failed, where they are news
}

// Progress is what the coordinator knows of the job, for its parent and for
// people: at every tick, at alarms, and when it is complete.
type Progress struct {
	Revision   uint64             `json:"revision"`
	Generation perdure.Generation `json:"generation"`
	Clock      perdure.Clock      `json:"clock"` // the least of all slots' clocks
	End        perdure.Clock      `json:"end"`
	Durable    perdure.Clock      `json:"durable"`
	Complete   bool               `json:"complete"` // nothing is left to do but to export the model
	Done       bool               `json:"done"`     // not even that: nobody is to come any more
	// Closed: the job is to end early, and the last checkpoint that there can be is durable.
	Closed       bool  `json:"closed"`
	Serving      bool  `json:"serving"`     // every shard serves and every slot works
	UpdatesIn    int64 `json:"updates_in"`  // that the rows contain now
	UpdatesDue   int64 `json:"updates_due"` // that the rows are to contain at the end, none lost
	UpdatesLost  int64 `json:"updates_lost"`
	ClocksRedone int64 `json:"clocks_redone"`
	// Places are all in the first of a connection, then those of which something is new.
	Places []PlaceProgress `json:"places"`
	Saving *words.Saving   `json:"saving,omitempty"` // where an interval is chosen, or rows are saved
}

// PlaceProgress is one server's or worker's part of a Progress.
type PlaceProgress struct {
	Role        Role                    `json:"role"`
	Index       int                     `json:"index"`
	Process     string                  `json:"process"`
	PID         int                     `json:"pid"`
	Incarnation perdure.Incarnation     `json:"incarnation"`
	State       string                  `json:"state"` // waiting, alive, silent, dead, left
	Clock       perdure.Clock           `json:"clock"`
	Problem     string                  `json:"problem,omitempty"`
	Worker      *perdure.WorkerCounters `json:"worker,omitempty"`
	words.Span                          // of a slot
	// Awaited says of a slot that joined a running job that somebody is to start a
	// process for it now.
	Awaited bool `json:"awaited,omitempty"`
}

// OrderKind is what an order asks for.
type OrderKind string

// The kinds of orders.
const (
	// To the supervisor: end a process that was given up, take a fault in, end the job.
	OrderKill  OrderKind = "kill"
	OrderFault OrderKind = "fault" // to servers and workers, too: fail like this
	OrderStop  OrderKind = "stop"
	// Say whether a silent process wants to run; the answer is OrderRuns or OrderIdle, of the same process.
	OrderLook OrderKind = "look"
	// To a server: hand over what it holds, and end. To a host: have all its processes do so.
	OrderDrain OrderKind = "drain"

	// To the coordinator.
	OrderClose  OrderKind = "close"  // make a last checkpoint: the job is to end
	OrderEnd    OrderKind = "end"    // end the job: Spec says why
	OrderFinish OrderKind = "finish" // what the job leaves behind is safe: all may go
	OrderDrop   OrderKind = "drop"   // drop a share of the shards
	OrderPass   OrderKind = "pass"   // pass a fault on to a process
	OrderLog    OrderKind = "log"    // note how the log's process is
	OrderRuns   OrderKind = "runs"   // a silent process runs, or waits for the processor
	OrderIdle   OrderKind = "idle"   // it does not: it was stopped, or waits for something else
)

// Order asks a process to do something.
type Order struct {
	Kind   OrderKind `json:"kind"`
	Target string    `json:"target,omitempty"`
	PID    int       `json:"pid,omitempty"`
	Spec   string    `json:"spec,omitempty"`
}

// Drain is the order to hand over and to end, within a notice of some milliseconds; 0: it takes as long as it takes.
func Drain(notice int64) Order {
	return Order{Kind: OrderDrain, Spec: strconv.FormatInt(notice, 10)}
}

// Notice is how many milliseconds whoever is ordered to drain has for that; 0: as long as it takes.
func (o *Order) Notice() int64 {
	ms, _ := strconv.ParseInt(o.Spec, 10, 64)
	return max(0, ms)
}

// Exited tells the coordinator that a process has ended, as its parent saw it.
type Exited struct {
	Role  Role   `json:"role"`
	Index int    `json:"index"`
	PID   int    `json:"pid"`
	How   string `json:"how"`
	Host  string `json:"host,omitempty"` // of an observer, which is a host: what its processes' names begin with
	// Failed says that a worker's program ended by itself (code 0 included), and not by a signal from outside, a
	// planned fault or an order. Index is then the slot, or of a host the number of its worker.
	Failed bool   `json:"failed,omitempty"`
	Final  bool   `json:"final,omitempty"` // the failure is a usage error, which would come again
	Code   int    `json:"code,omitempty"`
	Why    string `json:"why,omitempty"`  // of a failure: its last line
	Said   string `json:"said,omitempty"` // of a failure: its last lines
}

// HostVariable tells the processes of a host what their names begin with, in the environment.
const HostVariable = "PERDURE_HOST"

// OfHost is how the name begins that a process of a host gives itself: of its number the host hears. Of a process that
// no host has started, it is nothing.
func OfHost(host string, pid int) string {
	if host == "" {
		return ""
	}
	return fmt.Sprintf("%s-%d-", host, pid)
}

// Control makes a control frame of the given kind with v as its payload: a pointer to a
// view, a status or a change of one, written in varints, for these are told to all or by
// all; or anything else that is plain data, in JSON.
func Control(kind Kind, v any) Frame {
	var c coder
	if !coded(&c, v) {
		c.b = JSON(v)
	}
	return Frame{Header: Header{Kind: kind, Slot: perdure.NoSlot, Shard: -1}, Payload: c.b}
}

// JSON encodes a control type, or what else is plain data, as payloads have it.
func JSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // it is plain data
		panic(fmt.Sprintf("wire: encode %T: %v", v, err))
	}
	return b
}

// ParseControl reads a control frame's payload into v, which is zero.
func ParseControl(f *Frame, v any) error {
	c := coder{b: f.Payload, reading: true}
	if coded(&c, v) {
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
